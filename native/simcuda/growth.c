/* What a context takes of its card beyond what every context has: modules, local memory, the heap of kernels. */
#include "sim.h"

#define CODE_ROOM NVS_GRANULARITY /* modules up to this fit into what every context has */
#define DEFAULT_STACK ((uint64_t)1024)
#define DEFAULT_PRINTF ((size_t)1 << 20)
#define DEFAULT_HEAP ((uint64_t)8 << 20)
#define THREADS_PER_MULTIPROCESSOR ((uint64_t)1024) /* as cuDeviceGetAttribute says */

enum limit { STACK_SIZE, PRINTF_FIFO_SIZE, MALLOC_HEAP_SIZE };

const struct nvs_growth nvs_no_growth = {.stack = DEFAULT_STACK, .heap = DEFAULT_HEAP};

static uint64_t above(uint64_t n, uint64_t limit)
{
	return n > limit ? n - limit : 0;
}

static uint64_t bytes_of(const struct nvs_growth *growth)
{
	uint64_t threads = THREADS_PER_MULTIPROCESSOR * (uint64_t)nvs_process.node->profile.multiprocessors;
	uint64_t local = above(growth->stack, DEFAULT_STACK) * threads, heap = above(growth->heap, DEFAULT_HEAP);
	return nvs_round_up(above(growth->code, CODE_ROOM), NVS_GRANULARITY) + nvs_round_up(local, NVS_GRANULARITY) +
	       nvs_round_up(heap, NVS_GRANULARITY);
}

CUresult nvs_context_grow(CUcontext ctx, struct nvs_growth to)
{
	struct nvs_node *node = nvs_process.node;
	uint64_t now = bytes_of(&ctx->growth), wanted = bytes_of(&to), evicted = 0;
	bool fits = true;
	nvs_node_lock(node);
	if (wanted > now)
		fits = nvs_slot_charge(node, ctx->slot, wanted - now, &evicted);
	else
		nvs_slot_refund(node, ctx->slot, now - wanted);
	if (fits)
		node->slots[ctx->slot].context += wanted - now;
	nvs_node_unlock(node);
	if (!fits)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx->growth = to;
	return CUDA_SUCCESS;
}

NVS_API cuCtxGetLimit(size_t *value, int limit)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (value == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*value = limit == MALLOC_HEAP_SIZE   ? ctx->growth.heap
		 : limit == PRINTF_FIFO_SIZE ? DEFAULT_PRINTF
					     : ctx->growth.stack;
	return nvs_end(CUDA_SUCCESS);
}

/* The real driver takes local memory at the next launch that needs it; here it is taken at once. */
NVS_API cuCtxSetLimit(int limit, size_t value)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_growth to = ctx->growth;
	if (limit == STACK_SIZE)
		to.stack = value;
	else if (limit == MALLOC_HEAP_SIZE)
		to.heap = value;
	return nvs_end(nvs_context_grow(ctx, to));
}
