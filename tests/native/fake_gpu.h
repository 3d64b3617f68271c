/* A GPU in a few lines, for tests of the gate and the link: streams that are busy until some moment, events that
 * remember one, and rules that are checked on every call. It stands in for the driver, for memory, and for ipc. */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "ipc/ipc.h"
#include "memory/memory.h"
#include "memory/ordered/ordered.h"
#include "memory/swap/backing.h"
#include "memory/swap/mover.h"
#include "memory/virtual/virtual.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                      \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

#define FAKE_CONTEXT ((CUcontext)0x10)
#define FAKE_STREAMS 16
#define FAKE_FIRST_STREAM 0x100
#define FAKE_HELD UINT64_MAX /* cost of a launch that ends when the test lets go */

struct fake_stream {
	uint64_t busy_until;
	bool alive, blocking, capturing;
};

struct fake_event {
	uint64_t at;
	bool timed;
};

static struct {
	pthread_mutex_t lock;
	struct fake_stream streams[FAKE_STREAMS]; /* the first is the legacy stream */
	_Atomic uint64_t cost;                    /* of a launch, ns; or FAKE_HELD */
	_Atomic uint64_t let_go_at;               /* when all that was held ends; FAKE_HELD: not yet */
	_Atomic uint64_t launches, captured, most_in_flight;
	uint64_t done_at[1 << 16]; /* of each launch */
	_Atomic uint64_t timing_events_recorded;
	_Atomic int pushed; /* contexts, less those popped */
	void (*on_launch)(void);
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .streams = {{.alive = true, .blocking = true}}, .let_go_at = FAKE_HELD};

struct nvs_real nvs_real;
__thread int nvs_inside;

bool nvs_resolve_driver(void)
{
	return true;
}

struct nvs_real_nvml nvs_nvml;

bool nvs_resolve_nvml(void)
{
	return false;
}

void nvs_resolve_after_fork(void)
{
}

void nvs_memory_after_fork(void)
{
}

void nvs_ordered_after_fork(void)
{
}

void nvs_virtual_after_fork(void)
{
}

void nvs_ipc_after_fork(void)
{
}

bool nvs_backing_supported(CUdevice device)
{
	return true;
}

static _Atomic unsigned fake_kicks; /* of the mover */

void nvs_mover_kick(void)
{
	atomic_fetch_add(&fake_kicks, 1);
}

static _Atomic uint64_t fake_switch_ns; /* what the last switch took */

uint64_t nvs_mover_switch_ns(void)
{
	return atomic_load(&fake_switch_ns);
}

void nvs_ordered_stream_ends(CUstream stream)
{
}

void nvs_mover_stop(void)
{
}

void nvs_mover_pause(void)
{
}

void nvs_mover_resume(void)
{
}

