/* cuMemAlloc and its kin: memory of the card, charged by 2 MiB; small allocations share. */
#include <stdlib.h>
#include <sys/mman.h>

#include "pagemap.h"
#include "sim.h"
#include "vspace.h"

#define UNIT ((size_t)512)
#define UNITS (NVS_GRANULARITY / UNIT)
#define SHARED_LIMIT ((size_t)1 << 20) /* up to this an allocation shares 2 MiB with others */
#define PITCH ((size_t)512)

/* 2 MiB of one context, given out in units. */
struct nvs_block {
	uint64_t start;
	struct nvs_physical *physical;
	CUcontext ctx;
	size_t taken;
	uint8_t used[UNITS];
	struct nvs_block *next;
};

struct CUmemPoolHandle_st {
	uint32_t magic;
	CUdevice device;
	uint64_t access; /* bit per GPU that may use its memory, besides its own */
	uint64_t attributes[16];
};

static struct nvs_block *blocks;

static size_t find_units(const struct nvs_block *block, size_t count)
{
	size_t run = 0;
	for (size_t i = 0; i < UNITS; i++) {
		run = block->used[i] ? 0 : run + 1;
		if (run == count)
			return i + 1 - count;
	}
	return UNITS;
}

static CUresult block_new(CUcontext ctx, struct nvs_block **out)
{
	struct nvs_block *block = calloc(1, sizeof(*block));
	if (block == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	block->ctx = ctx;
	CUresult result =
		nvs_physical_new(ctx->gpu, ctx->slot, NVS_GRANULARITY, NVS_GRANULARITY, NULL, &block->physical);
	block->start = result == CUDA_SUCCESS ? nvs_reserve(NVS_GRANULARITY, 0, 0) : 0;
	if (block->start == 0) {
		if (result == CUDA_SUCCESS)
			nvs_physical_put(block->physical);
		free(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	block->physical->handles++; /* the block's own use */
	block->next = blocks;
	blocks = block;
	*out = block;
	return CUDA_SUCCESS;
}

static CUresult allocate_shared(CUcontext ctx, size_t n, CUdeviceptr *p)
{
	size_t count = nvs_round_up(n, UNIT) / UNIT, at = UNITS;
	struct nvs_block *block = blocks;
	for (; block != NULL; block = block->next)
		if (block->ctx == ctx && (at = find_units(block, count)) < UNITS)
			break;
	if (block == NULL) {
		CUresult result = block_new(ctx, &block);
		if (result != CUDA_SUCCESS)
			return result;
		at = 0;
	}
	struct nvs_mapping mapping = {.start = block->start + at * UNIT,
		.size = n,
		.kind = NVS_ALLOCATED,
		.physical = block->physical,
		.offset = at * UNIT,
		.access = 1ull << ctx->gpu,
		.ctx = ctx,
		.block = block};
	if (!nvs_mapping_add(&mapping))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = at; i < at + count; i++)
		block->used[i] = 1;
	block->taken += count;
	*p = mapping.start;
	return CUDA_SUCCESS;
}

static CUresult allocate_own(CUcontext ctx, size_t n, enum nvs_mapping_kind kind, CUmemoryPool pool, CUdeviceptr *p)
{
	size_t span = nvs_round_up(n, NVS_GRANULARITY);
	struct nvs_physical *physical;
	CUresult result = nvs_physical_new(ctx->gpu, ctx->slot, span, span, NULL, &physical);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping mapping = {.start = nvs_reserve(span, 0, 0),
		.size = n,
		.kind = kind,
		.physical = physical,
		.access = 1ull << ctx->gpu | (pool != NULL ? pool->access : 0),
		.ctx = ctx,
		.pool = pool};
	if (mapping.start == 0 || !nvs_mapping_add(&mapping)) {
		nvs_physical_put(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = mapping.start;
	return CUDA_SUCCESS;
}

static void free_units(struct nvs_block *block, uint64_t start, uint64_t n)
{
	size_t at = (size_t)(start - block->start) / UNIT, count = nvs_round_up(n, UNIT) / UNIT;
	for (size_t i = at; i < at + count; i++)
		block->used[i] = 0;
	block->taken -= count;
	if (block->taken > 0)
		return;
	struct nvs_block **link = &blocks;
	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	nvs_unreserve(block->start, NVS_GRANULARITY);
	block->physical->handles--;
	nvs_physical_put(block->physical);
	free(block);
}

void nvs_memory_free(struct nvs_mapping *mapping)
{
	uint64_t start = mapping->start, size = mapping->size;
	struct nvs_block *block = mapping->block;
	bool managed = mapping->kind == NVS_MANAGED;
	nvs_mapping_remove(mapping);
	if (block != NULL)
		free_units(block, start, size);
	else if (managed)
		munmap((void *)(uintptr_t)start, nvs_round_up(size, nvs_page_size()));
	else
		nvs_unreserve(start, nvs_round_up(size, NVS_GRANULARITY));
}

NVS_API cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	result = nvs_capture_forbids();
	if (result == CUDA_SUCCESS)
		result = n <= SHARED_LIMIT ? allocate_shared(ctx, n, p) : allocate_own(ctx, n, NVS_ALLOCATED, NULL, p);
	return nvs_end(result);
}

NVS_API cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned element)
{
	if (pitch == NULL || w == 0 || h == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = nvs_round_up(w, PITCH);
	return cuMemAlloc_v2(p, *pitch * h);
}

/* Waits for all work that could use the memory, as the real one does. */
NVS_API cuMemFree_v2(CUdeviceptr p)
{
	CUcontext ctx;
	if (p == 0)
		return CUDA_SUCCESS;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_capture_forbids();
	if (result == CUDA_SUCCESS)
		result = nvs_wait_context(ctx);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	if (mapping == NULL || mapping->start != p)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (mapping->kind == NVS_MAPPED || mapping->kind == NVS_PINNED || mapping->kind == NVS_REGISTERED)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	nvs_memory_free(mapping);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	nvs_members_reap(node, true);
	*available = node->profile.memory_bytes - node->gpus[ctx->gpu].used;
	*total = node->profile.memory_bytes;
	nvs_node_unlock(node);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	if (mapping == NULL)
		return nvs_end(CUDA_ERROR_NOT_FOUND);
	if (base != NULL)
		*base = mapping->start;
	if (size != NULL)
		*size = mapping->size;
	return nvs_end(CUDA_SUCCESS);
}

/* ---- stream-ordered allocation: made at once, freed when the stream gets there ---- */

static struct CUmemPoolHandle_st default_pools[NVS_GPUS];
static CUmemoryPool current_pools[NVS_GPUS]; /* NULL: the default one */

static CUresult allocate_ordered(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (stream->capture != NULL)
		return nvs_end(nvs_capture_break(stream->capture, CUDA_ERROR_NOT_SUPPORTED));
	return nvs_end(allocate_own(stream->ctx, n, NVS_POOLED, pool, p));
}

NVS_API cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream stream)
{
	return allocate_ordered(p, n, NULL, stream);
}
NVS_PT(cuMemAllocAsync, _ptsz, (CUdeviceptr * p, size_t n, CUstream stream), (p, n, stream))

NVS_API cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream)
{
	return pool == NULL || pool->magic != NVS_POOL ? CUDA_ERROR_INVALID_VALUE
						       : allocate_ordered(p, n, pool, stream);
}
NVS_PT(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream stream),
	(p, n, pool, stream))

