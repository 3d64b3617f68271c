/* Flow control by time in flight, while the gate is PACED. A thread that comes is told how many submissions it may make
 * before it has to come again, an eighth of a window, and puts a marker event behind the first of them. When all
 * markers of the window are in use it waits for the oldest. So at most about a window is in flight, and while a thread
 * waits the GPU still has nearly all of it. How long a wait took is nobody's business: the window follows from the cost
 * of submissions alone, so that a switch can never make it collapse. In a process with several contexts the wait has an
 * end: work in one may wait for what the same thread has yet to submit in another. Then nothing is paced
 * until the gate opens anew. */
#include "gate/meter.h"

#include "compute_constants.h"
#include "base/clock.h"
#include "base/devices.h"
#include "gate/state.h"
#include "gate/streams.h"
#include "resolve/resolve.h"

static _Atomic uint32_t waiting_for_gpu;            /* threads */
static _Atomic uint64_t behind_ns[NVS_MAX_DEVICES]; /* in which work was in flight, as far as it was seen */
static _Atomic uint64_t marks[NVS_MAX_DEVICES];     /* by which it can be seen */

uint32_t nvs_pace_waiting(void)
{
	return atomic_load(&waiting_for_gpu);
}

uint64_t nvs_pace_behind_us(CUdevice device)
{
	return nvs_is_managed(device) ? atomic_load(&behind_ns[device]) / NVS_NS_PER_US : 0;
}

uint64_t nvs_pace_marks(CUdevice device)
{
	return nvs_is_managed(device) ? atomic_load(&marks[device]) : 0;
}

