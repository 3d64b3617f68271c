/* Memory that belongs to the driver: managed, stream-ordered, arrays, and what of cuMemCreate cannot be ours. It stays
 * resident, is counted against the quota, and is otherwise passed on. */
#ifndef NVS_COUNTED_H
#define NVS_COUNTED_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

enum nvs_counted_kind {
	NVS_COUNTED_POINTER, /* CUdeviceptr */
	NVS_COUNTED_HANDLE,  /* CUmemGenericAllocationHandle; belongs to no context */
	NVS_COUNTED_ARRAY,   /* CUarray */
	NVS_COUNTED_MIPMAP,  /* CUmipmappedArray */
};

/* Before the driver is asked: CUDA_ERROR_OUT_OF_MEMORY when the quota or the card says no. */
CUresult nvs_counted_ask(CUdevice device, uint64_t bytes);

/* After the driver answered `result`: remember what it made (the 64-bit value at `made`), or take the count back.
 * Returns `result`. */
CUresult nvs_counted_confirm(
	CUresult result, enum nvs_counted_kind kind, const void *made, CUdevice device, uint64_t bytes);

/* cuMemFree of a counted pointer. False when it is not one; else `result` is the driver's answer. */
bool nvs_counted_free(CUdeviceptr p, CUresult *result);

/* cuMemCreate of memory that stays the driver's, and cuMemRelease of any handle of the driver's. */
CUresult nvs_counted_create(
	CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, unsigned long long flags);
CUresult nvs_counted_release(CUmemGenericAllocationHandle handle);

void nvs_counted_context_gone(CUcontext context);
void nvs_counted_after_fork(void);

#endif
