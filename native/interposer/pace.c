/* Flow control by time in flight, while the gate is PACED. A thread that comes is told how many submissions it may make
 * before it has to come again, an eighth of a window, and puts a marker event behind the first of them. When all
 * markers of the window are in use it waits for the oldest. So at most about a window is in flight, and while a thread
 * waits the GPU still has nearly all of it. How long a wait took is nobody's business: the window follows from the cost
 * of submissions alone, so that a switch can never make it collapse. */
#include "clock.h"
#include "gate.h"
#include "meter.h"
#include "resolve.h"
#include "streams.h"

#define BATCH_UNKNOWN 16u /* where no marker can be set: in a capture, or in a context that cannot be told */
#define SPIN_NS (150 * NVS_NS_PER_US)

static _Atomic uint32_t waiting;

uint32_t nvs_pace_waiting(void)
{
	return atomic_load(&waiting);
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
	for (uint32_t i = 0; i < NVS_MARKERS; i++)
		if (reached(&pace->markers[i]))
			pace->markers[i].state = NVS_MARKER_FREE;
	return unused_marker(pace, most);
}

/* Of those in a stream; NULL when there is none. The lock is held. */
static struct nvs_marker *oldest_marker(struct nvs_pace *pace)
{
	struct nvs_marker *oldest = NULL;
	for (uint32_t i = 0; i < NVS_MARKERS; i++) {
		struct nvs_marker *marker = &pace->markers[i];
		if (marker->state == NVS_MARKER_RECORDED && (oldest == NULL || marker->set_at < oldest->set_at))
			oldest = marker;
	}
	return oldest;
}

struct nvs_pace *nvs_pace_admit(struct nvs_thread *self, CUstream stream, uint32_t *duty)
{
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	struct nvs_context *context = atomic_load(&nvs_captures) == 0 ? nvs_context_of(stream) : NULL;
	*duty = 0;
	if (context == NULL) {
		self->next_pace = count + BATCH_UNKNOWN;
		return NULL;
	}
	struct nvs_pace *pace = &context->pace;
	uint32_t window = nvs_meter_window(atomic_load(&context->device));
	uint32_t batch = window > NVS_MARKERS ? window / NVS_MARKERS : 1;
	pthread_mutex_lock(&pace->lock);
	struct nvs_marker *marker = free_marker(pace, window < NVS_MARKERS ? window : NVS_MARKERS);
	/* Without one in a stream there is nothing to wait for: their threads are between gate and stream. */
	bool crowded = marker == NULL && oldest_marker(pace) != NULL;
	if (marker != NULL) {
		marker->state = NVS_MARKER_TAKEN;
		marker->count = batch;
		self->pace = pace;
		self->marker = (uint32_t)(marker - pace->markers);
		*duty = NVS_MARKER;
	}
	pthread_mutex_unlock(&pace->lock);
	if (crowded)
		return pace;
	self->next_pace = count + (marker != NULL ? nvs_meter_vary(self, batch) : 1);
	return NULL;
}

/* A kernel longer than the budget is alone in flight: the GPU idles until the thread has seen its end and submits the
 * next one. So the end, which can be foreseen, is not slept through. */
static void watch_end(CUevent marker, uint64_t foreseen)
{
	uint64_t now = nvs_now_ns();
	if (foreseen > now + SPIN_NS)
		nvs_sleep_ns(foreseen - now - SPIN_NS);
	uint64_t until = nvs_now_ns() + 2 * SPIN_NS;
	while (nvs_real.cuEventQuery(marker) == CUDA_ERROR_NOT_READY && nvs_now_ns() < until)
		;
}

/* A marker was waited for until now. If the one before it was too, within the same turn, the GPU had work all the time
 * between them: what the first of them stands for took that long. The lock is held. */
