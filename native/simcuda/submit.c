/* Submission, completion and waiting. */
#include <stdlib.h>

#include "sim.h"

#define ROOM_TO_WAIT_FOR (NVS_RING / 8) /* a blocked submitter sleeps until this much is free, not for every place */

struct finished {
	CUcontext ctx;
	uint64_t seq, order;
	double at;
};

static struct finished *finished;
static size_t finished_room;

static int by_order(const void *a, const void *b)
{
	uint64_t left = ((const struct finished *)a)->order, right = ((const struct finished *)b)->order;
	return left < right ? -1 : left > right;
}

static bool make_room(size_t count)
{
	if (count <= finished_room)
		return true;
	struct finished *grown = realloc(finished, count * sizeof(*grown));
	if (grown == NULL)
		return false;
	finished = grown;
	finished_room = count;
	return true;
}

/* What is done but not yet carried out, in order of completion. */
static size_t collect(void)
{
	size_t count = 0;
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	for (CUcontext ctx = nvs_process.contexts; ctx != NULL; ctx = ctx->next) {
		struct nvs_slot *slot = &node->slots[ctx->slot];
		uint64_t missing = slot->done_total - ctx->retired_total;
		if (missing == 0 || !make_room(count + missing))
			continue;
		for (uint64_t seq = slot->retired + 1; missing > 0 && seq <= slot->tail; seq++) {
			const struct nvs_op *op = nvs_slot_op(slot, seq);
			if (op->state != NVS_OP_DONE)
				continue;
			finished[count++] = (struct finished){ctx, seq, op->done_order, op->done_at};
			missing--;
		}
	}
	nvs_node_unlock(node);
	if (count > 1)
		qsort(finished, count, sizeof(*finished), by_order);
	return count;
}

static void retire(size_t count)
{
	nvs_node_lock(nvs_process.node);
	for (size_t i = 0; i < count; i++) {
		CUcontext ctx = finished[i].ctx;
		struct nvs_slot *slot = &nvs_process.node->slots[ctx->slot];
		nvs_slot_op(slot, finished[i].seq)->state = NVS_OP_RETIRED;
		ctx->retired_total++;
		while (slot->retired < slot->tail && nvs_slot_op(slot, slot->retired + 1)->state == NVS_OP_RETIRED)
			slot->retired++;
	}
	nvs_node_unlock(nvs_process.node);
}

static void carry_out(void)
{
	size_t count = collect();
	if (count == 0)
		return;
	for (size_t i = 0; i < count; i++) {
		CUcontext ctx = finished[i].ctx;
		struct nvs_effect *effect = &ctx->effects[finished[i].seq % NVS_RING];
		if (effect->kind == NVS_EFFECT_EVENT)
			nvs_event_done(effect->event.event, effect->event.record, finished[i].at);
		else if (ctx->sticky == CUDA_SUCCESS)
			ctx->sticky = nvs_effect_run(ctx, effect);
	}
	retire(count);
}

void nvs_catch_up(void)
{
	do
		carry_out();
	while (nvs_waits_end());
}

bool nvs_is_done(CUcontext ctx, uint64_t seq)
{
	if (seq == 0)
		return true;
	nvs_node_lock(nvs_process.node);
	const struct nvs_op *op = nvs_slot_op(&nvs_process.node->slots[ctx->slot], seq);
	bool done = op->seq != seq || op->state == NVS_OP_RETIRED;
	nvs_node_unlock(nvs_process.node);
	return done;
}

CUresult nvs_wait(CUcontext ctx, uint64_t seq)
{
	struct nvs_node *node = nvs_process.node;
	for (;;) {
		nvs_catch_up();
		if (ctx->magic != NVS_CONTEXT)
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		if (ctx->sticky != CUDA_SUCCESS)
			return ctx->sticky;
		nvs_node_lock(node);
		const struct nvs_op *op = nvs_slot_op(&node->slots[ctx->slot], seq);
		bool over = seq == 0 || op->seq != seq || op->state == NVS_OP_RETIRED;
		bool look_again = op->state == NVS_OP_DONE;
		double until = over || look_again ? 0 : nvs_slot_earliest(node, ctx->slot, seq);
		uint32_t seen = node->wake;
		nvs_node_unlock(node);
		if (over)
			return CUDA_SUCCESS;
		if (look_again)
			continue;
		nvs_unlock();
		nvs_node_sleep(node, until, seen);
		nvs_lock();
	}
}

/* The newest submission up to `newest` that is not carried out, 0: none. Without looking whether time has passed. */
static uint64_t newest_open(CUcontext ctx, uint64_t newest)
{
	struct nvs_slot *slot = &nvs_process.node->slots[ctx->slot];
	nvs_node_lock(nvs_process.node);
	uint64_t seq = newest < slot->tail ? newest : slot->tail;
	while (seq > slot->retired && nvs_slot_op(slot, seq)->state == NVS_OP_RETIRED)
		seq--;
	bool open = seq > slot->retired;
	nvs_node_unlock(nvs_process.node);
	return open ? seq : 0;
}

