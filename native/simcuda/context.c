/* Contexts: each takes its share of the card and has a queue of its own. */
#include <stdlib.h>

#include "sim.h"
#include "vspace.h"

enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };

/* What the card's compute mode says to a new context of ours. Lock held. */
static bool is_allowed(const struct nvs_node *node, unsigned gpu)
{
	bool alone = true;
	int own = nvs_node_pid();
	for (uint32_t i = 0; i < node->slot_top; i++) {
		const struct nvs_slot *slot = &node->slots[i];
		bool other = slot->pid != 0 && slot->pid != own;
		alone = alone && !(other && slot->gpu == gpu && slot->has_context);
	}
	int mode = node->setup.compute_mode;
	return mode != PROHIBITED && (mode != EXCLUSIVE_PROCESS || alone);
}

static CUresult context_new(CUdevice device, unsigned flags, CUcontext *out)
{
	int gpu = nvs_gpu_of(device);
	if (gpu < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	CUcontext ctx = calloc(1, sizeof(*ctx));
	struct nvs_effect *effects = calloc(NVS_RING, sizeof(*effects));
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	bool allowed = is_allowed(node, (unsigned)gpu);
	int slot = ctx == NULL || effects == NULL || !allowed
			   ? -1
			   : nvs_slot_claim(node, (unsigned)gpu, true, node->profile.context_bytes);
	nvs_node_unlock(node);
	if (slot < 0) {
		free(ctx);
		free(effects);
		return allowed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	*ctx = (struct CUctx_st){.magic = NVS_CONTEXT,
		.device = device,
		.gpu = (unsigned)gpu,
		.flags = flags,
		.slot = slot,
		.peers = 1ull << gpu,
		.effects = effects,
		.growth = nvs_no_growth,
		.next = nvs_process.contexts};
	CUresult result = nvs_stream_new(ctx, 0, 0, &ctx->legacy);
	nvs_process.contexts = ctx;
	*out = ctx;
	return result;
}

/* What it allocated goes with it. The object stays, marked dead: threads may still have it as their current one. */
static void context_end(CUcontext ctx)
{
	nvs_catch_up();
	struct nvs_mapping *mapping;
	while ((mapping = nvs_mapping_find_context(ctx)) != NULL)
		nvs_memory_free(mapping);
	nvs_streams_free(ctx);
	nvs_node_lock(nvs_process.node);
	nvs_slot_release(nvs_process.node, ctx->slot);
	nvs_node_unlock(nvs_process.node);
	CUcontext *link = &nvs_process.contexts;
	while (*link != ctx)
		link = &(*link)->next;
	*link = ctx->next;
	ctx->magic = NVS_DEAD;
	free(ctx->effects);
	ctx->effects = NULL;
}

static CUresult push(CUcontext ctx)
{
	if (nvs_thread.depth == NVS_CONTEXT_STACK)
		return CUDA_ERROR_INVALID_VALUE;
	nvs_thread.stack[nvs_thread.depth++] = ctx;
	return CUDA_SUCCESS;
}

NVS_API cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (ctx == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	result = context_new(device, flags, ctx);
	return nvs_end(result == CUDA_SUCCESS ? push(*ctx) : result);
}

NVS_API cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice device)
{
	return cuCtxCreate_v2(ctx, flags, device);
}

NVS_API cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned flags, CUdevice device)
{
	return count > 0 ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(ctx, flags, device);
}

NVS_API cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice device)
{
	return params != NULL ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(ctx, flags, device);
}

NVS_API cuCtxDestroy_v2(CUcontext ctx)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (ctx == NULL || ctx->magic != NVS_CONTEXT || ctx->primary)
		return nvs_end(CUDA_ERROR_INVALID_CONTEXT);
	context_end(ctx);
	if (nvs_current() == ctx)
		nvs_thread.depth--;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

NVS_API cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = nvs_gpu_of(device);
	if (gpu < 0 || ctx == NULL)
		return nvs_end(gpu < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
	CUcontext *primary = &nvs_process.primary[gpu];
	if (*primary == NULL) {
		result = context_new(device, 0, primary);
		if (result != CUDA_SUCCESS)
			return nvs_end(result);
		(*primary)->primary = true;
	}
	(*primary)->retained++;
	*ctx = *primary;
	return nvs_end(CUDA_SUCCESS);
}

