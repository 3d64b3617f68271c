/* A clock that goes on only while somebody looks at it or sleeps, for tests of one thread: how fast the host is then
 * says nothing. */
#ifndef HAND_CLOCK_H
#define HAND_CLOCK_H

#include <stdint.h>
#include <time.h>

#define HAND_CLOCK_LOOK_NS 100 /* so that who looks again and again comes to an end */

static uint64_t hand_clock_ns = 1000000000;

/* The program's own take the place of the C library's, in the interposer's objects too. */

int clock_gettime(clockid_t clock, struct timespec *now)
{
	hand_clock_ns += HAND_CLOCK_LOOK_NS;
	now->tv_sec = (time_t)(hand_clock_ns / 1000000000);
	now->tv_nsec = (long)(hand_clock_ns % 1000000000);
	return 0;
}

int nanosleep(const struct timespec *wait, struct timespec *left)
{
	hand_clock_ns += (uint64_t)wait->tv_sec * 1000000000 + (uint64_t)wait->tv_nsec;
	return 0;
}

#endif