CUresult nvs_wait_stream(CUstream stream)
{
	if (stream != stream->ctx->legacy)
		return nvs_wait(stream->ctx, stream->last);
	/* The legacy stream stands for all that synchronise with it, and a marker in it waits for them. */
	struct nvs_work marker = nvs_work_marker();
	return nvs_submit_and_wait(stream, &marker);
}

bool nvs_stream_is_done(CUstream stream)
{
	CUcontext ctx = stream->ctx;
	bool done = nvs_is_done(ctx, stream->last);
	if (stream == ctx->legacy)
		for (CUstream other = ctx->streams; other != NULL && done; other = other->next)
			done = !nvs_stream_blocks(other) || nvs_is_done(ctx, other->last);
	return done;
}

CUresult nvs_wait_context(CUcontext ctx)
{
	uint64_t newest = newest_open(ctx, UINT64_MAX), seq = newest;
	CUresult result = CUDA_SUCCESS;
	while (seq != 0 && result == CUDA_SUCCESS) {
		result = nvs_wait(ctx, seq);
		seq = result == CUDA_SUCCESS ? newest_open(ctx, newest) : 0;
	}
	return result;
}

/* What to wait for while the queue is full, 0: it is not. */
static uint64_t full_until(CUcontext ctx)
{
	struct nvs_slot *slot = &nvs_process.node->slots[ctx->slot];
	nvs_node_lock(nvs_process.node);
	uint64_t seq = 0;
	if (slot->tail - slot->retired >= NVS_RING) {
		seq = slot->retired + ROOM_TO_WAIT_FOR;
		if (nvs_slot_op(slot, seq)->state == NVS_OP_RETIRED)
			seq = slot->retired + 1;
	}
	nvs_node_unlock(nvs_process.node);
	return seq;
}

/* Blocks while the queue is full, as the real driver does. */
static CUresult wait_for_room(CUcontext ctx)
{
	CUresult result = CUDA_SUCCESS;
	uint64_t seq;
	while (result == CUDA_SUCCESS && (seq = full_until(ctx)) != 0)
		result = nvs_wait(ctx, seq);
	return result;
}

static CUresult push(
	CUstream stream, const struct nvs_work *work, const struct nvs_dep *first, const struct nvs_dep *second)
{
	static const struct nvs_dep none;
	CUcontext ctx = stream->ctx;
	CUresult result = wait_for_room(ctx);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_op op = {
		.gap = work->gap,
		.work = work->work,
		.bytes = work->bytes,
		.engine = (uint8_t)work->engine,
		.count = (uint8_t)work->count,
		.path = (uint8_t)work->path,
		.queue = stream->queue,
		.leaving = work->leaving,
		.leaving_slot = (uint32_t)work->leaving_slot,
		.dep = {first != NULL ? *first : none, second != NULL ? *second : none},
	};
	nvs_node_lock(nvs_process.node);
	stream->last = nvs_slot_push(nvs_process.node, ctx->slot, &op);
	ctx->effects[stream->last % NVS_RING] = work->effect;
	nvs_node_unlock(nvs_process.node);
	return CUDA_SUCCESS;
}

/* The legacy stream waits for every stream that synchronises with it. */
static CUresult join_legacy(CUstream legacy)
{
	struct nvs_work marker = nvs_work_marker();
	CUresult result = CUDA_SUCCESS;
	for (CUstream other = legacy->ctx->streams; other != NULL && result == CUDA_SUCCESS; other = other->next) {
		if (!nvs_stream_blocks(other) || nvs_is_done(legacy->ctx, other->last))
			continue;
		struct nvs_dep dep = {.seq = other->last, .slot = (uint32_t)legacy->ctx->slot};
		result = push(legacy, &marker, &dep, NULL);
	}
	return result;
}

CUresult nvs_submit_after(CUstream stream, const struct nvs_work *work, const struct nvs_dep *dep, uint64_t *seq)
{
	CUcontext ctx = stream->ctx;
	CUresult result = CUDA_SUCCESS;
	if (stream->capture != NULL)
		return nvs_capture_add(stream->capture, work);
	if (stream == ctx->legacy) {
		result = nvs_capture_forbids_legacy(ctx);
		if (result == CUDA_SUCCESS)
			result = join_legacy(stream);
	}
	struct nvs_dep legacy = {.seq = nvs_stream_blocks(stream) ? ctx->legacy->last : 0, .slot = (uint32_t)ctx->slot};
	if (result == CUDA_SUCCESS)
		result = push(stream, work, &legacy, dep);
	if (result == CUDA_SUCCESS && seq != NULL)
		*seq = stream->last;
	return result;
}

CUresult nvs_submit(CUstream stream, const struct nvs_work *work, uint64_t *seq)
{
	return nvs_submit_after(stream, work, NULL, seq);
}

CUresult nvs_submit_and_wait(CUstream stream, const struct nvs_work *work)
{
	uint64_t seq = 0;
	CUcontext ctx = stream->ctx;
	CUresult result = nvs_submit(stream, work, &seq);
	return result == CUDA_SUCCESS ? nvs_wait(ctx, seq) : result;
}
