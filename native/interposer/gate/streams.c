#include "gate/streams.h"

#include <stdlib.h>

#include "gate/entry.h"
#include "gate/gate.h"
#include "gate/upcalls.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

pthread_mutex_t nvs_streams_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint32_t nvs_captures;

static _Atomic(struct nvs_context *) contexts;

/* ---- contexts ---- */

struct nvs_context *nvs_context_first(void)
{
	return atomic_load(&contexts);
}

static struct nvs_context *find_context(CUcontext handle)
{
	for (struct nvs_context *context = atomic_load(&contexts); context != NULL; context = context->next)
		if (atomic_load(&context->handle) == handle)
			return context;
	return NULL;
}

/* The lock is held. NULL without memory: the context's work is then neither measured nor waited for by name. */
static struct nvs_context *add_context(CUcontext handle, CUdevice device)
{
	struct nvs_context *context = find_context(NULL);
	if (context == NULL) {
		context = calloc(1, sizeof(*context));
		if (context == NULL)
			return NULL;
		pthread_mutex_init(&context->pace.lock, NULL);
		context->pace.context = context;
		context->next = atomic_load(&contexts);
		atomic_store(&contexts, context);
	}
	atomic_store(&context->device, device);
	atomic_store(&context->handle, handle);
	return context;
}

static struct nvs_context *find_or_add(CUcontext handle, CUdevice device)
{
	pthread_mutex_lock(&nvs_streams_lock);
	struct nvs_context *context = find_context(handle);
	if (context == NULL)
		context = add_context(handle, device);
	pthread_mutex_unlock(&nvs_streams_lock);
	return context;
}

static struct nvs_context *context_for(CUcontext handle)
{
	CUdevice device;
	struct nvs_context *context = find_context(handle);
	if (context != NULL)
		return context;
	return nvs_context_device(handle, &device) == CUDA_SUCCESS ? find_or_add(handle, device) : NULL;
}

