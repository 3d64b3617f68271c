/* Memory behind an address range that never changes. A backing is the unit that is counted, a chunk the unit that moves
 * between the card and the host. Two backends: memory of our own (mapped.c), and the driver's unified memory
 * (unified.c).
 */
#ifndef NVS_BACKING_H
#define NVS_BACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ranges.h"
#include "cuda_abi.h"

/* Larger backings are cut into chunks of this size, so that a part can be moved without waiting for the whole. Creating
 * and mapping costs per chunk, not per byte: at this size it is a few percent of the copy that a move needs. */
extern const size_t nvs_chunk_bytes __attribute__((visibility("hidden")));

/* Where a chunk's contents are, and whether its addresses work. */
enum nvs_chunk_state {
	NVS_CHUNK_FRESH, /* not mapped; nothing was ever written */
	NVS_CHUNK_HOST,  /* not mapped; the contents are in its buffer */
	NVS_CHUNK_GPU,   /* mapped; what the buffer holds, if there is one, is old */
	NVS_CHUNK_BOTH,  /* mapped, and not written since: it can go without a copy */
	NVS_CHUNK_OUT,   /* on its way to the host */
	NVS_CHUNK_IN,    /* on its way to the card */
};

struct nvs_host_buffer;

struct nvs_chunk {
	CUmemGenericAllocationHandle handle; /* while mapped */
	size_t size;
	/* Guarded by residency.c's lock. */
	enum nvs_chunk_state state;
	bool filled;  /* the buffer holds the contents (HOST, BOTH, on the way); false: there are none */
	bool blocked; /* the host has no room for it: counts as pinned, as does: */
	bool held;    /* others know the memory itself, not only its address: it stays */
	struct nvs_host_buffer *buffer; /* set by the mover only */
};

static inline bool nvs_chunk_is_mapped(const struct nvs_chunk *chunk)
{
	return chunk->state == NVS_CHUNK_GPU || chunk->state == NVS_CHUNK_BOTH;
}

/* Where the application itself has mapped the memory of a backing, from its start on, and who may use it there. */
struct nvs_view {
	struct nvs_range at;
	CUmemAccessDesc *access;
	size_t access_count;
	struct nvs_view *next;
};

struct nvs_backing;

struct nvs_backend {
	/* The driver may move pages by itself: they need no buffers of ours, and no place on the card to be usable. */
	bool is_unified;
	/* Addresses, with memory on the card behind them, or without (the mover brings it); made known to residency.c.
	 * On failure nothing is left behind. */
	CUresult (*create)(struct nvs_backing *backing, bool resident);
	/* Gives all of it back. residency.c has forgotten it. */
	void (*destroy)(struct nvs_backing *backing);
	/* For the mover. Memory on the card for a chunk; on failure nothing is left behind. */
	CUresult (*bring)(struct nvs_backing *backing, size_t index);
	/* Its contents, to or from the host. */
	CUresult (*copy)(struct nvs_backing *backing, size_t index, bool out, CUstream stream);
	/* Take it off the card. */
	void (*take)(struct nvs_backing *backing, size_t index);
};

extern const struct nvs_backend nvs_mapped __attribute__((visibility("hidden")));
extern const struct nvs_backend nvs_unified __attribute__((visibility("hidden")));

struct nvs_backing {
	const struct nvs_backend *backend;
	CUdeviceptr base;
	size_t size; /* a multiple of the granularity: what is counted */
	CUdevice device;
	bool shared;     /* a slab: many small allocations, the last to go */
	bool leaving;    /* is being freed. Guarded by residency.c's lock, as are the next two and the links */
	unsigned fixed;  /* not to be moved while this is not 0: its views change */
	unsigned lent;   /* not to be freed while this is not 0: its memory is being given to another process */
	size_t promised; /* bytes of host memory set aside for it that no buffer has taken yet */
	struct nvs_backing *next, *previous;
	CUmemAllocationProp prop; /* what its memory is made as */
	struct nvs_view *views;   /* changed only while it is fixed */
	size_t chunk_count;
	struct nvs_chunk chunks[];
};

static inline CUdeviceptr nvs_chunk_address(const struct nvs_backing *backing, size_t index)
{
	return backing->base + index * nvs_chunk_bytes;
}

/* Can this device's memory be backed by us? False: the driver or the card can do neither. */
bool nvs_backing_supported(CUdevice device);

/* Ask the scheduler for the bytes (rounded up to the granularity). They are usable by the device and its peers when
 * this returns, or, if they may not be on the card now, when the gate is open. On failure nothing is left behind:
 * CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_SUPPORTED where nvs_backing_supported() says no, or the driver's error. May
 * block for a round trip to the scheduler. */
CUresult nvs_backing_create(CUdevice device, size_t size, bool shared, struct nvs_backing **out);
/* The same for memory that the application describes itself. nvs_backing_takes() says yes to it. */
CUresult nvs_backing_create_as(const CUmemAllocationProp *prop, size_t size, struct nvs_backing **out);
/* Can memory of backings on this device be given to other processes? */
bool nvs_backing_exportable(CUdevice device);
/* Is such memory, of this size, what a backing of ours can stand for, and can it be moved? */
bool nvs_backing_takes(const CUmemAllocationProp *prop, size_t size);

/* No work may use the memory any more. Gives back memory, address and count, wherever the contents are; waits for a
 * chunk that is on its way. */
void nvs_backing_destroy(struct nvs_backing *backing);

/* `accessor` may use the memory of `owner`, now and in later backings. */
CUresult nvs_backing_allow_peer(CUdevice owner, CUdevice accessor);

void nvs_backing_after_fork(void);

/* Make, map and open the smallest piece of memory that the application describes itself, and undo it. Returns how
 * large that was, 0: the driver would not do it. */
size_t nvs_mapped_try(const CUmemAllocationProp *prop);
/* Memory that the application describes itself, as the view shows it: map what is there of a chunk, with the access
 * set so far; on failure nothing is left behind. And the opposite. The backing is fixed, or its chunk on the way. */
CUresult nvs_mapped_show(const struct nvs_backing *backing, const struct nvs_view *view, size_t index);
CUresult nvs_mapped_hide(const struct nvs_backing *backing, const struct nvs_view *view, size_t index);

/* How much of a chunk a view shows. */
static inline size_t nvs_view_part(const struct nvs_backing *backing, const struct nvs_view *view, size_t index)
{
	size_t before = index * nvs_chunk_bytes, size = backing->chunks[index].size;
	if (view->at.size <= before)
		return 0;
	return view->at.size - before < size ? view->at.size - before : size;
}

/* ---- for the backends ---- */

/* Does the driver make descriptors of this device's memory? */
bool nvs_mapped_exportable(CUdevice device);
/* 0: the device has no virtual-memory API. */
size_t nvs_mapped_granularity(CUdevice device);
void nvs_mapped_after_fork(void);
bool nvs_unified_supported(CUdevice device);

#endif
