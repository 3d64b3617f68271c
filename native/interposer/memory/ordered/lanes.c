/* When is the work over that may still use a freed block?
 *
 * A block belongs to the stream it was freed in: whatever that stream does later comes after the free, so it may have
 * the block again at once, without a call to the driver. Somebody else may have it when an event that was recorded in
 * that stream after the free has passed. Such an event is recorded only when somebody asks for the memory; one stands
 * for all that was freed in the stream before. Blocks carry the epoch of their free, an event the one up to which it
 * counts.
 *
 * No other thread can name a thread's own default stream, so the event goes into the legacy stream, which follows it.
 */
#include "memory/ordered/ordered.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gate/gate.h"
#include "gate/streams.h"
#include "gate/upcalls.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

#define KIND_HANDLE 0u
#define KIND_LEGACY 1u
#define KIND_THREAD 2u /* plus the number of the thread */

pthread_mutex_t nvs_ordered_lock = PTHREAD_MUTEX_INITIALIZER;
struct nvs_space nvs_ordered_space;
uint64_t nvs_ordered_epoch = 1;

struct nvs_order *nvs_orders[NVS_ORDER_BUCKETS];

/* ---- streams ---- */

/* Never reused, other than a thread's own id. */
static uint64_t thread_number(void)
{
	static _Atomic uint64_t threads;
	static __thread uint64_t number __attribute__((tls_model("initial-exec")));
	if (number == 0)
		number = atomic_fetch_add(&threads, 1) + 1;
	return number;
}

bool nvs_default_stream_key(CUstream stream, struct nvs_stream_key *key)
{
	bool own = stream == CU_STREAM_PER_THREAD;
	CUcontext context = nvs_current_context();
	*key = (struct nvs_stream_key){(uintptr_t)context, own ? KIND_THREAD + thread_number() : KIND_LEGACY};
	return context != NULL;
}

static struct nvs_order *new_order(CUstream stream, struct nvs_stream_key key)
{
	struct nvs_context *context = nvs_context_of(stream);
	struct nvs_order *order = context != NULL ? calloc(1, sizeof(*order)) : NULL;
	if (order == NULL)
		return NULL;
	*order = (struct nvs_order){.key = key,
		.context = atomic_load(&context->handle),
		.device = atomic_load(&context->device),
		.handle = key.kind == KIND_HANDLE ? stream : NULL};
	return order;
}

struct nvs_order *nvs_order_make(CUstream stream, struct nvs_stream_key key)
{
	struct nvs_order *made = new_order(stream, key);
	if (made == NULL)
		return NULL;
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_order *order = nvs_order_find(key);
	if (order != NULL) {
		free(made);
		return order;
	}
	struct nvs_order **bucket = nvs_order_bucket(key);
	made->next = *bucket;
	*bucket = made;
	return made;
}

struct nvs_lane *nvs_lane_make(struct nvs_order *order, struct nvs_pool *pool)
{
	struct nvs_lane *lane = calloc(1, sizeof(*lane));
	if (lane == NULL)
		return NULL;
	lane->pool = pool;
	lane->order = order;
	lane->context = order->context;
	lane->handle = order->handle;
	lane->next = pool->lanes;
	pool->lanes = lane;
	lane->of_stream = order->lanes;
	order->lanes = lane;
	return lane;
}

/* Both locks are held. */
static void forget_order(struct nvs_order *order)
{
	struct nvs_order **link = nvs_order_bucket(order->key);
	while (*link != order)
		link = &(*link)->next;
	*link = order->next;
}

/* Both locks are held, and nothing is on its shelf. The stream goes with its last lane. */
static void drop_lane(struct nvs_lane *lane)
{
	struct nvs_lane **link = &lane->pool->lanes;
	while (*link != lane)
		link = &(*link)->next;
	*link = lane->next;
	if (lane->order != NULL) {
		for (link = &lane->order->lanes; *link != lane; link = &(*link)->of_stream)
			;
		*link = lane->of_stream;
		if (lane->order->lanes == NULL) {
			forget_order(lane->order);
			free(lane->order);
		}
	}
	free(lane);
}

/* ---- events. nvs_streams_lock is held, the lane's context current, the thread in relaxed capture mode ---- */

/* An event in a stream that captures would become part of its graph; one in the legacy stream breaks any capture. */
static bool may_record(const struct nvs_lane *lane)
{
	if (atomic_load(&nvs_captures) == 0)
		return true;
	return lane->handle != NULL && !nvs_stream_capturing(lane->handle);
}

static void record_lane(struct nvs_lane *lane)
{
	if (!may_record(lane))
		return;
	if (lane->event == NULL && nvs_real.cuEventCreate(&lane->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
		lane->event = NULL;
		return;
	}
	pthread_mutex_lock(&nvs_ordered_lock);
	uint64_t covered = nvs_ordered_epoch++;
	pthread_mutex_unlock(&nvs_ordered_lock);
	lane->pending = nvs_real.cuEventRecord(lane->event, lane->handle) == CUDA_SUCCESS;
	lane->covered = covered;
}

/* What the event stands for is everybody's if it has passed. An error is one that ended the context's work. */
static void ask_lane(struct nvs_lane *lane)
{
	if (!lane->pending || nvs_real.cuEventQuery(lane->event) == CUDA_ERROR_NOT_READY)
		return;
	lane->pending = false;
	pthread_mutex_lock(&nvs_ordered_lock);
	nvs_shelf_pour(&lane->shelf, &lane->pool->common, lane->covered, 0);
	pthread_mutex_unlock(&nvs_ordered_lock);
}

static uint64_t bytes_on(const struct nvs_lane *lane)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	uint64_t bytes = lane->shelf.bytes;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return bytes;
}

