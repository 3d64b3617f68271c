#include "memory/ordered/ordered.h"

#include <stdlib.h>

#include "base/clock.h"
#include "gate/streams.h"
#include "memory/memory.h"
#include "memory/swap/backing.h"

/* Segments double what a pool has, so that a small user takes little and a large one few; larger requests get a segment
 * of just their size. */
#define SMALLEST_SEGMENT (2ull << 20)
#define LARGEST_SEGMENT (64ull << 20)

/* A segment goes back when nothing was taken from it for one whole period at least: a loop that allocates, frees and
 * synchronises faster than that keeps its memory. The clock is looked at once in so many calls. */
#define PERIOD_NS NVS_NS_PER_S
#define CALLS_PER_LOOK 64u

/* As for other frees (memory.c): small ones share a drain, and none waits for ever. */
#define FREE_WAIT_MS 1000
#define PARKED_BLOCKS 64u
#define PARKED_BYTES (1ull << 20)

static uint32_t calls_since_look; /* since the last look at the clock; all guarded by nvs_ordered_lock */
static uint64_t period_since;
static uint64_t parked_blocks, parked_block_bytes; /* since the last drain that was asked for */

/* ---- giving segments back ---- */

/* The lock is held. */
static struct nvs_segment *find_releasable(struct nvs_pool *pool, uint64_t keep, bool idle_only)
{
	for (struct nvs_segment *segment = pool->heap.segments; segment != NULL; segment = segment->next) {
		bool idle = segment->touched + 1 < pool->heap.period;
		if (nvs_segment_is_free(segment, &pool->common) && (idle || !idle_only) &&
			pool->heap.reserved - segment->size >= keep)
			return segment;
	}
	return NULL;
}

/* These calls are nobody's business whose streams capture; cuMemAllocAsync is allowed meanwhile. */
static void destroy_segment(struct nvs_backing *backing)
{
	CUstreamCaptureMode mode = nvs_relax();
	nvs_backing_destroy(backing);
	nvs_unrelax(mode);
}

static CUresult create_segment(CUdevice device, uint64_t size, struct nvs_backing **backing)
{
	CUstreamCaptureMode mode = nvs_relax();
	CUresult result = nvs_backing_create(device, size, false, backing);
	nvs_unrelax(mode);
	return result;
}

bool nvs_pool_release(struct nvs_pool *pool, uint64_t keep, bool idle_only)
{
	for (bool released = false;; released = true) {
		pthread_mutex_lock(&nvs_ordered_lock);
		struct nvs_segment *segment = find_releasable(pool, keep, idle_only);
		struct nvs_backing *backing = segment != NULL ? segment->backing : NULL;
		if (segment != NULL)
			nvs_segment_remove(segment);
		pthread_mutex_unlock(&nvs_ordered_lock);
		if (backing == NULL)
			return released;
		destroy_segment(backing);
	}
}

/* The lock is held. Is there a segment to give back, if the work is over that may use it? */
static bool has_idle(const struct nvs_pool *pool)
{
	for (const struct nvs_segment *segment = pool->heap.segments; segment != NULL; segment = segment->next)
		if (segment->live == 0 && segment->touched + 1 < pool->heap.period &&
			pool->heap.reserved - segment->size >= pool->threshold)
			return true;
	return false;
}

/* The lock is held. True when a period has ended. */
static bool period_ends(void)
{
	uint64_t now = nvs_now_ns();
	if (now - period_since < PERIOD_NS)
		return false;
	period_since = now;
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next)
		pool->heap.period++;
	return true;
}

static bool is_of(struct nvs_pool *pool, CUdevice device)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	bool is = pool->device == device;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return is;
}

/* Bytes that are free, but may be in use by work. */
static uint64_t under_work(const struct nvs_pool *pool)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	uint64_t bytes = pool->heap.reserved - pool->heap.used - pool->common.bytes;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return bytes;
}

