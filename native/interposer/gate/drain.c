/* Waiting for the GPU with events of our own. An event in a context's legacy stream follows all work in its blocking
 * streams, the per-thread default ones among them; every created stream gets an event as well, for it may be a
 * non-blocking one. */
#include "gate/streams.h"

#include <stdlib.h>

#include "base/fatal.h"
#include "gate/meter.h"
#include "resolve/resolve.h"

_Atomic bool nvs_exiting;

/* The stream's context is current. False when its work cannot be followed. */
static bool record(struct nvs_stream *stream, CUevent *event, unsigned flags)
{
	if (nvs_stream_capturing(stream->handle))
		return true;
	if (*event == NULL) {
		CUresult made = nvs_real.cuEventCreate(event, flags);
		if (made != CUDA_SUCCESS) {
			*event = NULL;
			return nvs_is_fatal(made);
		}
	}
	stream->last = *event;
	/* An error here is one that ended the context's work. */
	stream->pending = nvs_real.cuEventRecord(stream->last, stream->handle) == CUDA_SUCCESS;
	return true;
}

static bool record_plain(struct nvs_stream *stream)
{
	return record(stream, &stream->plain, CU_EVENT_DISABLE_TIMING);
}

static bool record_timed(struct nvs_stream *stream)
{
	return record(stream, &stream->timed, CU_EVENT_DEFAULT);
}

static bool record_all(struct nvs_context *context, bool (*record_one)(struct nvs_stream *))
{
	bool followed = record_one(&context->legacy);
	for (struct nvs_stream *stream = context->streams; stream != NULL; stream = stream->next)
		followed = record_one(stream) && followed;
	return followed;
}

static bool record_context(struct nvs_context *context)
{
	return record_all(context, record_plain);
}

static bool record_context_timed(struct nvs_context *context)
{
	return record_all(context, record_timed);
}

static void destroy_events(struct nvs_stream *stream)
{
	if (stream->plain != NULL)
		nvs_real.cuEventDestroy_v2(stream->plain);
	if (stream->timed != NULL)
		nvs_real.cuEventDestroy_v2(stream->timed);
	stream->plain = stream->timed = stream->last = NULL;
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
		destroy_events(orphan);
		free(orphan);
	}
	return all;
}

static bool record_everywhere(bool (*visit)(struct nvs_context *))
{
	pthread_mutex_lock(&nvs_streams_lock);
	bool recorded = !atomic_load(&nvs_exiting) && atomic_load(&nvs_captures) == 0 && nvs_each_context(visit);
	pthread_mutex_unlock(&nvs_streams_lock);
	return recorded;
}

bool nvs_drain_record(void)
{
	return record_everywhere(record_context);
}

bool nvs_drain_record_timed(void)
{
	return record_everywhere(record_context_timed);
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
		record_plain(stream);
		if (finished(stream))
			destroy_events(stream);
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
