#include "gate/meter.h"

#include "compute_constants.h"
#include "base/clock.h"
#include "base/devices.h"
#include "base/log.h"
#include "gate/state.h"
#include "gate/streams.h"
#include "resolve/resolve.h"

#define EMPTY_SAMPLES 4u /* per context */
#define UNREADY_MAX 16   /* unfinished samples that one poll looks at */

struct device_meter {
	_Atomic uint64_t cost_ns;    /* of one submission, moving average; 0: not known */
	_Atomic uint32_t samples;    /* that are part of it, as far as needed */
	_Atomic uint64_t typical_ns; /* the same without what rare long ones, or a host that was slow, add to it */
	_Atomic uint64_t occupied_ns;
	_Atomic uint64_t busy_ns; /* by the samples, never by slices, and without tiny ones */
	_Atomic bool by_slices;
	_Atomic uint64_t submissions; /* that belong to a sample */
	_Atomic uint32_t begun;       /* samples, as far as needed to grow the stride */
	uint64_t billed_until; /* on the clock: occupied time never runs ahead of it. Guarded by nvs_streams_lock */
	uint32_t window_logged;
	_Atomic uint64_t reported; /* largest number of submissions told so far */
};

static struct device_meter meters[NVS_MAX_DEVICES];
static _Atomic uint64_t budget_ns = NVS_IN_FLIGHT_LOOSE_NS;
static _Atomic uint64_t window_max = NVS_WINDOW_MAX;

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : value > high ? high : value;
}

/* ---- which submission to measure ---- */

static uint32_t next_random(struct nvs_thread *self)
{
	uint32_t x = self->random != 0 ? self->random : 1;
	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return self->random = x;
}

uint32_t nvs_meter_any(struct nvs_thread *self, uint32_t count)
{
	return next_random(self) % count;
}

uint64_t nvs_meter_vary(struct nvs_thread *self, uint64_t stride)
{
	return stride < 2 ? stride : stride * 3 / 4 + next_random(self) % (stride / 2 + 1);
}

static uint64_t next_stride(struct device_meter *meter, struct nvs_thread *self)
{
	/* Where long and short submissions alternate, typical ones are short, and the mean counts by a part. */
	uint64_t cost = atomic_load_explicit(&meter->cost_ns, memory_order_relaxed) / NVS_USUAL;
	uint64_t typical = atomic_load_explicit(&meter->typical_ns, memory_order_relaxed);
	bool known = nvs_gate_state() == NVS_GATE_PACED && atomic_load(&meter->samples) >= NVS_ROUND;
	uint64_t stride;
	/* The first submissions say little about those that follow. */
	uint64_t first = 1ull << clamp(atomic_fetch_add(&meter->begun, 1), 0, 31);
	cost = cost > typical ? cost : typical;
	if (cost != 0)
		/* While PACED, markers tell of a change: a cost once known is only kept up to date. */
		stride = clamp((known ? NVS_RARELY_NS : NVS_NEAR_NS) / cost, 1, NVS_WINDOW_MAX);
	else
		stride = NVS_ROUND;
	return nvs_meter_vary(self, clamp(stride, 1, first));
}

/* ---- a sample: event, submission, event ---- */