/* Only asks. */
static void reap_now(struct nvs_pool *pool)
{
	nvs_lanes_reap(pool);
	pthread_mutex_lock(&nvs_ordered_lock);
	bool parked = pool->parked.bytes > 0;
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (parked)
		nvs_lanes_drain(0);
}

void nvs_pool_reap(struct nvs_pool *pool, uint32_t deadline_ms)
{
	uint64_t pause = 0, deadline = nvs_now_ns() + deadline_ms * NVS_NS_PER_MS;
	for (reap_now(pool); under_work(pool) > 0 && nvs_now_ns() < deadline; reap_now(pool))
		nvs_sleep_growing(&pause);
}

static void release_idle(void)
{
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next) {
		pthread_mutex_lock(&nvs_ordered_lock);
		bool wanted = has_idle(pool);
		uint64_t keep = pool->threshold;
		pthread_mutex_unlock(&nvs_ordered_lock);
		if (!wanted)
			continue;
		reap_now(pool);
		nvs_pool_release(pool, keep, true);
	}
}

void nvs_ordered_tidy(void)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	calls_since_look = 0;
	bool due = period_ends();
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (due)
		release_idle();
}

static bool any_under_work(CUdevice device)
{
	uint64_t bytes = 0;
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next)
		if (is_of(pool, device))
			bytes += under_work(pool);
	return bytes > 0;
}

bool nvs_ordered_give_up(CUdevice device, uint32_t deadline_ms)
{
	bool changed = any_under_work(device) && nvs_lanes_drain(deadline_ms);
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next)
		if (is_of(pool, device))
			changed = nvs_pool_release(pool, 0, false) || changed;
	return changed;
}

/* ---- allocating ---- */

/* The lock is held. */
static inline __attribute__((always_inline)) struct nvs_block *take_block(
	struct nvs_pool *pool, struct nvs_order *order, size_t n)
{
	struct nvs_lane *lane = nvs_lane_of(order, pool);
	struct nvs_block *block = lane != NULL ? nvs_block_take(&pool->heap, &lane->shelf, n) : NULL;
	return block != NULL ? block : nvs_block_take(&pool->heap, &pool->common, n);
}

/* The same from pieces of both, after a look at what has become everybody's. False: not there. */
static bool take_together(struct nvs_pool *pool, CUstream stream, struct nvs_stream_key key, size_t n, CUdeviceptr *p)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	bool enough = pool->heap.reserved - pool->heap.used >= n;
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (!enough)
		return false;
	reap_now(pool);
	struct nvs_order *order = nvs_order_lock(stream, key);
	if (order == NULL)
		return false;
	struct nvs_block *block = take_block(pool, order, n);
	struct nvs_lane *lane = block == NULL ? nvs_lane_of(order, pool) : NULL;
	if (lane != NULL)
		block = nvs_block_gather(&pool->heap, &lane->shelf, &pool->common, n);
	if (block != NULL)
		*p = block->base;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return block != NULL;
}

static uint64_t segment_size(struct nvs_pool *pool, uint64_t n)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	uint64_t size = pool->heap.reserved;
	pthread_mutex_unlock(&nvs_ordered_lock);
	size = size < SMALLEST_SEGMENT ? SMALLEST_SEGMENT : size > LARGEST_SEGMENT ? LARGEST_SEGMENT : size;
	return n > size / 2 ? n : size;
}

static bool is_within_limit(struct nvs_pool *pool, uint64_t size)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	bool within = pool->limit == 0 || (size <= pool->limit && pool->heap.reserved <= pool->limit - size);
	pthread_mutex_unlock(&nvs_ordered_lock);
	return within;
}