NVS_API cuMemFreeAsync(CUdeviceptr p, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	if (mapping == NULL || mapping->start != p || (mapping->kind != NVS_POOLED && mapping->kind != NVS_ALLOCATED))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_work work = nvs_work_marker();
	work.effect = (struct nvs_effect){.kind = NVS_EFFECT_FREE, .free = p};
	return nvs_end(nvs_submit(stream, &work, NULL));
}
NVS_PT(cuMemFreeAsync, _ptsz, (CUdeviceptr p, CUstream stream), (p, stream))

static bool is_pool(CUmemoryPool pool)
{
	return pool != NULL && pool->magic == NVS_POOL;
}

static void pool_begins(CUmemoryPool pool, CUdevice device)
{
	if (pool->magic == NVS_POOL)
		return;
	*pool = (struct CUmemPoolHandle_st){.magic = NVS_POOL, .device = device, .attributes = {0, 1, 1, 1}};
}

NVS_API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = nvs_gpu_of(device);
	if (gpu < 0)
		return nvs_end(CUDA_ERROR_INVALID_DEVICE);
	pool_begins(&default_pools[gpu], device);
	*pool = &default_pools[gpu];
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	CUresult result = cuDeviceGetDefaultMemPool(pool, device);
	if (result == CUDA_SUCCESS && current_pools[nvs_gpu_of(device)] != NULL)
		*pool = current_pools[nvs_gpu_of(device)];
	return result;
}

NVS_API cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = nvs_gpu_of(device);
	if (gpu < 0 || !is_pool(pool) || pool->device != device)
		return nvs_end(gpu < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
	current_pools[gpu] = pool;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	if (location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuDeviceSetMemPool(location->id, pool);
}

NVS_API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (pool == NULL || props == NULL || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		nvs_gpu_of(props->location.id) < 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*pool = calloc(1, sizeof(**pool));
	if (*pool == NULL)
		return nvs_end(CUDA_ERROR_OUT_OF_MEMORY);
	pool_begins(*pool, props->location.id);
	return nvs_end(CUDA_SUCCESS);
}

/* The structure stays, so that a handle used after its end is known as one. */
NVS_API cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	bool is_default = pool >= default_pools && pool < default_pools + NVS_GPUS;
	if (!is_pool(pool) || is_default)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	pool->magic = NVS_DEAD;
	for (int gpu = 0; gpu < NVS_GPUS; gpu++)
		if (current_pools[gpu] == pool)
			current_pools[gpu] = NULL;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	for (size_t i = 0; i < count; i++) {
		int gpu = nvs_gpu_of(access[i].location.id);
		if (!is_pool(pool) || access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || gpu < 0)
			return nvs_end(CUDA_ERROR_INVALID_VALUE);
		uint64_t bit = 1ull << gpu;
		pool->access =
			access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE ? pool->access | bit : pool->access & ~bit;
	}
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	return nvs_pass(is_pool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

NVS_API cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	if (!is_pool(pool) || attribute < 1 || attribute > 15)
		return CUDA_ERROR_INVALID_VALUE;
	pool->attributes[attribute] = attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
					      ? *(uint32_t *)value
					      : *(uint64_t *)value;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	if (!is_pool(pool) || attribute < 1 || attribute > 15)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		*(uint32_t *)value = (uint32_t)pool->attributes[attribute];
	else
		*(uint64_t *)value = pool->attributes[attribute];
	return nvs_pass(CUDA_SUCCESS);
}
