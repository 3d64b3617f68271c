/* Allocations up to 1 MiB share slabs of 2 MiB, the smallest piece of memory that the card maps. Inside a slab a binary
 * buddy system hands out powers of two from 512 bytes, so that one slab serves all sizes, every address is aligned to
 * its size, and neighbours merge again when they are freed. */
#ifndef NVS_SLAB_H
#define NVS_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define NVS_SLAB_BYTES (2u << 20)
#define NVS_SLAB_UNIT 512u
#define NVS_SLAB_ORDERS 13 /* 512 bytes << 12 = the whole slab */
#define NVS_SLAB_LARGEST (NVS_SLAB_BYTES / 2)

/* ---- one slab's pieces: pure, no lock ---- */

/* A complete binary tree over the units. Each node holds 1 + the order of the largest free piece below it, 0 for none.
 */
struct nvs_buddy {
	uint8_t largest[2u << (NVS_SLAB_ORDERS - 1)];
};

void nvs_buddy_init(struct nvs_buddy *buddy);
/* The offset of a free piece that holds `size` bytes, marked as taken; -1 when there is none. */
int32_t nvs_buddy_take(struct nvs_buddy *buddy, size_t size);
/* Give back a piece that nvs_buddy_take returned for this size. */
void nvs_buddy_give(struct nvs_buddy *buddy, uint32_t offset, size_t size);
/* Order of the smallest piece that holds `size` bytes. */
unsigned nvs_buddy_order(size_t size);

/* ---- the slabs of all devices ---- */

struct nvs_slab;

/* A piece of `size` (1 .. NVS_SLAB_LARGEST) bytes from the slabs that are there. False when none has room. */
bool nvs_slab_take(CUdevice device, size_t size, CUdeviceptr *p, struct nvs_slab **slab);
/* The same from a new slab. May block for a round trip to the scheduler. */
CUresult nvs_slab_grow(CUdevice device, size_t size, CUdeviceptr *p, struct nvs_slab **slab);
/* No work may use the piece any more. An empty slab is given back, except for one per device. */
void nvs_slab_give(struct nvs_slab *slab, CUdeviceptr p, size_t size);
/* Give back the spare slab of the device. False when there is none. */
bool nvs_slab_trim(CUdevice device);

void nvs_slab_after_fork(void);

#endif