static bool is_handle(CUstream stream)
{
	return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

struct nvs_context *nvs_context_of(CUstream stream)
{
	CUcontext handle = NULL;
	CUgreenCtx green;
	CUresult found = CUDA_ERROR_NOT_SUPPORTED;
	if (!is_handle(stream))
		found = nvs_real.cuCtxGetCurrent(&handle);
	else if (nvs_real.cuStreamGetCtx_v2 != NULL) /* of a green context's stream: the primary one */
		found = nvs_real.cuStreamGetCtx_v2(stream, &handle, &green);
	else if (nvs_real.cuStreamGetCtx != NULL)
		found = nvs_real.cuStreamGetCtx(stream, &handle);
	return found == CUDA_SUCCESS && handle != NULL ? context_for(handle) : NULL;
}

CUcontext nvs_context_on(CUdevice device)
{
	for (struct nvs_context *context = atomic_load(&contexts); context != NULL; context = context->next) {
		CUcontext handle = atomic_load(&context->handle);
		if (handle != NULL && atomic_load(&context->device) == device)
			return handle;
	}
	return NULL;
}

uint32_t nvs_context_count(CUdevice device)
{
	uint32_t count = 0;
	for (struct nvs_context *context = atomic_load(&contexts); context != NULL; context = context->next)
		count += atomic_load(&context->handle) != NULL &&
			 (device == NVS_ANY_DEVICE || atomic_load(&context->device) == device);
	return count;
}

bool nvs_each_context(bool (*visit)(struct nvs_context *))
{
	bool all = true;
	if (!nvs_entry_answers())
		return false;
	CUstreamCaptureMode mode = nvs_relax();
	for (struct nvs_context *context = nvs_context_first(); context != NULL; context = context->next) {
		CUcontext handle = atomic_load(&context->handle), popped;
		if (handle == NULL || nvs_real.cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS)
			continue;
		all = visit(context) && all;
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	nvs_unrelax(mode);
	return all;
}

void nvs_context_created(CUcontext context, CUdevice device)
{
	find_or_add(context, device);
}

static void free_streams(struct nvs_stream **list)
{
	while (*list != NULL) {
		struct nvs_stream *stream = *list;
		*list = stream->next;
		free(stream);
	}
}

/* The driver destroys the events with their context. */
static void forget_context(struct nvs_context *context)
{
	atomic_store(&context->handle, NULL);
	free_streams(&context->streams);
	free_streams(&context->orphans);
	context->legacy = (struct nvs_stream){0};
	for (uint32_t i = 0; i < NVS_SAMPLES; i++) {
		struct nvs_sample *sample = &context->samples[i];
		sample->begin = sample->end = NULL;
		atomic_store(&sample->state, NVS_SAMPLE_FREE);
	}
	atomic_store(&context->under_way, 0);
	atomic_store(&context->calibrated, 0);
	context->overhead = 0;
	pthread_mutex_lock(&context->pace.lock);
	for (uint32_t i = 0; i < NVS_MARKERS; i++)
		context->pace.markers[i] = (struct nvs_marker){0};
	context->pace.begun = NULL;
	context->pace.begun_known = false;
	context->pace.average_ns = context->pace.recent_ns = context->pace.latest_ns = context->pace.waited = 0;
	pthread_mutex_unlock(&context->pace.lock);
}

void nvs_context_destroyed(CUcontext handle)
{
	pthread_mutex_lock(&nvs_streams_lock);
	struct nvs_context *context = find_context(handle);
	if (context != NULL)
		forget_context(context);
	pthread_mutex_unlock(&nvs_streams_lock);
}

/* ---- captures ---- */

struct capture {
	CUstream stream;
	pthread_t thread; /* of CU_STREAM_PER_THREAD */
	struct capture *next;
};

static struct capture *captures;

CUstreamCaptureMode nvs_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (nvs_real.cuThreadExchangeStreamCaptureMode != NULL)
		nvs_real.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

void nvs_unrelax(CUstreamCaptureMode before)
{
	if (nvs_real.cuThreadExchangeStreamCaptureMode != NULL)
		nvs_real.cuThreadExchangeStreamCaptureMode(&before);
}

bool nvs_stream_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (stream == NULL || stream == CU_STREAM_LEGACY || nvs_real.cuStreamIsCapturing == NULL)
		return false;
	return nvs_real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Told before the driver is, so that a drain that saw no capture is through with the legacy stream. */
static struct capture *capture_begins(CUstream stream)
{
	struct capture *capture = malloc(sizeof(*capture));
	if (capture == NULL)
		return NULL;
	pthread_mutex_lock(&nvs_streams_lock);
	*capture = (struct capture){.stream = stream, .thread = pthread_self(), .next = captures};
	captures = capture;
	atomic_fetch_add(&nvs_captures, 1);
	pthread_mutex_unlock(&nvs_streams_lock);
	return capture;
}

/* The lock is held. */
static void forget_capture(CUstream stream)
{
	for (struct capture **link = &captures; *link != NULL; link = &(*link)->next) {
		struct capture *capture = *link;
		if (capture->stream != stream ||
			(stream == CU_STREAM_PER_THREAD && !pthread_equal(capture->thread, pthread_self())))
			continue;
		*link = capture->next;
		free(capture);
		atomic_fetch_sub(&nvs_captures, 1);
		return;
	}
}

static void capture_ended(CUstream stream)
{
	pthread_mutex_lock(&nvs_streams_lock);
	forget_capture(stream);
	pthread_mutex_unlock(&nvs_streams_lock);
	/* What went into the graph was no work: the next sample does not stand for it. */
	if (nvs_self != NULL)
		atomic_store(&nvs_self->accounted, atomic_load_explicit(&nvs_self->submissions, memory_order_relaxed));
}

#define REAL_OR_FAIL(name)                                                                                             \
	do {                                                                                                           \
		if (!nvs_resolve_driver() || nvs_real.name == NULL)                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
	} while (0);                                                                                                   \
	NVS_ENTER_DRIVER

/* The wait for the turn is outside the entry: a process that waits for it may sleep. */
#define BEGIN_CAPTURE(name, params, args, where)                                                                       \
	static CUresult begin_##name params                                                                            \
	{                                                                                                              \
		REAL_OR_FAIL(name);                                                                                    \
		return nvs_real.name args;                                                                             \
	}                                                                                                              \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		nvs_gate_enter_unmeasured(); /* what is captured names memory, which has to be there */                \
		bool noted = capture_begins(where) != NULL;                                                            \
		nvs_gate_leave();                                                                                      \
		if (!noted)                                                                                            \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		CUresult result = begin_##name args;                                                                   \
		if (result != CUDA_SUCCESS)                                                                            \
			capture_ended(where);                                                                          \
		return result;                                                                                         \
	}
#define BEGIN_CAPTURE_PT(name, params, args)                                                                           \
	BEGIN_CAPTURE(name, params, args, stream) BEGIN_CAPTURE(name##_ptsz, params, args, NVS_PER_THREAD(stream))

BEGIN_CAPTURE_PT(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN_CAPTURE_PT(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN_CAPTURE_PT(cuStreamBeginCaptureToGraph,
	(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t count,
		CUstreamCaptureMode mode),
	(stream, graph, deps, edges, count, mode))
BEGIN_CAPTURE_PT(cuStreamBeginRecaptureToGraph,
	(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *differs, void *data),
	(stream, mode, graph, differs, data))

/* An attempt to end it from the wrong thread leaves the capture as it was. */
#define END_CAPTURE(name, where)                                                                                       \
	NVS_EXPORT CUresult name(CUstream stream, CUgraph *graph)                                                      \
	{                                                                                                              \
		REAL_OR_FAIL(name);                                                                                    \
		CUresult result = nvs_real.name(stream, graph);                                                        \
		if (result == CUDA_SUCCESS || !nvs_stream_capturing(where))                                            \
			capture_ended(where);                                                                          \
		return result;                                                                                         \
	}

END_CAPTURE(cuStreamEndCapture, stream)
END_CAPTURE(cuStreamEndCapture_ptsz, NVS_PER_THREAD(stream))

/* ---- streams ---- */

static void stream_created(CUstream handle)
{
	struct nvs_context *context = nvs_context_of(handle);
	struct nvs_stream *stream = context != NULL ? calloc(1, sizeof(*stream)) : NULL;
	if (stream == NULL)
		return;
	pthread_mutex_lock(&nvs_streams_lock);
	stream->handle = handle;
	stream->next = context->streams;
	context->streams = stream;
	pthread_mutex_unlock(&nvs_streams_lock);
}

/* The lock is held. */
static struct nvs_stream *take_stream(struct nvs_context *context, CUstream handle)
{
	for (struct nvs_stream **link = &context->streams; *link != NULL; link = &(*link)->next) {
		struct nvs_stream *stream = *link;
		if (stream->handle != handle)
			continue;
		*link = stream->next;
		return stream;
	}
	return NULL;
}

static void stream_destroyed(CUstream handle)
{
	struct nvs_stream *stream = NULL;
	pthread_mutex_lock(&nvs_streams_lock);
	nvs_ordered_stream_ends(handle);
	forget_capture(handle);
	for (struct nvs_context *context = nvs_context_first(); context != NULL && stream == NULL;
		context = context->next) {
		stream = take_stream(context, handle);
		if (stream != NULL)
			nvs_drain_orphan(context, stream);
	}
	pthread_mutex_unlock(&nvs_streams_lock);
}

NVS_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	REAL_OR_FAIL(cuStreamCreate);
	CUresult result = nvs_real.cuStreamCreate(stream, flags);
	if (result == CUDA_SUCCESS)
		stream_created(*stream);
	return result;
}

NVS_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	REAL_OR_FAIL(cuStreamCreateWithPriority);
	CUresult result = nvs_real.cuStreamCreateWithPriority(stream, flags, priority);
	if (result == CUDA_SUCCESS)
		stream_created(*stream);
	return result;
}

NVS_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
	REAL_OR_FAIL(cuGreenCtxStreamCreate);
	CUresult result = nvs_real.cuGreenCtxStreamCreate(stream, green, flags, priority);
	if (result == CUDA_SUCCESS)
		stream_created(*stream);
	return result;
}

NVS_EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	REAL_OR_FAIL(cuStreamDestroy);
	stream_destroyed(stream);
	return nvs_real.cuStreamDestroy(stream);
}

NVS_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	REAL_OR_FAIL(cuStreamDestroy_v2);
	stream_destroyed(stream);
	return nvs_real.cuStreamDestroy_v2(stream);
}

void nvs_streams_after_fork(void)
{
	pthread_mutex_init(&nvs_streams_lock, NULL);
	for (struct nvs_context *context = nvs_context_first(); context != NULL; context = context->next) {
		pthread_mutex_init(&context->pace.lock, NULL);
		forget_context(context);
	}
	while (captures != NULL) {
		struct capture *capture = captures;
		captures = capture->next;
		free(capture);
	}
	atomic_store(&nvs_captures, 0);
}
