#include "base/helper_thread.h"

#include <signal.h>
#include <stddef.h>

bool nvs_helper_run(void *(*body)(void *), void *argument, pthread_t *thread)
{
	sigset_t all, before;
	sigfillset(&all); /* the application's signal handlers are not for this thread */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(thread, NULL, body, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error == 0;
}

bool nvs_helper_start(void *(*body)(void *))
{
	pthread_t thread;
	return nvs_helper_run(body, NULL, &thread) && pthread_detach(thread) == 0;
}