static CUresult primary_drop(CUdevice device, bool reset)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = nvs_gpu_of(device);
	CUcontext ctx = gpu < 0 ? NULL : nvs_process.primary[gpu];
	if (gpu < 0 || (ctx == NULL && !reset))
		return nvs_end(gpu < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_CONTEXT);
	if (ctx != NULL && (reset || --ctx->retained == 0)) {
		context_end(ctx);
		nvs_process.primary[gpu] = NULL;
	}
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return primary_drop(device, false);
}

NVS_API cuDevicePrimaryCtxRelease(CUdevice device)
{
	return primary_drop(device, false);
}

NVS_API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return primary_drop(device, true);
}

NVS_API cuDevicePrimaryCtxReset(CUdevice device)
{
	return primary_drop(device, true);
}

NVS_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = nvs_gpu_of(device);
	if (gpu < 0 || flags == NULL || active == NULL)
		return nvs_end(gpu < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
	CUcontext ctx = nvs_process.primary[gpu];
	*flags = ctx != NULL ? ctx->flags : 0;
	*active = ctx != NULL;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = nvs_gpu_of(device);
	if (gpu >= 0 && nvs_process.primary[gpu] != NULL)
		nvs_process.primary[gpu]->flags = flags;
	return nvs_end(gpu < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

NVS_API cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	return nvs_end(ctx == NULL || ctx->magic != NVS_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : push(ctx));
}

NVS_API cuCtxPopCurrent_v2(CUcontext *ctx)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (nvs_thread.depth == 0)
		return nvs_end(CUDA_ERROR_INVALID_CONTEXT);
	if (ctx != NULL)
		*ctx = nvs_current();
	nvs_thread.depth--;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuCtxSetCurrent(CUcontext ctx)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (ctx != NULL && ctx->magic != NVS_CONTEXT)
		return nvs_end(CUDA_ERROR_INVALID_CONTEXT);
	if (nvs_thread.depth > 0)
		nvs_thread.depth--;
	return nvs_end(ctx == NULL ? CUDA_SUCCESS : push(ctx));
}

NVS_API cuCtxGetCurrent(CUcontext *ctx)
{
	if (nvs_process.forked || nvs_process.node == NULL)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (ctx == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = nvs_current();
	return CUDA_SUCCESS;
}

NVS_API cuCtxGetDevice(CUdevice *device)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	CUcontext ctx = nvs_current();
	if (ctx == NULL || device == NULL)
		return nvs_end(ctx == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
	*device = ctx->device;
	return nvs_end(ctx->magic == NVS_CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

NVS_API cuCtxGetFlags(unsigned *flags)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	*flags = ctx->flags;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuCtxGetApiVersion(CUcontext ctx, unsigned *version)
{
	*version = 3020;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	ctx = ctx != NULL ? ctx : nvs_current();
	if (ctx == NULL || ctx->magic != NVS_CONTEXT)
		return nvs_end(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	*id = (unsigned long long)(uintptr_t)ctx;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	if (least != NULL)
		*least = 0;
	if (greatest != NULL)
		*greatest = -5;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuCtxSynchronize(void)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_capture_forbids();
	return nvs_end(result == CUDA_SUCCESS ? nvs_wait_context(ctx) : result);
}

NVS_API cuCtxSynchronize_v2(CUcontext ctx)
{
	if (ctx == NULL)
		return cuCtxSynchronize();
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_capture_forbids();
	return nvs_end(result == CUDA_SUCCESS ? nvs_wait_context(ctx) : result);
}

NVS_API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (nvs_gpu_of(device) < 0 || nvs_gpu_of(peer) < 0)
		return nvs_end(CUDA_ERROR_INVALID_DEVICE);
	*can = device != peer;
	return nvs_end(CUDA_SUCCESS);
}

static CUresult set_peer(CUcontext peer, bool on)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (peer == NULL || peer->magic != NVS_CONTEXT || peer->gpu == ctx->gpu)
		return nvs_end(CUDA_ERROR_INVALID_CONTEXT);
	uint64_t bit = 1ull << peer->gpu;
	if (((ctx->peers & bit) != 0) == on)
		return nvs_end(on ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	ctx->peers ^= bit;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	return set_peer(peer, true);
}

NVS_API cuCtxDisablePeerAccess(CUcontext peer)
{
	return set_peer(peer, false);
}