static void learn(struct nvs_pace *pace, struct nvs_marker *marker, uint32_t word)
{
	uint64_t now = nvs_now_ns();
	bool next = word == pace->word && marker->set_at > pace->waited.set_at;
	for (uint32_t i = 0; next && i < NVS_MARKERS; i++)
		next = pace->markers[i].set_at <= pace->waited.set_at || pace->markers[i].set_at >= marker->set_at;
	if (next && pace->waited.count != 0)
		nvs_meter_slower(atomic_load(&pace->context->device), (now - pace->reached_at) / pace->waited.count);
	pace->waited = *marker;
	pace->reached_at = now;
	pace->word = word;
}

void nvs_pace_wait(struct nvs_pace *pace)
{
	CUdevice device = atomic_load(&pace->context->device);
	uint32_t word = atomic_load(&nvs_gate);
	pthread_mutex_lock(&pace->lock);
	struct nvs_marker *oldest = oldest_marker(pace), marker = {0};
	if (oldest != NULL)
		marker = *oldest;
	pthread_mutex_unlock(&pace->lock);
	if (marker.event == NULL)
		return;
	atomic_fetch_add(&waiting, 1);
	CUstreamCaptureMode mode = nvs_relax();
	if (nvs_meter_window(device) == 1)
		watch_end(marker.event, marker.set_at + nvs_meter_cost(device));
	nvs_real.cuEventSynchronize(marker.event);
	nvs_unrelax(mode);
	atomic_fetch_sub(&waiting, 1);
	pthread_mutex_lock(&pace->lock);
	if (word == atomic_load(&nvs_gate))
		learn(pace, &marker, word);
	pthread_mutex_unlock(&pace->lock);
}

/* The marker is this thread's alone until it says what became of it. */
static bool record_marker(struct nvs_pace *pace, CUevent *marker, CUstream stream)
{
	if (atomic_load(&nvs_captures) != 0)
		return false;
	CUstreamCaptureMode mode = nvs_relax();
	CUcontext popped;
	if (*marker == NULL && nvs_real.cuCtxPushCurrent_v2(atomic_load(&pace->context->handle)) == CUDA_SUCCESS) {
		if (nvs_real.cuEventCreate(marker, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)
			*marker = NULL;
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	bool recorded = *marker != NULL && nvs_real.cuEventRecord(*marker, stream) == CUDA_SUCCESS;
	nvs_unrelax(mode);
	return recorded;
}

void nvs_pace_mark(struct nvs_thread *self, CUstream stream)
{
	struct nvs_pace *pace = self->pace;
	struct nvs_marker *marker = &pace->markers[self->marker];
	bool recorded = record_marker(pace, &marker->event, stream);
	pthread_mutex_lock(&pace->lock);
	marker->set_at = nvs_now_ns();
	marker->state = recorded ? NVS_MARKER_RECORDED : NVS_MARKER_FREE;
	pthread_mutex_unlock(&pace->lock);
}

static uint64_t most_pending; /* of those visited, ns; guarded by nvs_streams_lock */

static bool look_at_pending(struct nvs_context *context)
{
	uint64_t cost = nvs_meter_cost(atomic_load(&context->device)), rest = 0, since = 0;
	uint32_t ahead = 0;
	struct nvs_pace *pace = &context->pace;
	pthread_mutex_lock(&pace->lock);
	for (uint32_t i = 0; i < NVS_MARKERS; i++) {
		if (reached(&pace->markers[i]))
			continue;
		rest += pace->markers[i].count * cost;
		since = pace->markers[i].set_at;
		ahead++;
	}
	pthread_mutex_unlock(&pace->lock);
	/* Of several it is not known since when the first one runs. */
	uint64_t run = ahead == 1 && since != 0 ? nvs_now_ns() - since : 0;
	rest = rest > run ? rest - run : 0;
	most_pending = rest > most_pending ? rest : most_pending;
	return true;
}

uint64_t nvs_pace_pending(void)
{
	pthread_mutex_lock(&nvs_streams_lock);
	most_pending = 0;
	if (!atomic_load(&nvs_exiting))
		nvs_each_context(look_at_pending);
	uint64_t pending = most_pending;
	pthread_mutex_unlock(&nvs_streams_lock);
	return pending;
}
