/* Waiting for the GPU with events of our own. An event in a context's legacy stream follows all work in its blocking
 * streams, the per-thread default ones among them; every created stream gets an event as well, for it may be a
 * non-blocking one. */
#include "streams.h"

#include <stdlib.h>

#include "fatal.h"
#include "meter.h"
#include "resolve.h"

_Atomic bool nvs_exiting;

/* The stream's context is current. False when its work cannot be followed. */
static bool record(struct nvs_stream *stream)
{
	if (nvs_stream_capturing(stream->handle))
		return true;
	if (stream->last == NULL) {
		CUresult made = nvs_real.cuEventCreate(&stream->last, CU_EVENT_DEFAULT);
		if (made != CUDA_SUCCESS) {
			stream->last = NULL;
			return nvs_is_fatal(made);
		}
	}
	/* An error here is one that ended the context's work. */
	stream->pending = nvs_real.cuEventRecord(stream->last, stream->handle) == CUDA_SUCCESS;
	return true;
}

static bool record_context(struct nvs_context *context)
{
	bool followed = record(&context->legacy);
	for (struct nvs_stream *stream = context->streams; stream != NULL; stream = stream->next)
		followed = record(stream) && followed;
	return followed;
}

static bool finished(struct nvs_stream *stream)
{
	if (stream->pending && nvs_real.cuEventQuery(stream->last) != CUDA_ERROR_NOT_READY)
		stream->pending = false;
	return !stream->pending;
}

static bool finished_context(struct nvs_context *context)
{
	bool all = finished(&context->legacy);
	for (struct nvs_stream *stream = context->streams; all && stream != NULL; stream = stream->next)
		all = finished(stream);
	for (struct nvs_stream **link = &context->orphans; all && *link != NULL;) {
		struct nvs_stream *orphan = *link;
		all = finished(orphan);
		if (!all)
			break;
		*link = orphan->next;
		nvs_real.cuEventDestroy_v2(orphan->last);
		free(orphan);
	}
	return all;
}

bool nvs_drain_record(void)
{
	pthread_mutex_lock(&nvs_streams_lock);
	bool recorded =
		!atomic_load(&nvs_exiting) && atomic_load(&nvs_captures) == 0 && nvs_each_context(record_context);
	pthread_mutex_unlock(&nvs_streams_lock);
	return recorded;
}

bool nvs_drain_finished(void)
{
	pthread_mutex_lock(&nvs_streams_lock);
	bool done = !atomic_load(&nvs_exiting) && nvs_each_context(finished_context);
	pthread_mutex_unlock(&nvs_streams_lock);
	return done;
}

void nvs_drain_orphan(struct nvs_context *context, struct nvs_stream *stream)
{
	CUcontext popped;
	CUstreamCaptureMode mode = nvs_relax();
	if (nvs_real.cuCtxPushCurrent_v2(atomic_load(&context->handle)) == CUDA_SUCCESS) {
		record(stream);
		if (finished(stream) && stream->last != NULL) {
			nvs_real.cuEventDestroy_v2(stream->last);
			stream->last = NULL;
		}
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	nvs_unrelax(mode);
	if (!stream->pending) {
		free(stream);
		return;
	}
	stream->handle = NULL;
	stream->next = context->orphans;
	context->orphans = stream;
}
