/* Stream-ordered allocation over memory of our own: cuMemAllocAsync, cuMemFreeAsync and pools.
 *
 * The driver's pool handle stays what the application knows; nothing is ever allocated from it. Behind it stands a heap
 * of segments, each an ordinary backing, so that it moves and is counted like any other memory. pools.c knows the
 * handles, ordered.c hands blocks out and takes them back, lanes.c knows when the work is over that may still use a
 * freed block. */
#ifndef NVS_ORDERED_H
#define NVS_ORDERED_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "memory/ordered/blocks.h"
#include "memory/table.h"

/* ---- what the wrappers and the rest of memory/ call ---- */

/* cuMemAllocAsync (`pool` NULL: the current one of the stream's device) and cuMemAllocFromPoolAsync. `stream` has the
 * per-thread variants' meaning spelled out (NVS_PER_THREAD). `otherwise` has the answer where this is the driver's
 * business. */
CUresult nvs_ordered_alloc(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream,
	CUresult (*otherwise)(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream));
/* cuMemFreeAsync. `otherwise`: not ours, or the stream captures. */
CUresult nvs_ordered_free_async(CUdeviceptr p, CUstream stream, CUresult (*otherwise)(CUdeviceptr p, CUstream stream));
/* cuMemFree. False: not ours. */
bool nvs_ordered_free(CUdeviceptr p, CUresult *result);

/* Copies what is known of the live block that holds `p`, as an allocation. False when there is none. */
bool nvs_ordered_find(CUdeviceptr p, struct nvs_allocation *copy);

/* Give back segments that were not used for a while. Cheap when there is nothing to do. */
void nvs_ordered_tidy(void);
/* Memory is short: wait at most so long for the work that may still use free blocks, then give back every segment of
 * the device without a live one. False when nothing changed. */
bool nvs_ordered_give_up(CUdevice device, uint32_t deadline_ms);

/* After the driver destroyed a context, and with it the work and the events in it. */
void nvs_ordered_context_gone(CUcontext context, CUdevice device);

void nvs_ordered_after_fork(void);

/* ---- between the three files ---- */

struct nvs_pool {
	CUmemoryPool handle; /* NULL: destroyed; it ends with its last block */
	CUdevice device;
	bool ours;
	uint64_t threshold; /* bytes to keep */
	uint64_t limit;     /* bytes of all segments at most; 0: none */
	struct nvs_heap heap;
	struct nvs_shelf common; /* no work uses these: for everybody */
	struct nvs_shelf parked; /* until a drain */
	struct nvs_lane *lanes;  /* what was freed in streams */
	struct nvs_pool *next;
};

/* Which stream: a handle (kind 0), or a default stream of a context. */
struct nvs_stream_key {
	uintptr_t object;
	uint64_t kind;
};

/* A stream that allocates or frees. */
struct nvs_order {
	struct nvs_stream_key key;
	CUcontext context;
	CUdevice device;
	CUstream handle; /* an event in it follows all that the stream does: its own handle, or NULL for the legacy one
			  */
	struct nvs_lane *lanes; /* by pool */
	struct nvs_order *next;
};

/* What was freed in one stream into one pool: at once for that stream, for others after an event. */
struct nvs_lane {
	struct nvs_pool *pool;
	struct nvs_order *order; /* NULL: the stream is gone; the event, if pending, is its last */
	CUcontext context;
	CUstream handle;
	struct nvs_shelf shelf;
	CUevent event;    /* made at first use */
	bool pending;     /* the event is recorded and was not yet seen finished; guarded by nvs_streams_lock, as is: */
	uint64_t covered; /* the epoch up to which the event stands for what was freed */
	struct nvs_lane *next;      /* of the pool */
	struct nvs_lane *of_stream; /* next of the stream */
};

/* Guards blocks, pools, lanes and orders; taken inside nvs_streams_lock where both are held, and never across a call to
 * the driver. Lanes and orders are removed with both held. */
extern pthread_mutex_t nvs_ordered_lock __attribute__((visibility("hidden")));
extern struct nvs_space nvs_ordered_space __attribute__((visibility("hidden")));
extern uint64_t nvs_ordered_epoch __attribute__((visibility("hidden")));