CUresult nvs_context_device(CUcontext context, CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

/* In a forked child, first of all: a thread of the parent's may have been inside. */
__attribute__((unused)) static void fake_after_fork(void)
{
	pthread_mutex_init(&fake.lock, NULL);
}

static struct fake_stream *fake_stream(CUstream handle)
{
	uintptr_t index = (uintptr_t)handle >= FAKE_FIRST_STREAM ? (uintptr_t)handle - FAKE_FIRST_STREAM + 1 : 0;
	CHECK(index < FAKE_STREAMS && fake.streams[index].alive);
	return &fake.streams[index];
}

static bool fake_any_capture(void)
{
	for (int i = 0; i < FAKE_STREAMS; i++)
		if (fake.streams[i].capturing)
			return true;
	return false;
}

static uint64_t fake_moment(uint64_t at)
{
	return at == FAKE_HELD ? atomic_load(&fake.let_go_at) : at;
}

/* What is held ends now, and launches cost nothing from here on. Once per process. */
static inline void fake_let_go(void)
{
	fake.cost = 0;
	fake.let_go_at = nvs_now_ns();
}

/* When everything in the stream so far is finished. The legacy stream follows all blocking ones. */
static uint64_t fake_end(struct fake_stream *stream)
{
	uint64_t end = fake_moment(stream->busy_until);
	for (int i = 0; stream == &fake.streams[0] && i < FAKE_STREAMS; i++)
		if (fake.streams[i].blocking && fake_moment(fake.streams[i].busy_until) > end)
			end = fake_moment(fake.streams[i].busy_until);
	return end;
}

static uint64_t fake_in_flight(void)
{
	uint64_t count = 0, now = nvs_now_ns();
	for (uint64_t i = fake.launches; i > 0 && fake_moment(fake.done_at[(i - 1) & 0xffff]) > now; i--)
		count++;
	return count;
}

static CUresult fake_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, CUstream handle, void **params, void **extra)
{
	if (fake.on_launch != NULL)
		fake.on_launch();
	pthread_mutex_lock(&fake.lock);
	struct fake_stream *stream = fake_stream(handle);
	CHECK(stream != &fake.streams[0] || !fake_any_capture());
	if (stream->capturing) {
		fake.captured++;
	} else {
		uint64_t now = nvs_now_ns(), start = fake_end(stream);
		uint64_t cost = fake.cost;
		bool held = start == FAKE_HELD || cost == FAKE_HELD;
		stream->busy_until = held ? FAKE_HELD : (start > now ? start : now) + cost;
		fake.done_at[fake.launches & 0xffff] = stream->busy_until;
		fake.launches++;
		uint64_t in_flight = fake_in_flight();
		if (in_flight > fake.most_in_flight)
			fake.most_in_flight = in_flight;
	}
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
	struct fake_event *made = calloc(1, sizeof(*made));
	made->timed = !(flags & CU_EVENT_DISABLE_TIMING);
	*event = (CUevent)made;
	return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
	free(event);
	return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream handle)
{
	struct fake_event *fake_event = (struct fake_event *)event;
	pthread_mutex_lock(&fake.lock);
	struct fake_stream *stream = fake_stream(handle);
	CHECK(!stream->capturing);
	CHECK(stream != &fake.streams[0] || !fake_any_capture());
	uint64_t now = nvs_now_ns(), end = fake_end(stream);
	fake_event->at = end > now ? end : now;
	fake.timing_events_recorded += fake_event->timed;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static uint64_t fake_event_at(CUevent event)
{
	pthread_mutex_lock(&fake.lock);
	uint64_t at = fake_moment(((struct fake_event *)event)->at);
	pthread_mutex_unlock(&fake.lock);
	return at;
}

static CUresult fake_event_query(CUevent event)
{
	return fake_event_at(event) <= nvs_now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_event_synchronize(CUevent event)
{
	uint64_t at, now;
	while ((at = fake_event_at(event)) > (now = nvs_now_ns()))
		nvs_sleep_ns(at == FAKE_HELD ? 100 * NVS_NS_PER_US : at - now);
	return CUDA_SUCCESS;
}

static CUresult fake_event_elapsed(float *ms, CUevent begin, CUevent end)
{
	*ms = (float)((double)(int64_t)(fake_event_at(end) - fake_event_at(begin)) / 1e6);
	return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
	pthread_mutex_lock(&fake.lock);
	uintptr_t index = 1;
	while (index < FAKE_STREAMS && fake.streams[index].alive)
		index++;
	CHECK(index < FAKE_STREAMS);
	fake.streams[index] = (struct fake_stream){.alive = true, .blocking = flags == 0};
	pthread_mutex_unlock(&fake.lock);
	*stream = (CUstream)(FAKE_FIRST_STREAM + index - 1);
	return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream handle)
{
	pthread_mutex_lock(&fake.lock);
	struct fake_stream *stream = fake_stream(handle);
	stream->alive = stream->capturing = false;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_stream_context(CUstream stream, CUcontext *context)
{
	*context = FAKE_CONTEXT;
	return CUDA_SUCCESS;
}

static CUresult fake_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
	pthread_mutex_lock(&fake.lock);
	*status = fake_stream(handle)->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
	pthread_mutex_lock(&fake.lock);
	fake_stream(handle)->capturing = true;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_end_capture(CUstream handle, CUgraph *graph)
{
	pthread_mutex_lock(&fake.lock);
	fake_stream(handle)->capturing = false;
	pthread_mutex_unlock(&fake.lock);
	*graph = NULL;
	return CUDA_SUCCESS;
}

static CUresult fake_current(CUcontext *context)
{
	*context = FAKE_CONTEXT;
	return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext context)
{
	fake.pushed++;
	return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
	CHECK(fake.pushed-- > 0);
	*context = FAKE_CONTEXT;
	return CUDA_SUCCESS;
}

static CUresult fake_uuid(CUuuid *uuid, CUdevice device)
{
	for (int i = 0; i < 16; i++)
		uuid->bytes[i] = (char)(i + 16 * device);
	return CUDA_SUCCESS;
}

static inline void fake_install(uint64_t cost_ns)
{
	fake.cost = cost_ns;
	nvs_real.cuLaunchKernel = fake_launch;
	nvs_real.cuEventCreate = fake_event_create;
	nvs_real.cuEventDestroy_v2 = fake_event_destroy;
	nvs_real.cuEventRecord = fake_event_record;
	nvs_real.cuEventQuery = fake_event_query;
	nvs_real.cuEventSynchronize = fake_event_synchronize;
	nvs_real.cuEventElapsedTime = fake_event_elapsed;
	nvs_real.cuStreamCreate = fake_stream_create;
	nvs_real.cuStreamDestroy_v2 = fake_stream_destroy;
	nvs_real.cuStreamGetCtx = fake_stream_context;
	nvs_real.cuStreamIsCapturing = fake_capturing;
	nvs_real.cuStreamBeginCapture_v2 = fake_begin_capture;
	nvs_real.cuStreamEndCapture = fake_end_capture;
	nvs_real.cuCtxGetCurrent = fake_current;
	nvs_real.cuCtxPushCurrent_v2 = fake_push;
	nvs_real.cuCtxPopCurrent_v2 = fake_pop;
	nvs_real.cuDeviceGetUuid_v2 = fake_uuid;
}

/* One launch of the fake kernel, through our wrapper. */
static inline CUresult fake_submit(CUstream stream)
{
	return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static inline bool fake_all_done(void)
{
	pthread_mutex_lock(&fake.lock);
	bool done = fake_in_flight() == 0;
	pthread_mutex_unlock(&fake.lock);
	return done;
}

#endif