/* A new segment, and the block from it. */
static CUresult grow_pool(struct nvs_pool *pool, uint64_t size, size_t n, CUdeviceptr *p)
{
	struct nvs_backing *backing;
	if (!is_within_limit(pool, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = create_segment(pool->device, size, &backing);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_segment *segment =
		nvs_segment_add(&pool->heap, backing, backing->base, backing->size, &pool->common);
	if (segment != NULL)
		*p = nvs_block_take(&pool->heap, &pool->common, n)->base;
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (segment == NULL)
		destroy_segment(backing);
	return segment != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static __attribute__((noinline, cold)) CUresult allocate_slowly(
	struct nvs_pool *pool, CUstream stream, struct nvs_stream_key key, size_t n, CUdeviceptr *p)
{
	if (take_together(pool, stream, key, n, p))
		return CUDA_SUCCESS;
	uint64_t generous = segment_size(pool, n);
	CUresult result = grow_pool(pool, generous, n, p);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && generous > n)
		result = grow_pool(pool, n, n, p);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && nvs_memory_give_up_spares(pool->device))
		result = take_together(pool, stream, key, n, p) ? CUDA_SUCCESS : grow_pool(pool, n, n, p);
	return result;
}

/* Work that a stream records into a graph is not done now, and what it allocates belongs to the graph. */
static inline bool is_capturing(CUstream stream)
{
	return __builtin_expect(atomic_load_explicit(&nvs_captures, memory_order_relaxed) != 0, 0) &&
	       nvs_stream_capturing(stream);
}

/* The pool of a request, asked for. NULL: the driver's business. The lock is held after anything else. */
static __attribute__((noinline, cold)) struct nvs_pool *lock_unknown_pool(
	CUmemoryPool handle, CUstream stream, struct nvs_stream_key key, struct nvs_order **order)
{
	CUdevice device = (*order)->device;
	pthread_mutex_unlock(&nvs_ordered_lock);
	struct nvs_pool *pool = handle != NULL ? nvs_pool_of(handle) : nvs_pool_current(device);
	*order = pool != NULL ? nvs_order_lock(stream, key) : NULL;
	return *order != NULL ? pool : NULL;
}

/* The lock is held and given up. */
static bool unlock_and_look(void)
{
	bool look = ++calls_since_look >= CALLS_PER_LOOK;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return look;
}

CUresult nvs_ordered_alloc(CUdeviceptr *p, size_t n, CUmemoryPool handle, CUstream stream,
	CUresult (*otherwise)(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream))
{
	struct nvs_stream_key key;
	if (is_capturing(stream) || !nvs_stream_key(stream, &key))
		return otherwise(p, n, handle, stream);
	struct nvs_order *order = nvs_order_lock(stream, key);
	if (order == NULL)
		return otherwise(p, n, handle, stream);
	struct nvs_pool *pool = handle != NULL ? nvs_pool_known(handle) : nvs_pool_current_known(order->device);
	if (__builtin_expect(pool == NULL, 0) && (pool = lock_unknown_pool(handle, stream, key, &order)) == NULL)
		return otherwise(p, n, handle, stream);
	bool ours = pool->ours;
	struct nvs_block *block = ours ? take_block(pool, order, n) : NULL;
	if (__builtin_expect(block != NULL, 1))
		*p = block->base;
	bool look = unlock_and_look();
	if (!ours)
		return otherwise(p, n, handle, stream);
	CUresult result = block != NULL ? CUDA_SUCCESS : allocate_slowly(pool, stream, key, n, p);
	if (__builtin_expect(look, 0))
		nvs_ordered_tidy();
	return result;
}

/* ---- freeing ---- */

/* The lock is held and given up; there is no live block at `p`. True: but it is inside a segment of ours. */
static __attribute__((noinline, cold)) bool unlock_mistake(CUdeviceptr p, CUresult *result)
{
	bool inside = nvs_segment_around(&nvs_ordered_space, p) != NULL;
	pthread_mutex_unlock(&nvs_ordered_lock);
	*result = CUDA_ERROR_INVALID_VALUE;
	return inside;
}

/* What comes after some frees. Nobody can use a destroyed pool any more, so nothing of it is kept. */
static __attribute__((noinline, cold)) void after_free(struct nvs_pool *pool, bool destroyed)
{
	if (destroyed) {
		reap_now(pool);
		nvs_pool_release(pool, 0, false);
	}
	nvs_ordered_tidy();
}

CUresult nvs_ordered_free_async(CUdeviceptr p, CUstream stream, CUresult (*otherwise)(CUdeviceptr p, CUstream stream))
{
	struct nvs_stream_key key;
	CUresult mistake;
	if (is_capturing(stream) || !nvs_stream_key(stream, &key))
		return otherwise(p, stream);
	struct nvs_order *order = nvs_order_lock(stream, key);
	if (order == NULL)
		return otherwise(p, stream);
	struct nvs_block *block = nvs_block_at(&nvs_ordered_space, p);
	if (__builtin_expect(block == NULL, 0))
		return unlock_mistake(p, &mistake) ? mistake : otherwise(p, stream);
	struct nvs_pool *pool = nvs_pool_around(block);
	struct nvs_lane *lane = nvs_lane_of(order, pool);
	/* Without host memory for a lane it waits for a drain. */
	nvs_block_give(block, lane != NULL ? &lane->shelf : &pool->parked, nvs_ordered_epoch);
	bool destroyed = pool->handle == NULL, look = unlock_and_look();
	if (__builtin_expect(destroyed || look, 0))
		after_free(pool, destroyed);
	return CUDA_SUCCESS;
}

bool nvs_ordered_free(CUdeviceptr p, CUresult *result)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_block *block = nvs_block_at(&nvs_ordered_space, p);
	if (block == NULL)
		return unlock_mistake(p, result);
	struct nvs_pool *pool = nvs_pool_around(block);
	parked_blocks++;
	parked_block_bytes += block->size;
	nvs_block_give(block, &pool->parked, nvs_ordered_epoch);
	bool destroyed = pool->handle == NULL;
	bool enough = destroyed || parked_blocks >= PARKED_BLOCKS || parked_block_bytes > PARKED_BYTES;
	if (enough)
		parked_blocks = parked_block_bytes = 0;
	bool look = unlock_and_look();
	if (enough)
		nvs_lanes_drain(FREE_WAIT_MS);
	if (destroyed || look)
		after_free(pool, destroyed);
	*result = CUDA_SUCCESS;
	return true;
}

