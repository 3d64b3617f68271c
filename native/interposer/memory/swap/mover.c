/* One round: finish what has been copied, start what may move, look again shortly. Copies run on the card's two copy
 * engines, a stream for each way, with a few chunks under way at once: while one is copied, the one before is unmapped
 * or the next one mapped. When nothing is left to move, buffers are made for what will have to go the next time. */
#include "memory/swap/mover.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/fatal.h"
#include "base/helper_thread.h"
#include "base/log.h"
#include "gate/streams.h"
#include "link/link.h"
#include "memory/swap/backing.h"
#include "memory/swap/hostmem.h"
#include "memory/swap/residency.h"
#include "nvml/outsiders.h"
#include "resolve/resolve.h"

#define DEPTH 16u                             /* chunks under way in one direction */
#define UNDER_WAY_BYTES (3 * nvs_chunk_bytes) /* or that much: what comes after it waits */
#define POLL_NS (100 * NVS_NS_PER_US)         /* a chunk takes milliseconds */
#define REFUSED_FIRST_NS NVS_NS_PER_MS        /* the card was full: try again after that, then twice as long, */
#define REFUSED_LAST_NS NVS_NS_PER_S          /* up to this */
#define REFUSED_SAY_NS NVS_NS_PER_S
#define STOP_WAIT_NS (100 * NVS_NS_PER_MS)
#define PREPARE_PAUSE_PART 2 /* after a step towards a buffer, a pause of this part of its time */
#define STREAM_NON_BLOCKING 1u

struct job {
	struct nvs_move move;
	CUevent done; /* made at first use */
};

/* The chunks on their way in one direction, in the order in which their copies end. */
struct queue {
	CUstream stream;
	struct job jobs[DEPTH];
	unsigned first, count;
	uint64_t under_way;    /* bytes */
	uint64_t busy_since;   /* when the first of those under way was started, ns */
	uint64_t copied, busy; /* bytes and ns, since the last log line */
};

struct carrier {
	CUcontext context; /* NULL: none chosen */
	struct queue out, in;
	uint64_t refused_at; /* the first time of this want of room, ns; 0: there is none */
	uint64_t retry_at, retry_wait;
	bool refusal_told;
	bool is_lost; /* its context has failed for good */
};

/* The mover's own; others touch it only while it is parked. */
static struct carrier carriers[NVS_MAX_DEVICES];
static struct nvs_host_buffer *in_making;

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake, parking;
	bool running, parked, stopping;
	unsigned pausing;
	uint64_t kicks;
} mover = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .parking = PTHREAD_COND_INITIALIZER};

/* ---- carriers ---- */

