/* Ranges of addresses as keys of a balanced tree (tsearch). */
#ifndef NVS_RANGES_H
#define NVS_RANGES_H

#include <stddef.h>

#include "cuda_abi.h"

struct nvs_range {
	CUdeviceptr base;
	size_t size;
};

/* Of anything that begins with a range. Two that overlap are equal: a range of one byte finds the one that holds it. */
static inline int nvs_compare_ranges(const void *left, const void *right)
{
	const struct nvs_range *a = left, *b = right;
	if (a->base + a->size <= b->base)
		return -1;
	return a->base >= b->base + b->size ? 1 : 0;
}

#endif
