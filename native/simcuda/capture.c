/* Capturing streams into graphs, and what is forbidden meanwhile. */
#include <stdlib.h>

#include "sim.h"

static CUresult graph_new(CUgraph *graph)
{
	*graph = calloc(1, sizeof(**graph));
	if (*graph == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*graph)->magic = NVS_GRAPH;
	return CUDA_SUCCESS;
}

CUresult nvs_capture_add(CUgraph graph, const struct nvs_work *work)
{
	if (graph->broken != CUDA_SUCCESS)
		return graph->broken;
	if (graph->count == graph->room) {
		size_t room = graph->room * 2 + 16;
		struct nvs_work *nodes = realloc(graph->nodes, room * sizeof(*nodes));
		if (nodes == NULL)
			return CUDA_ERROR_OUT_OF_MEMORY;
		graph->nodes = nodes;
		graph->room = room;
	}
	graph->nodes[graph->count++] = *work;
	return CUDA_SUCCESS;
}

CUresult nvs_capture_break(CUgraph graph, CUresult why)
{
	graph->broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return why;
}

CUgraph nvs_capture_find(uint64_t number)
{
	CUgraph graph = nvs_process.capturing;
	while (graph != NULL && graph->capture != number)
		graph = graph->next;
	return graph;
}

/* The rules of cuThreadExchangeStreamCaptureMode: the calling thread's mode says which captures concern it. */
static bool concerns(const struct CUgraph_st *graph)
{
	if (nvs_thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || graph->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (graph->thread == nvs_thread_id())
		return true;
	return nvs_thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && graph->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult nvs_capture_forbids(void)
{
	CUresult result = CUDA_SUCCESS;
	for (CUgraph graph = nvs_process.capturing; graph != NULL; graph = graph->next)
		if (concerns(graph))
			result = nvs_capture_break(graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return result;
}

CUresult nvs_capture_forbids_legacy(CUcontext ctx)
{
	CUresult result = CUDA_SUCCESS;
	if (nvs_process.capturing == NULL)
		return result;
	for (CUstream stream = ctx->streams; stream != NULL; stream = stream->next)
		if (stream->capture != NULL && nvs_stream_blocks(stream))
			result = nvs_capture_break(stream->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return result;
}

NVS_API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (stream == stream->ctx->legacy)
		return nvs_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (stream->capture != NULL || mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return nvs_end(
			stream->capture != NULL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_VALUE);
	CUgraph graph;
	result = graph_new(&graph);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	static uint64_t captures;
	graph->capture = ++captures;
	graph->mode = mode;
	graph->thread = nvs_thread_id();
	graph->ctx = stream->ctx;
	graph->next = nvs_process.capturing;
	nvs_process.capturing = graph;
	stream->capture = graph;
	stream->capture_origin = true;
	return nvs_end(CUDA_SUCCESS);
}
NVS_PT(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))

NVS_API cuStreamBeginCapture(CUstream stream)
{
	return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
NVS_PT(cuStreamBeginCapture, _ptsz, (CUstream stream), (stream))

NVS_API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges,
	size_t count, CUstreamCaptureMode mode)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}
NVS_PT(cuStreamBeginCaptureToGraph, _ptsz,
	(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t count,
		CUstreamCaptureMode mode),
	(stream, graph, deps, edges, count, mode))

static void graph_free(CUgraph graph)
{
	graph->magic = NVS_DEAD;
	free(graph->nodes);
	free(graph);
}

NVS_API cuStreamEndCapture(CUstream handle, CUgraph *out)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	CUgraph graph = stream->capture;
	if (graph == NULL || !stream->capture_origin)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	for (CUcontext ctx = nvs_process.contexts; ctx != NULL; ctx = ctx->next)
		for (CUstream member = ctx->streams; member != NULL; member = member->next)
			if (member->capture == graph) {
				member->capture = NULL;
				member->capture_origin = false;
			}
	CUgraph *link = &nvs_process.capturing;
	while (*link != graph)
		link = &(*link)->next;
	*link = graph->next;
	result = graph->broken;
	if (result != CUDA_SUCCESS)
		graph_free(graph);
	if (out != NULL)
		*out = result == CUDA_SUCCESS ? graph : NULL;
	return nvs_end(result);
}
NVS_PT(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), (stream, graph))

