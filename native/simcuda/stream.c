/* Streams: created ones, the legacy one that waits for and holds up the others, and one per thread. */
#include <stdlib.h>

#include "sim.h"

#define NON_BLOCKING 1u
#define LEGACY_QUEUE 0u

static CUstream free_streams; /* objects are reused, never given back, so that a stale handle is recognised */
static uint64_t next_stream_id = 1;

static uint32_t pick_queue(CUcontext ctx)
{
	uint64_t taken = 0;
	for (CUstream stream = ctx->streams; stream != NULL; stream = stream->next)
		taken |= 1ull << stream->queue;
	return ~taken != 0 ? (uint32_t)__builtin_ctzll(~taken) : 1 + (uint32_t)(next_stream_id % (NVS_QUEUES - 1));
}

CUresult nvs_stream_new(CUcontext ctx, unsigned flags, int priority, CUstream *out)
{
	CUstream stream = free_streams;
	if (stream != NULL)
		free_streams = stream->next;
	else
		stream = malloc(sizeof(*stream));
	if (stream == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*stream = (struct CUstream_st){.magic = NVS_STREAM,
		.flags = flags,
		.priority = priority,
		.queue = pick_queue(ctx),
		.id = next_stream_id++,
		.ctx = ctx,
		.next = ctx->streams};
	ctx->streams = stream;
	*out = stream;
	return CUDA_SUCCESS;
}

static void unlink_stream(CUstream stream)
{
	CUstream *link = &stream->ctx->streams;
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	stream->magic = NVS_DEAD;
	stream->next = free_streams;
	free_streams = stream;
}

void nvs_streams_free(CUcontext ctx)
{
	while (ctx->streams != NULL) {
		if (ctx->streams->capture != NULL)
			nvs_capture_break(ctx->streams->capture, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		unlink_stream(ctx->streams);
	}
}

static CUstream thread_stream(CUcontext ctx)
{
	uint64_t self = nvs_thread_id();
	CUstream stream = ctx->streams;
	while (stream != NULL && stream->thread != self)
		stream = stream->next;
	if (stream == NULL && nvs_stream_new(ctx, 0, 0, &stream) == CUDA_SUCCESS)
		stream->thread = self;
	return stream;
}

CUstream nvs_stream_of(CUcontext ctx, CUstream handle)
{
	if (handle == NULL)
		handle = nvs_thread.per_thread_stream > 0 ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	if (handle == CU_STREAM_LEGACY)
		return ctx->legacy;
	return handle == CU_STREAM_PER_THREAD ? thread_stream(ctx) : handle;
}

bool nvs_stream_blocks(CUstream stream)
{
	return (stream->flags & NON_BLOCKING) == 0 && stream != stream->ctx->legacy;
}

NVS_API cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (stream == NULL || flags > NON_BLOCKING)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	return nvs_end(nvs_stream_new(ctx, flags, priority, stream));
}

NVS_API cuStreamCreate(CUstream *stream, unsigned flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

NVS_API cuStreamDestroy_v2(CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (stream == stream->ctx->legacy || stream->thread != 0)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	if (stream->capture != NULL)
		nvs_capture_break(stream->capture, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	unlink_stream(stream);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuStreamDestroy(CUstream handle)
{
	return cuStreamDestroy_v2(handle);
}

/* Waiting for, or asking after, a stream that captures makes no sense; of others it is unsafe while some capture. */
static CUresult check_capture(CUstream stream)
{
	if (stream->capture != NULL)
		return nvs_capture_break(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CUresult result = nvs_capture_forbids();
	if (result == CUDA_SUCCESS && stream == stream->ctx->legacy)
		result = nvs_capture_forbids_legacy(stream->ctx);
	return result;
}

NVS_API cuStreamSynchronize(CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	result = check_capture(stream);
	return nvs_end(result == CUDA_SUCCESS ? nvs_wait_stream(stream) : result);
}
NVS_PT(cuStreamSynchronize, _ptsz, (CUstream stream), (stream))

NVS_API cuStreamQuery(CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	result = check_capture(stream);
	if (result == CUDA_SUCCESS && !nvs_stream_is_done(stream))
		result = CUDA_ERROR_NOT_READY;
	return nvs_end(result);
}
NVS_PT(cuStreamQuery, _ptsz, (CUstream stream), (stream))

NVS_API cuStreamGetCtx(CUstream handle, CUcontext *ctx)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	*ctx = stream->ctx;
	return nvs_end(CUDA_SUCCESS);
}
NVS_PT(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext *ctx), (stream, ctx))

NVS_API cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green)
{
	*green = NULL;
	return cuStreamGetCtx(stream, ctx);
}
NVS_PT(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext *ctx, CUgreenCtx *green), (stream, ctx, green))

NVS_API cuStreamGetFlags(CUstream handle, unsigned *flags)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	*flags = stream->flags;
	return nvs_end(CUDA_SUCCESS);
}
NVS_PT(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned *flags), (stream, flags))

NVS_API cuStreamGetPriority(CUstream handle, int *priority)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	*priority = stream->priority;
	return nvs_end(CUDA_SUCCESS);
}
NVS_PT(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), (stream, priority))

NVS_API cuStreamGetId(CUstream handle, unsigned long long *id)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	*id = stream->id;
	return nvs_end(CUDA_SUCCESS);
}
NVS_PT(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long *id), (stream, id))
