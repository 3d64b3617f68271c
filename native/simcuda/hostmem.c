/* Memory of the host that the card can use: page-locked by the driver, or registered. */
#include <sys/mman.h>

#include "pagemap.h"
#include "sim.h"
#include "vspace.h"

#define EVERY_GPU (~0ull)
#define GIB ((double)(1 << 30))

/* Only registrations that no allocator cuts its pieces from have their pages exchanged: an allocator may later drop
 * pages (MADV_DONTNEED) and count on zeros. The C library maps everything from this size on by itself. */
#define LEAST_TO_EXCHANGE ((size_t)32 << 20)

static CUresult add_range(enum nvs_mapping_kind kind, void *p, size_t n, CUcontext ctx, struct nvs_physical **out)
{
	struct nvs_physical *physical;
	CUresult result = nvs_physical_new(ctx->gpu, nvs_memory_slot(ctx->gpu), n, 0, p, &physical);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping mapping = {.start = (uint64_t)(uintptr_t)p,
		.size = n,
		.kind = kind,
		.physical = physical,
		.access = EVERY_GPU,
		.ctx = kind == NVS_MANAGED ? ctx : NULL};
	if (!nvs_mapping_add(&mapping)) {
		nvs_physical_put(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->contents.exchangeable =
		kind != NVS_REGISTERED || (n >= LEAST_TO_EXCHANGE && mapping.start % nvs_page_size() == 0);
	*out = physical;
	return CUDA_SUCCESS;
}

static void count_pinned(struct nvs_physical *physical)
{
	if (physical->slot < 0)
		return;
	nvs_node_lock(nvs_process.node);
	nvs_process.node->slots[physical->slot].pinned += physical->contents.size;
	nvs_node_unlock(nvs_process.node);
	physical->pinned = physical->contents.size;
}

/* Aligned as the card's memory is: uniform data then takes the fewest mappings. NULL: no addresses left. */
static void *map_aligned(size_t span)
{
	void *p = mmap(NULL, span + NVS_GRANULARITY, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	uint64_t start = (uint64_t)(uintptr_t)p, aligned = nvs_round_up(start, NVS_GRANULARITY);
	if (aligned > start)
		munmap(p, aligned - start);
	if (aligned < start + NVS_GRANULARITY)
		munmap((void *)(uintptr_t)(aligned + span), start + NVS_GRANULARITY - aligned);
	return (void *)(uintptr_t)aligned;
}

CUresult nvs_host_allocate(enum nvs_mapping_kind kind, CUcontext ctx, size_t n, struct nvs_physical **out)
{
	size_t span = nvs_round_up(n, nvs_page_size());
	void *pages = map_aligned(span);
	if (pages == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = add_range(kind, pages, n, ctx, out);
	if (result != CUDA_SUCCESS)
		munmap(pages, span);
	return result;
}

NVS_API cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_physical *physical;
	result = nvs_capture_forbids();
	if (result == CUDA_SUCCESS)
		result = nvs_host_allocate(NVS_PINNED, ctx, n, &physical);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	nvs_takes(1e9 * nvs_process.node->profile.host_alloc_per_gib * (double)n / GIB);
	count_pinned(physical);
	*p = physical->contents.raw;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemAllocHost_v2(void **p, size_t n)
{
	return cuMemHostAlloc(p, n, 0);
}

static CUresult remove_host_range(void *p, enum nvs_mapping_kind kind, CUresult missing)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	/* Work that uses it may still be queued. */
	result = nvs_wait_context(ctx);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	struct nvs_mapping *mapping = nvs_mapping_at((uint64_t)(uintptr_t)p);
	if (mapping == NULL || mapping->start != (uint64_t)(uintptr_t)p || mapping->kind != kind)
		return nvs_end(missing);
	size_t size = mapping->size;
	nvs_mapping_remove(mapping);
	if (kind == NVS_PINNED)
		munmap(p, nvs_round_up(size, nvs_page_size()));
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemFreeHost(void *p)
{
	return remove_host_range(p, NVS_PINNED, CUDA_ERROR_INVALID_VALUE);
}

NVS_API cuMemHostUnregister(void *p)
{
	return remove_host_range(p, NVS_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

NVS_API cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (nvs_mapping_overlaps((uint64_t)(uintptr_t)p, n))
		return nvs_end(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	struct nvs_physical *physical;
	result = add_range(NVS_REGISTERED, p, n, ctx, &physical);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	nvs_takes(1e9 * nvs_process.node->profile.host_register_per_gib * (double)n / GIB);
	count_pinned(physical);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *p, unsigned flags)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping *mapping = nvs_mapping_at((uint64_t)(uintptr_t)p);
	if (mapping == NULL || (mapping->kind != NVS_PINNED && mapping->kind != NVS_REGISTERED))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*device = (CUdeviceptr)(uintptr_t)p;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemHostGetFlags(unsigned *flags, void *p)
{
	*flags = 0;
	return nvs_pass(CUDA_SUCCESS);
}