NVS_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (stream->capture != NULL)
		*status = stream->capture->broken == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_ACTIVE
								  : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	else if (stream == stream->ctx->legacy)
		result = nvs_capture_forbids_legacy(stream->ctx);
	return nvs_end(result);
}
NVS_PT(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus *status), (stream, status))

NVS_API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **deps, size_t *count)
{
	CUresult result = cuStreamIsCapturing(handle, status);
	if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return result;
	CUstream stream;
	result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (id != NULL)
		*id = stream->capture->capture;
	if (graph != NULL)
		*graph = stream->capture;
	if (deps != NULL)
		*deps = NULL;
	if (count != NULL)
		*count = 0;
	return nvs_end(CUDA_SUCCESS);
}
NVS_PT(cuStreamGetCaptureInfo_v2, _ptsz,
	(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps,
		size_t *count),
	(stream, status, id, graph, deps, count))

NVS_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode former = nvs_thread.capture_mode;
	nvs_thread.capture_mode = *mode;
	*mode = former;
	return CUDA_SUCCESS;
}

/* ---- graphs ---- */

struct CUgraphExec_st {
	uint32_t magic;
	struct nvs_work *nodes;
	size_t count;
};

NVS_API cuGraphCreate(CUgraph *graph, unsigned flags)
{
	CUresult result = nvs_begin();
	return result == CUDA_SUCCESS ? nvs_end(graph_new(graph)) : result;
}

NVS_API cuGraphDestroy(CUgraph graph)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (graph == NULL || graph->magic != NVS_GRAPH)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	graph_free(graph);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (graph == NULL || graph->magic != NVS_GRAPH || count == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; nodes != NULL && i < *count && i < graph->count; i++)
		nodes[i] = (CUgraphNode)&graph->nodes[i];
	*count = graph->count;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (exec == NULL || graph == NULL || graph->magic != NVS_GRAPH)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	CUgraphExec made = calloc(1, sizeof(*made));
	struct nvs_work *nodes = calloc(graph->count + 1, sizeof(*nodes));
	if (made == NULL || nodes == NULL) {
		free(made);
		free(nodes);
		return nvs_end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	for (size_t i = 0; i < graph->count; i++)
		nodes[i] = graph->nodes[i];
	*made = (struct CUgraphExec_st){.magic = NVS_EXEC, .nodes = nodes, .count = graph->count};
	*exec = made;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
	if (log != NULL && size > 0)
		log[0] = '\0';
	return cuGraphInstantiateWithFlags(exec, graph, 0);
}

NVS_API cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (exec == NULL || exec->magic != NVS_EXEC)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	exec->magic = NVS_DEAD;
	free(exec->nodes);
	free(exec);
	return nvs_end(CUDA_SUCCESS);
}

static void count_graph(CUcontext ctx)
{
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	nvs_slot_count(node, &node->slots[ctx->slot], NVS_COUNT_GRAPH, 1);
	nvs_node_unlock(node);
}

NVS_API cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (exec == NULL || exec->magic != NVS_EXEC)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	bool captured = stream->capture != NULL;
	for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
		result = nvs_submit(stream, &exec->nodes[i], NULL);
		if (result == CUDA_SUCCESS && !captured && exec->nodes[i].effect.kind == NVS_EFFECT_HOST)
			nvs_host_functions_expect();
	}
	if (result == CUDA_SUCCESS && !captured)
		count_graph(stream->ctx);
	return nvs_end(result);
}
NVS_PT(cuGraphLaunch, _ptsz, (CUgraphExec graph, CUstream stream), (graph, stream))

NVS_API cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	return exec == NULL || exec->magic != NVS_EXEC ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
NVS_PT(cuGraphUpload, _ptsz, (CUgraphExec graph, CUstream stream), (graph, stream))
