/* Physical memory behind an address range that never changes: reserved address space, filled with chunks of device
 * memory by the driver's virtual-memory API. A backing is the unit that is counted, and the one that moves when memory
 * is moved. */
#ifndef NVS_BACKING_H
#define NVS_BACKING_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

/* Larger backings are cut into chunks of this size, so that a part can be moved without waiting for the whole. Creating
 * and mapping costs per chunk, not per byte: at this size it is a few percent of the copy that a move needs. */
#define NVS_CHUNK_BYTES (128ull << 20)

struct nvs_chunk {
	CUmemGenericAllocationHandle handle;
	size_t size;
};

struct nvs_backing {
	CUdeviceptr base;
	size_t size; /* a multiple of the granularity: what is counted */
	CUdevice device;
	struct nvs_backing *next, *previous;
	size_t chunk_count;
	struct nvs_chunk chunks[];
};

/* Can this device's memory be backed by us? False: the driver or the card lacks the virtual-memory API. */
bool nvs_backing_supported(CUdevice device);

/* Ask the scheduler for the bytes (rounded up to the granularity), then reserve, create, map and allow access for the
 * device and its peers. On failure nothing is left behind: CUDA_ERROR_OUT_OF_MEMORY, or the driver's error. May block
 * for a round trip to the scheduler. */
CUresult nvs_backing_create(CUdevice device, size_t size, struct nvs_backing **out);

/* No work may use the memory any more. Gives back memory, address and count. */
void nvs_backing_destroy(struct nvs_backing *backing);

/* `accessor` may use the memory of `owner`, now and in later backings. */
CUresult nvs_backing_allow_peer(CUdevice owner, CUdevice accessor);

void nvs_backing_after_fork(void);

#endif
