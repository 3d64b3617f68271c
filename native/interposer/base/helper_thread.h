/* Threads of our own inside the application's process. */
#ifndef NVS_HELPER_THREAD_H
#define NVS_HELPER_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* A thread to be joined, that receives none of the application's signals. False when there can be none. */
bool nvs_helper_run(void *(*body)(void *), void *argument, pthread_t *thread);

/* The same, never joined. */
bool nvs_helper_start(void *(*body)(void *));

#endif