/* ---- the rest ---- */

bool nvs_ordered_find(CUdeviceptr p, struct nvs_allocation *copy)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	const struct nvs_block *block = nvs_block_around(&nvs_ordered_space, p);
	if (block != NULL)
		*copy = (struct nvs_allocation){.base = block->base,
			.home = block->base,
			.size = block->asked,
			.device = nvs_pool_around(block)->device,
			.id = block->id,
			.backing = block->segment->backing,
			.pool = nvs_pool_around(block)->handle};
	pthread_mutex_unlock(&nvs_ordered_lock);
	return block != NULL;
}

/* The lock is held. */
static void give_all(struct nvs_pool *pool)
{
	nvs_shelf_pour(&pool->parked, &pool->common, UINT64_MAX, 0);
	for (struct nvs_segment *segment = pool->heap.segments; segment != NULL; segment = segment->next)
		for (struct nvs_block *block = segment->first; block != NULL; block = block->after)
			if (block->shelf == NULL) {
				nvs_block_give(block, &pool->common, 0);
				block = segment->first; /* it may be gone, merged into the one before */
			}
}

/* Stream-ordered memory belongs to a device, not to a context; without any context left there nobody can use it. */
void nvs_ordered_context_gone(CUcontext context, CUdevice device)
{
	nvs_lanes_context_gone(context);
	bool last = nvs_context_on(device) == NULL;
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next) {
		if (!is_of(pool, device))
			continue;
		pthread_mutex_lock(&nvs_ordered_lock);
		if (last)
			give_all(pool);
		pthread_mutex_unlock(&nvs_ordered_lock);
		nvs_pool_release(pool, 0, false);
	}
}

void nvs_ordered_after_fork(void)
{
	nvs_lanes_after_fork();
	nvs_pools_after_fork();
	parked_blocks = parked_block_bytes = 0;
}