static bool open_carrier(struct carrier *carrier, CUdevice device)
{
	CUcontext context = nvs_context_on(device), popped;
	if (context == NULL || nvs_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return false;
	CUresult result = nvs_real.cuStreamCreate(&carrier->out.stream, STREAM_NON_BLOCKING);
	carrier->is_lost = nvs_is_fatal(result);
	if (result == CUDA_SUCCESS) {
		if (nvs_real.cuStreamCreate(&carrier->in.stream, STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
			carrier->context = context;
			return true;
		}
		nvs_real.cuStreamDestroy_v2(carrier->out.stream);
	}
	nvs_real.cuCtxPopCurrent_v2(&popped);
	return false;
}

/* True: the carrier's context is current until `leave`. */
static bool enter(struct carrier *carrier, CUdevice device)
{
	if (carrier->context == NULL)
		return open_carrier(carrier, device);
	return nvs_real.cuCtxPushCurrent_v2(carrier->context) == CUDA_SUCCESS;
}

static void leave(void)
{
	CUcontext popped;
	nvs_real.cuCtxPopCurrent_v2(&popped);
}

static void close_queue(struct queue *queue)
{
	nvs_real.cuStreamDestroy_v2(queue->stream);
	for (unsigned i = 0; i < DEPTH; i++)
		if (queue->jobs[i].done != NULL)
			nvs_real.cuEventDestroy_v2(queue->jobs[i].done);
	*queue = (struct queue){0};
}

static bool is_full(const struct queue *queue)
{
	return queue->count == DEPTH || queue->under_way >= UNDER_WAY_BYTES;
}

/* Behind what is under way: a copy, then the event that tells its end. */
static bool submit(struct queue *queue, const struct nvs_move *move, bool is_out)
{
	struct job *job = &queue->jobs[(queue->first + queue->count) % DEPTH];
	if (job->done == NULL && nvs_real.cuEventCreate(&job->done, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
		job->done = NULL;
		return false;
	}
	CUresult result = move->backing->backend->copy(move->backing, move->index, is_out, queue->stream);
	if (result != CUDA_SUCCESS || nvs_real.cuEventRecord(job->done, queue->stream) != CUDA_SUCCESS)
		return false;
	job->move = *move;
	queue->busy_since = queue->count == 0 ? nvs_now_ns() : queue->busy_since;
	queue->count++;
	queue->under_way += move->size;
	return true;
}

/* The oldest one, if its copy has ended. */
static bool take_finished(struct queue *queue, struct nvs_move *move, bool *failed)
{
	if (queue->count == 0)
		return false;
	struct job *job = &queue->jobs[queue->first];
	CUresult result = nvs_real.cuEventQuery(job->done);
	if (result == CUDA_ERROR_NOT_READY)
		return false;
	*failed = result != CUDA_SUCCESS;
	*move = job->move;
	queue->first = (queue->first + 1) % DEPTH;
	queue->count--;
	queue->under_way -= move->size;
	queue->copied += move->size;
	queue->busy += queue->count == 0 ? nvs_now_ns() - queue->busy_since : 0;
	return true;
}

/* ---- out ---- */

static struct nvs_host_buffer *begin_buffer(const struct nvs_move *move)
{
	struct nvs_host_buffer *buffer = in_making;
	if (buffer != NULL && buffer->size == move->size) {
		in_making = NULL;
		return buffer;
	}
	bool promised = move->backing->promised >= move->size;
	buffer = nvs_host_begin(move->size, promised);
	if (buffer != NULL && promised)
		move->backing->promised -= move->size;
	return buffer;
}

/* The chunk's buffer, ready to be copied to. */
static bool ensure_buffer(const struct nvs_move *move)
{
	struct nvs_host_buffer *buffer = move->chunk->buffer;
	if (move->backing->backend->is_unified)
		return true;
	if (buffer == NULL)
		buffer = begin_buffer(move);
	if (buffer == NULL)
		return false;
	while (!nvs_host_step(buffer))
		;
	if (buffer->failed) {
		nvs_host_free(buffer);
		return false;
	}
	if (move->chunk->buffer == NULL)
		nvs_residency_buffered(move, buffer);
	return true;
}

static void take_off(CUdevice device, const struct nvs_move *move)
{
	if (nvs_residency_copied_out(move)) {
		move->backing->backend->take(move->backing, move->index);
		nvs_residency_left(move);
	}
	nvs_link_moved(device);
}

static void keep(CUdevice device, const struct nvs_move *move, const char *why)
{
	static _Atomic bool said;
	nvs_residency_blocked(move);
	nvs_link_moved(device);
	if (!atomic_exchange(&said, true))
		NVS_WARN("%zu MiB stay on the card: %s", move->size >> 20, why);
}

/* It could not be copied. If no context is left that could ever read it, others need not wait for its place. */
static void lose(CUdevice device, struct carrier *carrier, struct nvs_move *move)
{
	static _Atomic bool said;
	if (carrier->context != NULL && enter(carrier, device)) {
		carrier->is_lost = nvs_is_fatal(nvs_real.cuStreamQuery(carrier->out.stream));
		leave();
	}
	if (!carrier->is_lost || nvs_context_count(device) > 1 || move->backing->backend->is_unified) {
		keep(device, move, "the context they belong to has failed");
		return;
	}
	move->copy = false;
	take_off(device, move);
	if (!atomic_exchange(&said, true))
		NVS_WARN("memory of device %d is given up: its context has failed, and nothing in it can be read any "
			 "more",
			device);
}

static void finish_out(CUdevice device, struct carrier *carrier)
{
	struct nvs_move move;
	bool failed;
	while (take_finished(&carrier->out, &move, &failed)) {
		if (failed)
			lose(device, carrier, &move);
		else
			take_off(device, &move);
	}
}

/* Of a context that failed before anything of it was moved. */
static void lose_all(CUdevice device, struct carrier *carrier)
{
	struct nvs_move move;
	while (nvs_residency_next_out(device, &move))
		lose(device, carrier, &move);
}

static void start_out(CUdevice device, struct carrier *carrier)
{
	struct nvs_move move;
	struct queue *queue = &carrier->out;
	while (!is_full(queue) && nvs_residency_next_out(device, &move)) {
		if (!move.copy)
			take_off(device, &move);
		else if (!ensure_buffer(&move))
			keep(device, &move, "the host, or this container's memory limit, has no room for them");
		else if (!submit(queue, &move, true))
			lose(device, carrier, &move);
		finish_out(device, carrier); /* making a buffer takes longer than copying to it */
	}
}

/* ---- in ---- */

static void land(CUdevice device, const struct nvs_move *move, bool failed)
{
	static _Atomic bool said;
	/* The context is broken, and the application will hear it from the driver. It must not wait for ever instead.
	 */
	if (failed && !atomic_exchange(&said, true))
		NVS_WARN("%zu MiB could not be copied back to the card: the context they belong to has failed",
			move->size >> 20);
	nvs_residency_arrived(move);
	nvs_link_moved(device);
}

static void finish_in(CUdevice device, struct queue *queue)
{
	struct nvs_move move;
	bool failed;
	while (take_finished(queue, &move, &failed))
		land(device, &move, failed);
}

static void say_refused(CUdevice device)
{
	struct nvs_holding view;
	char uuid[64], who[512];
	nvs_residency_view(device, &view);
	nvs_link_uuid(device, uuid, sizeof(uuid));
	nvs_outsiders(uuid, who, sizeof(who));
	NVS_WARN("waiting for %llu MiB on device %d: the card is full, though the memory is due to this process; "
		 "outside nvshare uses it: %s",
		(unsigned long long)(view.absent >> 20), device,
		who[0] != '\0' ? who : "nobody that NVML shows; perhaps a process that ended is not gone yet");
}

/* Somebody outside took the memory, or the driver has not yet freed that of a process that died: it will come. */
static void refused(CUdevice device, struct carrier *carrier)
{
	uint64_t now = nvs_now_ns();
	if (carrier->refused_at == 0) {
		carrier->refused_at = now;
		carrier->retry_wait = REFUSED_FIRST_NS;
	} else {
		carrier->retry_wait *= 2;
		if (carrier->retry_wait > REFUSED_LAST_NS)
			carrier->retry_wait = REFUSED_LAST_NS;
	}
	carrier->retry_at = now + carrier->retry_wait;
	if (carrier->refusal_told || now - carrier->refused_at < REFUSED_SAY_NS)
		return;
	carrier->refusal_told = true;
	say_refused(device);
}

static void accepted(CUdevice device, struct carrier *carrier)
{
	if (carrier->refusal_told)
		NVS_INFO("device %d has room again", device);
	carrier->refused_at = carrier->retry_at = 0;
	carrier->refusal_told = false;
}

static void start_in(CUdevice device, struct carrier *carrier)
{
	struct nvs_move move;
	while (!is_full(&carrier->in) && nvs_residency_next_in(device, &move)) {
		if (move.backing->backend->bring(move.backing, move.index) != CUDA_SUCCESS) {
			nvs_residency_turned_back(&move);
			refused(device, carrier);
			return;
		}
		accepted(device, carrier);
		if (!move.copy)
			land(device, &move, false);
		else if (!submit(&carrier->in, &move, false))
			land(device, &move, true);
		finish_in(device, &carrier->in);
	}
}

/* ---- rounds ---- */

static _Atomic uint64_t last_out_ns, last_in_ns;

uint64_t nvs_mover_switch_ns(void)
{
	return atomic_load(&last_out_ns) + atomic_load(&last_in_ns);
}

static void end_swap(struct queue *queue, const char *way, _Atomic uint64_t *last)
{
	NVS_INFO("Swapped %s %llu MiB in %llu ms", way, (unsigned long long)(queue->copied >> 20),
		(unsigned long long)(queue->busy / NVS_NS_PER_MS));
	atomic_store(last, queue->busy);
	queue->copied = queue->busy = 0;
}

/* What comes in portions, as others make room, is one swap. */
static void end_swaps(CUdevice device, struct carrier *carrier)
{
	struct nvs_holding view;
	if (carrier->out.copied + carrier->in.copied == 0)
		return;
	nvs_residency_view(device, &view);
	if (carrier->out.count == 0 && carrier->out.copied > 0 && view.resident <= view.target)
		end_swap(&carrier->out, "out", &last_out_ns);
	if (carrier->in.count == 0 && carrier->in.copied > 0 && view.absent == 0)
		end_swap(&carrier->in, "in", &last_in_ns);
}

static bool is_in_use(CUdevice device)
{
	return carriers[device].out.count + carriers[device].in.count > 0;
}

/* True while something is under way. */
static bool move_device(CUdevice device, bool may_start)
{
	struct carrier *carrier = &carriers[device];
	finish_out(device, carrier);
	finish_in(device, &carrier->in);
	if (nvs_now_ns() >= carrier->retry_at)
		carrier->retry_at = 0;
	if (may_start && enter(carrier, device)) {
		start_out(device, carrier);
		if (carrier->retry_at == 0)
			start_in(device, carrier);
		leave();
	} else if (may_start && carrier->is_lost) {
		lose_all(device, carrier);
	}
	end_swaps(device, carrier);
	return is_in_use(device);
}

static void drop_in_making(void)
{
	nvs_host_free(in_making);
	in_making = NULL;
}

static struct nvs_host_buffer *begin_ahead(CUdevice device, size_t size)
{
	bool promised = nvs_residency_take_promise(device, size);
	struct nvs_host_buffer *buffer = nvs_host_begin(size, promised);
	if (buffer == NULL && promised)
		nvs_host_forgive(size);
	return buffer;
}

/* A step towards the next buffer. False: there are enough, or no more to be had. */
static bool prepare(CUdevice device)
{
	struct carrier *carrier = &carriers[device];
	size_t size = nvs_residency_unprepared(device);
	if (size == 0)
		return false;
	if (in_making != NULL && in_making->size != size)
		drop_in_making();
	if (in_making == NULL)
		in_making = begin_ahead(device, size);
	if (in_making == NULL)
		nvs_residency_prepared(device);
	if (in_making == NULL || !enter(carrier, device))
		return false;
	bool ready = nvs_host_step(in_making), failed = in_making->failed;
	leave();
	if (ready && !failed && nvs_residency_offer(device, in_making, size))
		in_making = NULL;
	else if (ready)
		drop_in_making();
	if (failed)
		nvs_residency_prepared(device);
	return !failed;
}

/* One step for the first device that needs one. Returns until when to leave the machine to the application, 0: there
 * was nothing to do. Page-locking holds locks of the driver and the kernel that the application needs too. */
static uint64_t prepare_first(uint64_t devices)
{
	uint64_t began = nvs_now_ns();
	for (CUdevice device = 0; device < NVS_MAX_DEVICES; device++)
		if ((devices & 1ull << device) != 0 && prepare(device)) {
			uint64_t now = nvs_now_ns();
			return now + (now - began) / PREPARE_PAUSE_PART;
		}
	return 0;
}

/* ---- the thread ---- */

static bool is_halted(uint64_t *kicks)
{
	pthread_mutex_lock(&mover.lock);
	bool halted = mover.pausing > 0 || mover.stopping;
	*kicks = mover.kicks;
	pthread_mutex_unlock(&mover.lock);
	return halted;
}

/* Until there is something new, or a time (0: never). The mover is parked here, and only here. */
static void rest(uint64_t seen, uint64_t until)
{
	struct timespec at = {.tv_sec = (time_t)(until / NVS_NS_PER_S), .tv_nsec = (long)(until % NVS_NS_PER_S)};
	bool timed_out = false;
	pthread_mutex_lock(&mover.lock);
	while (mover.pausing > 0 || mover.stopping || (mover.kicks == seen && !timed_out)) {
		if (!mover.parked) {
			mover.parked = true;
			pthread_cond_broadcast(&mover.parking);
		}
		if (until != 0 && !timed_out)
			timed_out = pthread_cond_timedwait(&mover.wake, &mover.lock, &at) == ETIMEDOUT;
		else
			pthread_cond_wait(&mover.wake, &mover.lock);
	}
	mover.parked = false;
	pthread_mutex_unlock(&mover.lock);
}

static uint64_t first_retry(uint64_t with_moves)
{
	uint64_t first = 0;
	for (CUdevice device = 0; device < NVS_MAX_DEVICES; device++)
		if ((with_moves & 1ull << device) != 0 && carriers[device].retry_at != 0 &&
			(first == 0 || carriers[device].retry_at < first))
			first = carriers[device].retry_at;
	return first;
}

static void *run(void *unused)
{
	pthread_setname_np(pthread_self(), "nvshare-mover");
	nvs_inside++;
	nvs_relax();
	for (;;) {
		uint64_t seen;
		bool may_start = !is_halted(&seen), under_way = false;
		uint64_t with_moves = nvs_residency_moves();
		for (CUdevice device = 0; device < NVS_MAX_DEVICES; device++)
			if ((with_moves & 1ull << device) != 0 || is_in_use(device))
				under_way = move_device(device, may_start) || under_way;
		uint64_t pause_until = may_start && !under_way ? prepare_first(with_moves) : 0;
		if (may_start && !under_way && pause_until == 0)
			drop_in_making(); /* the chunk it was for is gone */
		if (under_way)
			nvs_sleep_ns(POLL_NS);
		else
			rest(seen, nvs_earlier(pause_until, first_retry(with_moves)));
	}
	return unused;
}

void nvs_mover_kick(void)
{
	if (nvs_residency_moves() == 0)
		return;
	pthread_mutex_lock(&mover.lock);
	mover.kicks++;
	if (!mover.running && !mover.stopping && mover.pausing == 0) {
		pthread_condattr_t monotonic;
		pthread_condattr_init(&monotonic);
		pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
		pthread_cond_init(&mover.wake, &monotonic);
		pthread_condattr_destroy(&monotonic);
		mover.running = nvs_helper_start(run);
	}
	pthread_cond_signal(&mover.wake);
	pthread_mutex_unlock(&mover.lock);
}

void nvs_mover_pause(void)
{
	pthread_mutex_lock(&mover.lock);
	mover.pausing++;
	pthread_cond_signal(&mover.wake);
	while (mover.running && !mover.parked && !mover.stopping)
		pthread_cond_wait(&mover.parking, &mover.lock);
	pthread_mutex_unlock(&mover.lock);
}

void nvs_mover_resume(void)
{
	pthread_mutex_lock(&mover.lock);
	mover.pausing--;
	mover.kicks++;
	pthread_cond_signal(&mover.wake);
	pthread_mutex_unlock(&mover.lock);
	nvs_mover_kick(); /* it may have been kept from starting */
}

void nvs_mover_context_ends(CUcontext context)
{
	CUcontext popped;
	nvs_mover_pause();
	if (nvs_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		for (CUdevice device = 0; device < NVS_MAX_DEVICES; device++) {
			if (carriers[device].context != context)
				continue;
			close_queue(&carriers[device].out);
			close_queue(&carriers[device].in);
			carriers[device].context = NULL;
		}
		nvs_host_context_ends(context);
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	nvs_mover_resume();
}

/* Let what is under way end, but do not hang on it. */
void nvs_mover_stop(void)
{
	uint64_t deadline = nvs_now_ns() + STOP_WAIT_NS;
	pthread_mutex_lock(&mover.lock);
	mover.stopping = true;
	pthread_cond_signal(&mover.wake);
	while (mover.running && !mover.parked && nvs_now_ns() < deadline) {
		pthread_mutex_unlock(&mover.lock);
		nvs_sleep_ns(NVS_NS_PER_MS);
		pthread_mutex_lock(&mover.lock);
	}
	pthread_cond_broadcast(&mover.parking);
	pthread_mutex_unlock(&mover.lock);
	nvs_residency_abandon();
}

void nvs_mover_after_fork(void)
{
	pthread_mutex_init(&mover.lock, NULL);
	pthread_cond_init(&mover.wake, NULL);
	pthread_cond_init(&mover.parking, NULL);
	mover.running = mover.parked = mover.stopping = false;
	mover.pausing = 0;
	for (CUdevice device = 0; device < NVS_MAX_DEVICES; device++)
		carriers[device] = (struct carrier){0};
	in_making = NULL;
}