static inline struct nvs_pool *nvs_pool_around(const struct nvs_block *block)
{
	return (struct nvs_pool *)((char *)block->segment->heap - offsetof(struct nvs_pool, heap));
}

/* pools.c */
/* The pool behind a handle, made known now if need be; NULL without host memory. */
struct nvs_pool *nvs_pool_of(CUmemoryPool handle);
/* The pool that cuMemAllocAsync uses on a device; NULL: the driver has none. */
struct nvs_pool *nvs_pool_current(CUdevice device);
/* The same two as far as they are known without asking the driver. The lock is held. */
struct nvs_pool *nvs_pool_known(CUmemoryPool handle);
struct nvs_pool *nvs_pool_current_known(CUdevice device);
/* Pools are linked for ever; the list may be walked without the lock. */
struct nvs_pool *nvs_pool_first(void);
void nvs_pools_after_fork(void);

/* ordered.c */
/* Let everybody have the free blocks that no work uses any more; wait at most so long for the rest. */
void nvs_pool_reap(struct nvs_pool *pool, uint32_t deadline_ms);
/* Give back free segments that no work uses, but keep so many bytes. `idle_only`: those not used for a while. True when
 * there was one. */
bool nvs_pool_release(struct nvs_pool *pool, uint64_t keep, bool idle_only);

/* lanes.c. What a pair of calls always needs is here, so that it costs no calls of our own. */
#define NVS_ORDER_BUCKETS 256u
extern struct nvs_order *nvs_orders[NVS_ORDER_BUCKETS] __attribute__((visibility("hidden")));

static inline struct nvs_order **nvs_order_bucket(struct nvs_stream_key key)
{
	uint64_t mixed = ((uint64_t)key.object / 16 + key.kind) * 0x9e3779b97f4a7c15ull;
	return &nvs_orders[mixed >> 56];
}

/* The lock is held. NULL: not known yet. */
static inline struct nvs_order *nvs_order_find(struct nvs_stream_key key)
{
	struct nvs_order *order = *nvs_order_bucket(key);
	while (order != NULL && (order->key.object != key.object || order->key.kind != key.kind))
		order = order->next;
	return order;
}

/* The key of a default stream. False: there is no current context. */
bool nvs_default_stream_key(CUstream stream, struct nvs_stream_key *key);

static inline bool nvs_stream_key(CUstream stream, struct nvs_stream_key *key)
{
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return nvs_default_stream_key(stream, key);
	*key = (struct nvs_stream_key){.object = (uintptr_t)stream};
	return true;
}

/* Locks and finds, or makes, the order of a stream. NULL: not a stream, or no host memory; then nothing is locked. */
struct nvs_order *nvs_order_make(CUstream stream, struct nvs_stream_key key);

static inline struct nvs_order *nvs_order_lock(CUstream stream, struct nvs_stream_key key)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_order *order = nvs_order_find(key);
	if (__builtin_expect(order != NULL, 1))
		return order;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return nvs_order_make(stream, key);
}

/* The lock is held. NULL without host memory. */
struct nvs_lane *nvs_lane_make(struct nvs_order *order, struct nvs_pool *pool);

static inline struct nvs_lane *nvs_lane_of(struct nvs_order *order, struct nvs_pool *pool)
{
	struct nvs_lane *lane = order->lanes;
	while (lane != NULL && lane->pool != pool)
		lane = lane->of_stream;
	return __builtin_expect(lane != NULL, 1) ? lane : nvs_lane_make(order, pool);
}

/* Look which work is over, and let everybody have what it used. Waits for nothing. */
void nvs_lanes_reap(struct nvs_pool *pool);
/* Wait for all work of the process; what was freed before becomes everybody's. False when it could not be had. */
bool nvs_lanes_drain(uint32_t deadline_ms);
/* The context is destroyed, its work over, its events gone. */
void nvs_lanes_context_gone(CUcontext context);
void nvs_lanes_after_fork(void);

#endif
