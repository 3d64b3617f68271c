#include "helper_thread.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

bool nvs_helper_start(void *(*body)(void *))
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all); /* the application's signal handlers are not for this thread */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, &attributes, body, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return error == 0;
}