void nvs_pace_after_fork(void)
{
	atomic_store(&waiting_for_gpu, 0);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Of a submission, ns. The lock is held. */
uint64_t nvs_pace_cost(const struct nvs_pace *pace)
{
	uint64_t sampled = nvs_meter_cost(atomic_load(&pace->context->device));
	return larger(sampled, larger(pace->average_ns, pace->recent_ns));
}

/* The lock is held. */
static bool reached(const struct nvs_marker *marker)
{
	return marker->state == NVS_MARKER_FREE ||
	       (marker->state == NVS_MARKER_RECORDED && nvs_real.cuEventQuery(marker->event) != CUDA_ERROR_NOT_READY);
}

/* A marker that can be set, if fewer than so many are in use; else NULL. The lock is held. */
static struct nvs_marker *unused_marker(struct nvs_pace *pace, uint32_t most)
{
	struct nvs_marker *found = NULL;
	uint32_t used = 0;
	for (uint32_t i = 0; i < NVS_MARKERS; i++)
		if (pace->markers[i].state == NVS_MARKER_FREE)
			found = &pace->markers[i];
		else
			used++;
	return used < most ? found : NULL;
}

/* The same, after those that the GPU has reached have been taken back. The lock is held. */
static struct nvs_marker *free_marker(struct nvs_pace *pace, uint32_t most)
{
	struct nvs_marker *marker = unused_marker(pace, most);
	if (marker != NULL)
		return marker;
	uint32_t freed = 0;
	CUstreamCaptureMode mode = nvs_relax();
	for (uint32_t i = 0; i < NVS_MARKERS; i++)
		if (pace->markers[i].state != NVS_MARKER_FREE && reached(&pace->markers[i])) {
			pace->markers[i].state = NVS_MARKER_FREE;
			freed++;
		}
	nvs_unrelax(mode);
	if (freed > 1 && freed > most / 2) { /* the GPU has caught up, while one of them was waited for: more may go */
		pace->recent_ns = pace->latest_ns = pace->waited = 0;
		pace->average_ns /= 2;
	}
	return unused_marker(pace, most);
}

/* Of those in a stream; NULL when there is none. The lock is held. */
static struct nvs_marker *oldest_marker(struct nvs_pace *pace)
{
	struct nvs_marker *oldest = NULL;
	for (uint32_t i = 0; i < NVS_MARKERS; i++) {
		struct nvs_marker *marker = &pace->markers[i];
		if (marker->state == NVS_MARKER_RECORDED && (oldest == NULL || marker->before < oldest->before))
			oldest = marker;
	}
	return oldest;
}

static void take(struct nvs_thread *self, struct nvs_pace *pace, struct nvs_marker *marker, uint32_t batch)
{
	marker->state = NVS_MARKER_TAKEN;
	marker->count = batch;
	marker->before = pace->admitted += batch;
	self->pace = pace;
	self->marker = (uint32_t)(marker - pace->markers);
}

/* Made first, if there is none. */
static bool record_event(struct nvs_pace *pace, CUevent *event, unsigned flags, CUstream stream)
{
	if (atomic_load(&nvs_captures) != 0)
		return false;
	CUstreamCaptureMode mode = nvs_relax();
	CUcontext popped;
	if (*event == NULL && nvs_real.cuCtxPushCurrent_v2(atomic_load(&pace->context->handle)) == CUDA_SUCCESS) {
		if (nvs_real.cuEventCreate(event, flags) != CUDA_SUCCESS)
			*event = NULL;
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	bool recorded = *event != NULL && nvs_real.cuEventRecord(*event, stream) == CUDA_SUCCESS;
	nvs_unrelax(mode);
	return recorded;
}

static _Atomic uint32_t slices;

void nvs_pace_new_slice(void)
{
	atomic_fetch_add(&slices, 1);
}

/* The lock is held. */
static void note_begin(struct nvs_pace *pace, CUstream stream)
{
	uint32_t slice = atomic_load(&slices);
	if (pace->slice == slice)
		return;
	pace->slice = slice;
	pace->begun_known = record_event(pace, &pace->begun, CU_EVENT_DEFAULT, stream);
}

struct nvs_pace *nvs_pace_admit(struct nvs_thread *self, CUstream stream, uint32_t *duty)
{
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	struct nvs_context *context = atomic_load(&nvs_captures) == 0 ? nvs_context_of(stream) : NULL;
	*duty = 0;
	if (context == NULL) {
		self->next_pace = count + NVS_ROUND;
		return NULL;
	}
	struct nvs_pace *pace = &context->pace;
	pthread_mutex_lock(&pace->lock);
	note_begin(pace, stream);
	uint32_t window = nvs_meter_window(atomic_load(&context->device), nvs_pace_cost(pace));
	uint32_t batch = (window + NVS_MARKERS - 1) / NVS_MARKERS;
	struct nvs_marker *marker = free_marker(pace, window / batch);
	/* Without one in a stream there is nothing to wait for: their threads are between gate and stream. */
	bool crowded = marker == NULL && oldest_marker(pace) != NULL;
	if (marker != NULL)
		take(self, pace, marker, batch);
	pthread_mutex_unlock(&pace->lock);
	if (crowded)
		return pace;
	*duty = marker != NULL ? NVS_MARKER : 0;
	self->next_pace = count + (marker != NULL ? nvs_meter_vary(self, batch) : 1);
	return NULL;
}

/* ---- waiting for the GPU ---- */

/* A kernel longer than the budget is alone in flight: the GPU idles until the thread has seen its end and submits the
 * next one. So the end, which can be foreseen, is not slept through. */
static void watch_end(CUevent marker, uint64_t foreseen)
{
	uint64_t now = nvs_now_ns();
	while (now + NVS_OFTEN_NS < foreseen && nvs_real.cuEventQuery(marker) == CUDA_ERROR_NOT_READY) {
		uint64_t rest = foreseen - NVS_OFTEN_NS - now;
		nvs_sleep_ns(rest < 2 * NVS_OFTEN_NS ? rest : 2 * NVS_OFTEN_NS);
		now = nvs_now_ns();
	}
	for (uint64_t until = now + 2 * NVS_OFTEN_NS; now < until; now = nvs_now_ns())
		if (nvs_real.cuEventQuery(marker) != CUDA_ERROR_NOT_READY)
			return;
}

/* A marker was waited for until now. If an earlier one was too, within the same slice, and the GPU has not caught up
 * since, it had work all the time: what was submitted between the two took that long, or this thread was late to wake
 * up; then it is early the next time. Unlike samples this misses nothing, and tells soon: the smaller of two in a row
 * counts. The lock is held. */
void nvs_pace_learn(struct nvs_pace *pace, const struct nvs_marker *marker, uint32_t opening)
{
	uint64_t now = nvs_now_ns();
	if (pace->waited != 0 && opening == pace->opening) {
		if (marker->before <= pace->waited)
			return; /* another thread was quicker */
		uint64_t latest = (now - pace->reached_at) / (marker->before - pace->waited);
		/* Over less than half a window, a thread that is late to wake says more than the GPU. */
		if (latest > pace->recent_ns && now - pace->reached_at < nvs_meter_budget() / 2)
			return;
		pace->recent_ns = smaller(latest, pace->latest_ns);
		pace->latest_ns = latest;
		int64_t step = ((int64_t)pace->recent_ns - (int64_t)pace->average_ns) / NVS_ROUND;
		pace->average_ns = (uint64_t)((int64_t)pace->average_ns + step);
	}
	pace->waited = marker->before;
	pace->reached_at = now;
	pace->opening = opening;
}

static bool is_reached(CUevent marker)
{
	uint64_t usual = NVS_USUAL * nvs_meter_typical_ns(), pause = 0;
	uint64_t until = nvs_now_ns() + (usual > NVS_LONG_NS ? usual : NVS_LONG_NS);
	while (nvs_real.cuEventQuery(marker) == CUDA_ERROR_NOT_READY) {
		if (nvs_now_ns() >= until)
			return false;
		nvs_sleep_growing(&pause);
	}
	return true;
}

bool nvs_pace_wait(struct nvs_pace *pace)
{
	CUdevice device = atomic_load(&pace->context->device);
	uint32_t opening = nvs_gate_openings();
	struct nvs_marker marker = {0};
	pthread_mutex_lock(&pace->lock);
	const struct nvs_marker *oldest = oldest_marker(pace);
	if (oldest != NULL)
		marker = *oldest;
	bool alone = nvs_meter_window(device, nvs_pace_cost(pace)) == 1;
	uint64_t cost = nvs_pace_cost(pace);
	pthread_mutex_unlock(&pace->lock);
	if (marker.event == NULL)
		return true;
	atomic_fetch_add(&waiting_for_gpu, 1);
	CUstreamCaptureMode mode = nvs_relax();
	bool reached = true;
	if (nvs_context_count(NVS_ANY_DEVICE) > 1) {
		reached = is_reached(marker.event);
	} else {
		if (alone)
			watch_end(marker.event, marker.set_at + cost);
		nvs_real.cuEventSynchronize(marker.event);
	}
	nvs_unrelax(mode);
	atomic_fetch_sub(&waiting_for_gpu, 1);
	pthread_mutex_lock(&pace->lock);
	if (reached && opening == nvs_gate_openings() && nvs_gate_state() == NVS_GATE_PACED)
		nvs_pace_learn(pace, &marker, opening);
	pthread_mutex_unlock(&pace->lock);
	return reached;
}

/* ---- markers ---- */

void nvs_pace_mark(struct nvs_thread *self, CUstream stream)
{
	struct nvs_pace *pace = self->pace;
	struct nvs_marker *marker = &pace->markers[self->marker];
	CUdevice device = atomic_load(&pace->context->device);
	CUevent event = marker->event;
	/* The marker is this thread's alone until it says what became of it. */
	bool recorded = record_event(pace, &event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC, stream);
	pthread_mutex_lock(&pace->lock);
	marker->event = event;
	marker->set_at = nvs_now_ns();
	marker->state = recorded ? NVS_MARKER_RECORDED : NVS_MARKER_FREE;
	pthread_mutex_unlock(&pace->lock);
	if (recorded && nvs_is_managed(device))
		atomic_fetch_add(&marks[device], 1);
}

/* Of those visited; guarded by nvs_streams_lock. */
static uint64_t most_pending; /* ns */
static uint32_t markers_ahead;

/* Work was in flight from the moment its marker was set: for what of that time nobody had seen it yet, the GPU was
 * behind. Where it has caught up, it did so between the last look and this one. The lock is held. */
static void note_behind(struct nvs_pace *pace, const struct nvs_marker *oldest, uint64_t now)
{
	CUdevice device = atomic_load(&pace->context->device);
	uint64_t from = larger(oldest != NULL ? oldest->set_at : 0, pace->looked_at), seen = 0;
	bool behind = oldest != NULL && now > oldest->set_at + NVS_OFTEN_NS;
	if (behind && now > from)
		seen = now - from;
	else if (oldest == NULL && pace->behind)
		seen = (now - pace->looked_at) / 2;
	pace->behind = behind;
	if (nvs_is_managed(device))
		atomic_fetch_add(&behind_ns[device], seen);
}

/* How long the GPU has been at the oldest of them, at least. The lock is held. */
static uint64_t run_already(struct nvs_pace *pace, const struct nvs_marker *oldest, uint64_t now)
{
	if (oldest->before != pace->oldest) {
		pace->oldest = oldest->before;
		pace->oldest_since = pace->looked_at == 0 || oldest->set_at > pace->looked_at ? oldest->set_at : now;
	}
	return now - pace->oldest_since;
}

static bool look_at_pending(struct nvs_context *context)
{
	uint64_t rest = 0;
	const struct nvs_marker *oldest = NULL;
	struct nvs_pace *pace = &context->pace;
	pthread_mutex_lock(&pace->lock);
	uint64_t cost = nvs_pace_cost(pace), now = nvs_now_ns();
	for (uint32_t i = 0; i < NVS_MARKERS; i++) {
		const struct nvs_marker *marker = &pace->markers[i];
		if (reached(marker))
			continue;
		rest += marker->count * cost;
		markers_ahead++;
		if (marker->state == NVS_MARKER_RECORDED && (oldest == NULL || marker->before < oldest->before))
			oldest = marker;
	}
	note_behind(pace, oldest, now);
	if (oldest != NULL) {
		uint64_t run = run_already(pace, oldest, now), whole = oldest->count * cost;
		rest -= run < whole ? run : whole;
	}
	pace->looked_at = now;
	pthread_mutex_unlock(&pace->lock);
	most_pending = larger(rest, most_pending);
	return true;
}

uint64_t nvs_pace_pending(uint32_t *ahead)
{
	pthread_mutex_lock(&nvs_streams_lock);
	most_pending = 0;
	markers_ahead = 0;
	if (!atomic_load(&nvs_exiting))
		nvs_each_context(look_at_pending);
	uint64_t pending = most_pending;
	*ahead = markers_ahead;
	pthread_mutex_unlock(&nvs_streams_lock);
	return pending;
}

/* Of those visited; guarded by nvs_streams_lock. */
static uint64_t longest_ns;
static uint32_t spans;

static void lengthen(CUevent begun, const struct nvs_stream *stream)
{
	float ms = 0;
	bool timed = stream->last != NULL && stream->last == stream->timed;
	if (timed && nvs_real.cuEventElapsedTime(&ms, begun, stream->last) == CUDA_SUCCESS && ms > 0)
		longest_ns = larger(longest_ns, (uint64_t)((double)ms * (double)NVS_NS_PER_MS));
}

static bool look_at_span(struct nvs_context *context)
{
	struct nvs_pace *pace = &context->pace;
	pthread_mutex_lock(&pace->lock);
	CUevent begun = pace->begun_known && pace->slice == atomic_load(&slices) ? pace->begun : NULL;
	pthread_mutex_unlock(&pace->lock);
	if (begun == NULL)
		return true;
	spans++;
	lengthen(begun, &context->legacy);
	for (const struct nvs_stream *stream = context->streams; stream != NULL; stream = stream->next)
		lengthen(begun, stream);
	return true;
}

uint64_t nvs_pace_span(void)
{
	pthread_mutex_lock(&nvs_streams_lock);
	longest_ns = 0;
	spans = 0;
	if (!atomic_load(&nvs_exiting))
		nvs_each_context(look_at_span);
	uint64_t span = spans == 1 ? longest_ns : 0;
	pthread_mutex_unlock(&nvs_streams_lock);
	return span;
}
