/* Streams that wait for a value in memory, as collectives do. A wait holds up its stream, not an engine; whichever call
 * looks next sees whether the value has come. */
#include "sim.h"

enum { GREATER_OR_EQUAL, EQUAL, AND, NOR, CONDITIONS };

static unsigned outstanding; /* at most so many wait */

static bool holds(const struct nvs_effect *effect)
{
	uint64_t found = 0, value = effect->wait.value;
	size_t size = effect->wait.size;
	if (!nvs_memory_look(effect->wait.address, &found, size))
		return false;
	switch (effect->wait.condition) {
	case GREATER_OR_EQUAL: /* numbers go round */
		return size == 4 ? (int32_t)(uint32_t)(found - value) >= 0 : (int64_t)(found - value) >= 0;
	case EQUAL:
		return found == value;
	case AND:
		return (found & value) != 0;
	default:
		return ~(found | value) << (64 - 8 * size) != 0;
	}
}

/* The waits of a context that have reached the front of their stream; how many there are in all is added to `seen`. */
static bool end_some(CUcontext ctx, unsigned *seen)
{
	struct nvs_node *node = nvs_process.node;
	struct nvs_slot *slot = &node->slots[ctx->slot];
	bool ended = false;
	nvs_node_lock(node);
	for (uint64_t i = slot->retired + 1; i <= slot->tail; i++) {
		const struct nvs_op *op = nvs_slot_op(slot, i);
		const struct nvs_effect *effect = &ctx->effects[i % NVS_RING];
		if (op->engine != NVS_OWNER || effect->kind != NVS_EFFECT_WAIT ||
			(op->state != NVS_OP_READY && op->state != NVS_OP_QUEUED))
			continue;
		if (op->state == NVS_OP_READY && holds(effect)) {
			nvs_slot_owner_done(node, ctx->slot, i);
			ended = true;
		} else {
			++*seen;
		}
	}
	nvs_node_unlock(node);
	return ended;
}

bool nvs_waits_end(void)
{
	bool ended = false;
	if (outstanding == 0)
		return false;
	outstanding = 0;
	for (CUcontext ctx = nvs_process.contexts; ctx != NULL; ctx = ctx->next)
		ended |= end_some(ctx, &outstanding);
	return ended;
}

static CUresult wait_value(CUstream handle, CUdeviceptr p, uint64_t value, size_t size, unsigned condition)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	uint64_t now;
	if (result != CUDA_SUCCESS)
		return result;
	if (p % size != 0 || condition >= CONDITIONS || !nvs_memory_look(p, &now, size))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (stream->capture != NULL)
		return nvs_end(nvs_capture_break(stream->capture, CUDA_ERROR_NOT_SUPPORTED));
	struct nvs_work work = {
		.engine = NVS_OWNER, .effect = {.kind = NVS_EFFECT_WAIT, .wait = {p, value, size, condition}}};
	result = nvs_submit(stream, &work, NULL);
	outstanding += result == CUDA_SUCCESS;
	return nvs_end(result);
}

#define WAIT_VALUE(name, type)                                                                                         \
	NVS_API name(CUstream stream, CUdeviceptr p, type v, unsigned flags)                                           \
	{                                                                                                              \
		return wait_value(stream, p, v, sizeof(v), flags);                                                     \
	}                                                                                                              \
	NVS_PT(name, _ptsz, (CUstream stream, CUdeviceptr p, type v, unsigned flags), (stream, p, v, flags))

WAIT_VALUE(cuStreamWaitValue32, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue64, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2, cuuint64_t)