static bool make_events(struct nvs_context *context, struct nvs_sample *sample)
{
	CUcontext popped;
	if (sample->end != NULL)
		return true;
	if (nvs_real.cuCtxPushCurrent_v2(atomic_load(&context->handle)) != CUDA_SUCCESS)
		return false;
	if (sample->begin == NULL && nvs_real.cuEventCreate(&sample->begin, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		sample->begin = NULL;
	if (sample->begin != NULL && nvs_real.cuEventCreate(&sample->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		sample->end = NULL;
	nvs_real.cuCtxPopCurrent_v2(&popped);
	return sample->end != NULL;
}

static void free_sample(struct nvs_context *context, struct nvs_sample *sample)
{
	atomic_store(&sample->state, NVS_SAMPLE_FREE);
	atomic_fetch_sub(&context->under_way, 1);
}

/* The next free sample of the ring; NULL when those under way have come all around. */
static struct nvs_sample *take_sample(struct nvs_context *context, CUstream stream)
{
	uint32_t index = atomic_fetch_add_explicit(&context->next_sample, 1, memory_order_relaxed) % NVS_SAMPLES;
	struct nvs_sample *sample = &context->samples[index];
	uint32_t free = NVS_SAMPLE_FREE;
	if (!atomic_compare_exchange_strong(&sample->state, &free, NVS_SAMPLE_TAKEN))
		return NULL;
	atomic_fetch_add(&context->under_way, 1);
	sample->context = context;
	sample->empty = false;
	if (make_events(context, sample) && nvs_real.cuEventRecord(sample->begin, stream) == CUDA_SUCCESS)
		return sample;
	free_sample(context, sample);
	return NULL;
}

/* What two events with nothing between them measure, a few times. */
static void calibrate(struct nvs_context *context, CUstream stream)
{
	if (atomic_load_explicit(&context->calibrated, memory_order_relaxed) >= EMPTY_SAMPLES ||
		atomic_fetch_add(&context->calibrated, 1) >= EMPTY_SAMPLES)
		return;
	struct nvs_sample *sample = take_sample(context, stream);
	if (sample == NULL)
		return;
	sample->empty = true;
	if (nvs_real.cuEventRecord(sample->end, stream) == CUDA_SUCCESS)
		atomic_store(&sample->state, NVS_SAMPLE_PENDING);
	else
		free_sample(context, sample);
}

static bool begin_sample(struct nvs_thread *self, CUstream stream, uint64_t count)
{
	struct nvs_context *context = nvs_stream_capturing(stream) ? NULL : nvs_context_of(stream);
	if (context == NULL)
		return false;
	CUdevice device = atomic_load(&context->device);
	if (device < 0 || device >= NVS_MAX_DEVICES)
		return false;
	calibrate(context, stream);
	struct nvs_sample *sample = take_sample(context, stream);
	if (sample == NULL)
		return false;
	struct device_meter *meter = &meters[device];
	sample->begun_at = nvs_now_ns();
	sample->count = count - atomic_load(&self->accounted);
	sample->since = self->sampled_at;
	self->sampled_at = sample->begun_at;
	self->sample = sample;
	self->next_sample = count + next_stride(meter, self) - 1;
	atomic_fetch_add(&meter->submissions, sample->count);
	atomic_store(&self->accounted, count);
	atomic_store(&self->device, device);
	return true;
}

uint32_t nvs_meter_begin(struct nvs_thread *self, CUstream stream)
{
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed); /* this one included */
	self->next_sample = count + NVS_ROUND;
	if (atomic_load(&nvs_captures) != 0 || atomic_load(&nvs_exiting) || nvs_real.cuEventRecord == NULL)
		return 0;
	CUstreamCaptureMode mode = nvs_relax();
	bool begun = begin_sample(self, stream, count);
	nvs_unrelax(mode);
	return begun ? NVS_MEASURED : 0;
}

/* Where nothing was before it, the GPU passed the first event and then waited for the call. */
static uint64_t late_by(const struct nvs_sample *sample)
{
	uint64_t call = nvs_now_ns() - sample->begun_at;
	if (call > NVS_SOON_NS)
		return 0;
	CUstreamCaptureMode mode = nvs_relax();
	bool passed = nvs_real.cuEventQuery(sample->begin) == CUDA_SUCCESS;
	nvs_unrelax(mode);
	return passed ? call : 0;
}

void nvs_meter_end(struct nvs_thread *self, CUstream stream)
{
	struct nvs_sample *sample = self->sample;
	self->sample = NULL;
	/* A capture that began meanwhile is left in peace: the legacy stream is not touched, and the sample is lost. */
	bool ended = atomic_load(&nvs_captures) == 0;
	if (ended) {
		sample->late = late_by(sample);
		ended = nvs_real.cuEventRecord(sample->end, stream) == CUDA_SUCCESS;
	}
	if (ended)
		atomic_store(&sample->state, NVS_SAMPLE_PENDING);
	else
		free_sample(sample->context, sample);
}

/* ---- what the samples say ---- */

/* Rather rounded up: of the oldest one only a part is left. A few samples are not believed to the full. */
static uint32_t window_for(const struct device_meter *meter, uint64_t recent_ns)
{
	uint64_t cost = atomic_load_explicit(&meter->cost_ns, memory_order_relaxed);
	cost = cost > recent_ns ? cost : recent_ns;
	uint32_t samples = atomic_load_explicit(&meter->samples, memory_order_relaxed);
	uint64_t most = atomic_load_explicit(&window_max, memory_order_relaxed);
	if (cost == 0)
		return NVS_MARKERS;
	most = clamp((uint64_t)NVS_MARKERS << samples, 1, most);
	return (uint32_t)clamp((atomic_load(&budget_ns) + cost * 3 / 4) / cost, 1, most);
}

uint64_t nvs_meter_cost(CUdevice device)
{
	return device < 0 || device >= NVS_MAX_DEVICES ? 0 : atomic_load(&meters[device].cost_ns);
}

uint32_t nvs_meter_window(CUdevice device, uint64_t recent_ns)
{
	if (device < 0 || device >= NVS_MAX_DEVICES)
		return NVS_WINDOW_MAX;
	return window_for(&meters[device], recent_ns);
}

uint64_t nvs_meter_typical_ns(void)
{
	uint64_t longest = 0;
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		uint64_t typical = atomic_load_explicit(&meters[i].typical_ns, memory_order_relaxed);
		longest = typical > longest ? typical : longest;
	}
	return longest;
}

static void log_window(struct device_meter *meter)
{
	uint32_t window = window_for(meter, 0);
	uint32_t logged = meter->window_logged != 0 ? meter->window_logged : NVS_WINDOW_MAX;
	if (window < 2 * logged && logged < 2 * window)
		return;
	meter->window_logged = window;
	NVS_INFO("Pending Kernel Window is %u", window);
}

static void average(_Atomic uint64_t *mean, uint64_t value, int over)
{
	uint64_t before = atomic_load(mean);
	int64_t step = ((int64_t)value - (int64_t)before) / over;
	uint64_t after = before == 0 ? value : (uint64_t)((int64_t)before + step);
	atomic_store(mean, after != 0 ? after : 1);
}

/* The first launch of a kernel, which loads it, says nothing about those that follow. Later a mean is a mean. */
static void average_cost(struct device_meter *meter, uint64_t cost)
{
	uint64_t before = atomic_load(&meter->cost_ns);
	uint64_t plain = before != 0 ? clamp(cost, 0, before * NVS_ROUND) : cost;
	uint32_t samples = (uint32_t)clamp(atomic_load(&meter->samples) + 1, 1, NVS_ROUND);
	atomic_store(&meter->samples, samples);
	average(&meter->cost_ns, plain, samples <= NVS_ROUND / 2 && plain < before ? 2 : (int)samples);
}

/* Billed is the estimate, but no more than the clock allows since these submissions began: streams that overlap, and a
 * few samples that say too much, never add up to more than the time that passed. */
static void account(struct device_meter *meter, const struct nvs_sample *sample, uint64_t cost)
{
	uint64_t typical = atomic_load(&meter->typical_ns);
	average_cost(meter, cost);
	/* Quickly down: the first launch of a kernel, which loads it, says nothing about those that follow. */
	uint64_t plain = typical != 0 ? clamp(cost, 0, typical * NVS_ROUND) : cost;
	average(&meter->typical_ns, plain, plain < typical ? 2 : NVS_ROUND);
	uint64_t start = meter->billed_until > sample->since ? meter->billed_until : sample->since;
	uint64_t now = nvs_now_ns();
	uint64_t most = now > start ? now - start : 0;
	uint64_t bill = clamp(sample->count * cost, 0, most);
	meter->billed_until = start + bill;
	atomic_fetch_add(&meter->busy_ns, cost > NVS_TINY_NS ? bill : 0);
	if (!atomic_load(&meter->by_slices))
		atomic_fetch_add(&meter->occupied_ns, bill);
}

/* Of the work alone: without what the events cost, and without what the GPU waited for the host. */
static void take_account(struct nvs_context *context, const struct nvs_sample *sample, uint64_t elapsed)
{
	if (sample->empty) {
		context->overhead = context->overhead == 0 || elapsed < context->overhead ? elapsed : context->overhead;
		return;
	}
	uint64_t extra = sample->late > context->overhead ? sample->late : context->overhead;
	uint64_t least = NVS_TINY_NS / NVS_ROUND; /* a sample at zero would pull an average down for long */
	uint64_t cost = elapsed > extra + least ? elapsed - extra : least;
	account(&meters[atomic_load(&context->device)], sample, cost);
}

/* False when the sample's work is still under way. */
static bool reap_sample(struct nvs_context *context, struct nvs_sample *sample)
{
	float ms = 0;
	CUresult done = nvs_real.cuEventQuery(sample->end);
	if (done == CUDA_ERROR_NOT_READY)
		return false;
	if (done == CUDA_SUCCESS)
		done = nvs_real.cuEventElapsedTime(&ms, sample->begin, sample->end);
	if (done == CUDA_SUCCESS && ms >= 0)
		take_account(context, sample, (uint64_t)((double)ms * (double)NVS_NS_PER_MS));
	free_sample(context, sample);
	return true;
}

static bool reap_context(struct nvs_context *context)
{
	uint32_t left = atomic_load(&context->under_way), end = atomic_load(&context->next_sample);
	int unready = 0;
	bool gap = false; /* a sample before this one is still under way */
	if (end - context->reaped > NVS_SAMPLES)
		context->reaped = end - NVS_SAMPLES;
	for (uint32_t i = context->reaped; i != end && left > 0 && unready < UNREADY_MAX; i++) {
		struct nvs_sample *sample = &context->samples[i % NVS_SAMPLES];
		uint32_t state = atomic_load(&sample->state);
		left -= state != NVS_SAMPLE_FREE;
		if (state == NVS_SAMPLE_PENDING && !reap_sample(context, sample))
			unready++;
		gap = gap || atomic_load(&sample->state) != NVS_SAMPLE_FREE;
		if (!gap)
			context->reaped = i + 1;
	}
	struct device_meter *meter = &meters[atomic_load(&context->device)];
	if (nvs_gate_state() == NVS_GATE_PACED && atomic_load(&meter->cost_ns) != 0)
		log_window(meter);
	return true;
}

static bool reap_if_any(struct nvs_context *context)
{
	return atomic_load(&context->under_way) == 0 || reap_context(context);
}

bool nvs_meter_pending(void)
{
	for (struct nvs_context *context = nvs_context_first(); context != NULL; context = context->next)
		if (atomic_load(&context->under_way) != 0)
			return true;
	return false;
}

void nvs_meter_poll(void)
{
	/* Somebody else is at it: a drain, which matters more. */
	if (!nvs_meter_pending() || pthread_mutex_trylock(&nvs_streams_lock) != 0)
		return;
	if (!atomic_load(&nvs_exiting))
		nvs_each_context(reap_if_any);
	pthread_mutex_unlock(&nvs_streams_lock);
}

void nvs_meter_usage(CUdevice device, struct nvs_usage_counters *out)
{
	*out = (struct nvs_usage_counters){.window = NVS_WINDOW_MAX};
	if (device < 0 || device >= NVS_MAX_DEVICES)
		return;
	struct device_meter *meter = &meters[device];
	out->occupied_us = atomic_load(&meter->occupied_ns) / NVS_NS_PER_US;
	/* The two parts are not read at one instant: what was told once is never taken back. */
	uint64_t submissions = nvs_gate_unaccounted(device) + atomic_load(&meter->submissions);
	uint64_t reported = atomic_load(&meter->reported);
	while (submissions > reported && !atomic_compare_exchange_weak(&meter->reported, &reported, submissions))
		;
	out->submissions = submissions > reported ? submissions : reported;
	if (nvs_gate_state() == NVS_GATE_PACED)
		out->window = nvs_meter_window(device, 0);
}

void nvs_pace_set_budget(uint64_t budget_us)
{
	atomic_store(&budget_ns, budget_us != 0 ? budget_us * NVS_NS_PER_US : NVS_IN_FLIGHT_LOOSE_NS);
	atomic_store(&window_max, budget_us != 0 && budget_us * NVS_NS_PER_US < NVS_IN_FLIGHT_LOOSE_NS
					  ? NVS_WINDOW_SMALL
					  : NVS_WINDOW_MAX);
}

uint64_t nvs_meter_budget(void)
{
	return atomic_load(&budget_ns);
}

uint64_t nvs_meter_busy_us(CUdevice device)
{
	if (device < 0 || device >= NVS_MAX_DEVICES)
		return 0;
	const struct device_meter *meter = &meters[device];
	uint64_t cost = atomic_load(&meter->cost_ns);
	uint64_t rest = cost > NVS_TINY_NS ? nvs_gate_unaccounted(device) * cost : 0;
	return (atomic_load(&meter->busy_ns) + rest) / NVS_NS_PER_US;
}

void nvs_meter_by_slices(CUdevice device, bool on)
{
	if (device >= 0 && device < NVS_MAX_DEVICES)
		atomic_store(&meters[device].by_slices, on);
}

void nvs_meter_used(CUdevice device, uint64_t ns)
{
	if (device >= 0 && device < NVS_MAX_DEVICES)
		atomic_fetch_add(&meters[device].occupied_ns, ns);
}

void nvs_meter_stop(void)
{
	atomic_store(&nvs_exiting, true);
	/* Let a driver call that is under way return, but do not hang on one that waits for the GPU. */
	for (int i = 0; i < (int)(NVS_LONG_NS / NVS_NS_PER_MS); i++) {
		if (pthread_mutex_trylock(&nvs_streams_lock) == 0) {
			pthread_mutex_unlock(&nvs_streams_lock);
			return;
		}
		nvs_sleep_ns(NVS_NS_PER_MS);
	}
}

void nvs_meter_after_fork(void)
{
	atomic_store(&nvs_exiting, false);
	for (int device = 0; device < NVS_MAX_DEVICES; device++)
		meters[device] = (struct device_meter){0};
}