/* Nothing tells the end of a thread, so what its own default stream has no use for is dropped; it comes anew. */
static bool is_over(const struct nvs_lane *lane)
{
	bool lasts = lane->order != NULL && lane->order->key.kind <= KIND_LEGACY;
	return !lasts && !lane->pending && lane->shelf.bytes == 0;
}

static void reap_lane(struct nvs_lane *lane)
{
	CUcontext popped;
	if (nvs_real.cuCtxPushCurrent_v2(lane->context) != CUDA_SUCCESS)
		return;
	ask_lane(lane);
	if (!lane->pending && lane->order != NULL && bytes_on(lane) > 0) {
		record_lane(lane);
		ask_lane(lane);
	}
	CUevent event = NULL;
	pthread_mutex_lock(&nvs_ordered_lock);
	if (is_over(lane)) {
		event = lane->event;
		drop_lane(lane);
	}
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (event != NULL)
		nvs_real.cuEventDestroy_v2(event);
	nvs_real.cuCtxPopCurrent_v2(&popped);
}

void nvs_lanes_reap(struct nvs_pool *pool)
{
	pthread_mutex_lock(&nvs_streams_lock);
	CUstreamCaptureMode mode = nvs_relax();
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_lane *lane = pool->lanes; /* others may only put new ones before it */
	pthread_mutex_unlock(&nvs_ordered_lock);
	while (lane != NULL) {
		struct nvs_lane *next = lane->next;
		reap_lane(lane);
		lane = next;
	}
	nvs_unrelax(mode);
	pthread_mutex_unlock(&nvs_streams_lock);
}

bool nvs_lanes_drain(uint32_t deadline_ms)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	uint64_t before = nvs_ordered_epoch++;
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (!nvs_gate_drain(deadline_ms))
		return false;
	pthread_mutex_lock(&nvs_ordered_lock);
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next) {
		nvs_shelf_pour(&pool->parked, &pool->common, before, 0);
		for (struct nvs_lane *lane = pool->lanes; lane != NULL; lane = lane->next)
			nvs_shelf_pour(&lane->shelf, &pool->common, before, 0);
	}
	pthread_mutex_unlock(&nvs_ordered_lock);
	return true;
}

/* ---- what ends ---- */

/* The last event of its stream; without one, a drain has to do, one that has not begun yet. */
static void end_lane(struct nvs_lane *lane)
{
	lane->pending = false;
	if (bytes_on(lane) > 0)
		record_lane(lane);
	pthread_mutex_lock(&nvs_ordered_lock);
	if (!lane->pending)
		nvs_shelf_pour(&lane->shelf, &lane->pool->parked, UINT64_MAX, nvs_ordered_epoch);
	lane->order = NULL;
	pthread_mutex_unlock(&nvs_ordered_lock);
}

void nvs_ordered_stream_ends(CUstream stream)
{
	CUcontext popped;
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_order *order = nvs_order_find((struct nvs_stream_key){(uintptr_t)stream, KIND_HANDLE});
	if (order != NULL)
		forget_order(order);
	pthread_mutex_unlock(&nvs_ordered_lock);
	if (order == NULL)
		return;
	CUstreamCaptureMode mode = nvs_relax();
	bool current = nvs_real.cuCtxPushCurrent_v2(order->context) == CUDA_SUCCESS;
	for (struct nvs_lane *lane = order->lanes; lane != NULL; lane = lane->of_stream)
		end_lane(lane);
	if (current)
		nvs_real.cuCtxPopCurrent_v2(&popped);
	nvs_unrelax(mode);
	free(order);
}

void nvs_lanes_context_gone(CUcontext context)
{
	pthread_mutex_lock(&nvs_streams_lock);
	pthread_mutex_lock(&nvs_ordered_lock);
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next) {
		for (struct nvs_lane *lane = pool->lanes, *next; lane != NULL; lane = next) {
			next = lane->next;
			if (lane->context != context)
				continue;
			nvs_shelf_pour(&lane->shelf, &pool->common, UINT64_MAX, 0);
			drop_lane(lane);
		}
	}
	for (unsigned i = 0; i < NVS_ORDER_BUCKETS; i++) {
		for (struct nvs_order **link = &nvs_orders[i]; *link != NULL;) {
			struct nvs_order *order = *link;
			if (order->context != context) {
				link = &order->next;
				continue;
			}
			*link = order->next;
			free(order);
		}
	}
	pthread_mutex_unlock(&nvs_ordered_lock);
	pthread_mutex_unlock(&nvs_streams_lock);
}

/* What the parent's threads were changing at the fork cannot be walked; it is left behind. */
void nvs_lanes_after_fork(void)
{
	pthread_mutex_init(&nvs_ordered_lock, NULL);
	memset(&nvs_ordered_space, 0, sizeof(nvs_ordered_space));
	memset(nvs_orders, 0, sizeof(nvs_orders));
}
