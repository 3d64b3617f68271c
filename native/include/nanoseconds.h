/* Units of time. All times and lengths of time in C are nanoseconds; a time of 0 is "never" or "not known". */
#ifndef NVS_NANOSECONDS_H
#define NVS_NANOSECONDS_H

#include <stdint.h>

#define NVS_NS_PER_US 1000ull
#define NVS_NS_PER_MS 1000000ull
#define NVS_NS_PER_S 1000000000ull

/* The earlier of two times, of which 0 is never. */
static inline uint64_t nvs_earlier(uint64_t a, uint64_t b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

#endif
