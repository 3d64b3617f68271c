/* Events: markers in a stream that remember when they were reached. */
#include <stdlib.h>

#include "sim.h"

static CUevent free_events; /* reused, never given back, so that a stale handle is recognised */

NVS_API cuEventCreate(CUevent *event, unsigned flags)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (event == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	CUevent made = free_events;
	uint64_t record = made != NULL ? made->record : 0;
	if (made != NULL)
		free_events = made->next;
	else
		made = malloc(sizeof(*made));
	if (made == NULL)
		return nvs_end(CUDA_ERROR_OUT_OF_MEMORY);
	/* The count of records goes on, so that a marker left by a former owner of the object finds nobody. */
	*made = (struct CUevent_st){.magic = NVS_EVENT, .flags = flags, .ctx = ctx, .record = record + 1};
	*event = made;
	return nvs_end(CUDA_SUCCESS);
}

static CUresult begin_event(CUevent event)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (event == NULL || event->magic != NVS_EVENT)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	if (event->ctx->magic != NVS_CONTEXT)
		return nvs_end(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	nvs_catch_up();
	return CUDA_SUCCESS;
}

NVS_API cuEventDestroy_v2(CUevent event)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (event == NULL || event->magic != NVS_EVENT)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	event->magic = NVS_DEAD;
	event->record++;
	event->next = free_events;
	free_events = event;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

void nvs_event_done(CUevent event, uint64_t record, double at)
{
	if (event->record != record)
		return;
	event->done = true;
	event->done_at = at;
}

static CUresult record(CUevent event, CUstream stream)
{
	if (stream->ctx != event->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capture != NULL) {
		event->capture = stream->capture->capture;
		return stream->capture->broken;
	}
	struct nvs_work marker = nvs_work_marker();
	marker.effect = (struct nvs_effect){.kind = NVS_EFFECT_EVENT, .event = {event, ++event->record}};
	event->capture = 0;
	event->done = false;
	event->at = (struct nvs_dep){.slot = (uint32_t)stream->ctx->slot};
	return nvs_submit(stream, &marker, &event->at.seq);
}

NVS_API cuEventRecord(CUevent event, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	return nvs_end(event == NULL || event->magic != NVS_EVENT ? CUDA_ERROR_INVALID_HANDLE : record(event, stream));
}
NVS_PT(cuEventRecord, _ptsz, (CUevent event, CUstream stream), (event, stream))

NVS_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	return cuEventRecord(event, stream);
}
NVS_PT(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))

static CUresult check_capture(CUevent event)
{
	if (event->capture == 0)
		return nvs_capture_forbids();
	CUgraph graph = nvs_capture_find(event->capture);
	return graph == NULL ? CUDA_ERROR_CAPTURED_EVENT : nvs_capture_break(graph, CUDA_ERROR_CAPTURED_EVENT);
}

static bool pending(CUevent event)
{
	return event->at.seq != 0 && !event->done;
}

NVS_API cuEventQuery(CUevent event)
{
	CUresult result = begin_event(event);
	if (result != CUDA_SUCCESS)
		return result;
	result = check_capture(event);
	if (result == CUDA_SUCCESS)
		result = event->ctx->sticky;
	if (result == CUDA_SUCCESS && pending(event))
		result = CUDA_ERROR_NOT_READY;
	return nvs_end(result);
}

NVS_API cuEventSynchronize(CUevent event)
{
	CUresult result = begin_event(event);
	if (result != CUDA_SUCCESS)
		return result;
	result = check_capture(event);
	if (result == CUDA_SUCCESS && pending(event))
		result = nvs_wait(event->ctx, event->at.seq);
	return nvs_end(result == CUDA_SUCCESS ? event->ctx->sticky : result);
}

NVS_API cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	CUresult result = begin_event(start);
	if (result != CUDA_SUCCESS)
		return result;
	if (ms == NULL || end == NULL || end->magic != NVS_EVENT)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	bool timed = ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) == 0;
	if (!timed || start->at.seq == 0 || end->at.seq == 0)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	if (pending(start) || pending(end))
		return nvs_end(CUDA_ERROR_NOT_READY);
	*ms = (float)((end->done_at - start->done_at) / 1e6);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	return cuEventElapsedTime(ms, start, end);
}

NVS_API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (event == NULL || event->magic != NVS_EVENT)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	if (event->capture != 0) {
		/* The stream joins the capture; nodes run in the order in which they were captured. */
		CUgraph graph = nvs_capture_find(event->capture);
		if (graph == NULL || (stream->capture != NULL && stream->capture != graph))
			return nvs_end(CUDA_ERROR_CAPTURED_EVENT);
		stream->capture = graph;
		return nvs_end(CUDA_SUCCESS);
	}
	if (stream->capture != NULL)
		return nvs_end(CUDA_SUCCESS);
	if (!pending(event))
		return nvs_end(CUDA_SUCCESS);
	struct nvs_work marker = nvs_work_marker();
	return nvs_end(nvs_submit_after(stream, &marker, &event->at, NULL));
}
NVS_PT(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))
