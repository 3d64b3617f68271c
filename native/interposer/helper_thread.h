/* Threads of our own inside the application's process. */
#ifndef NVS_HELPER_THREAD_H
#define NVS_HELPER_THREAD_H

#include <stdbool.h>

/* A detached thread that receives none of the application's signals. False when there can be none. */
bool nvs_helper_start(void *(*body)(void *));

#endif
