/* Time for the waiting loops of the library. */
#ifndef NVS_CLOCK_H
#define NVS_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "nanoseconds.h"

static inline uint64_t nvs_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NVS_NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline void nvs_sleep_ns(uint64_t ns)
{
	struct timespec wait = {.tv_sec = (time_t)(ns / NVS_NS_PER_S), .tv_nsec = (long)(ns % NVS_NS_PER_S)};
	nanosleep(&wait, NULL);
}

/* Sleep 20 us at first, then twice as long each time, at most 1 ms. `step` starts at 0. */
static inline void nvs_sleep_growing(uint64_t *step)
{
	*step = *step == 0 ? 20 * NVS_NS_PER_US : *step * 2 > NVS_NS_PER_MS ? NVS_NS_PER_MS : *step * 2;
	nvs_sleep_ns(*step);
}

#endif
