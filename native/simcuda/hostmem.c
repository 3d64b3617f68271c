/* Memory of the host that the card can use: pinned, registered, managed. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"
#include "vspace.h"

#define EVERY_GPU (~0ull)

static CUresult add_host_range(enum nvs_mapping_kind kind, void *p, size_t n, CUcontext ctx, int slot)
{
	struct nvs_physical *physical;
	CUresult result = nvs_physical_new(ctx->gpu, slot, n, 0, p, &physical);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping mapping = {.start = (uint64_t)(uintptr_t)p,
		.size = n,
		.kind = kind,
		.physical = physical,
		.access = EVERY_GPU,
		.ctx = kind == NVS_MANAGED ? ctx : NULL};
	if (nvs_mapping_add(&mapping))
		return CUDA_SUCCESS;
	nvs_physical_put(physical);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void *map_pages(size_t n)
{
	void *p = mmap(NULL, nvs_round_up(n, 4096), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		-1, 0);
	return p != MAP_FAILED ? p : NULL;
}

static CUresult allocate(enum nvs_mapping_kind kind, void **p, size_t n)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	result = nvs_capture_forbids();
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	void *pages = map_pages(n);
	result = pages == NULL ? CUDA_ERROR_OUT_OF_MEMORY : add_host_range(kind, pages, n, ctx, ctx->slot);
	if (result == CUDA_SUCCESS)
		*p = pages;
	else if (pages != NULL)
		munmap(pages, nvs_round_up(n, 4096));
	return nvs_end(result);
}

NVS_API cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
	return allocate(NVS_PINNED, p, n);
}

NVS_API cuMemAllocHost_v2(void **p, size_t n)
{
	return allocate(NVS_PINNED, p, n);
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
		munmap(p, nvs_round_up(size, 4096));
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
	return nvs_end(add_host_range(NVS_REGISTERED, p, n, ctx, -1));
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
	return CUDA_SUCCESS;
}

/* ---- managed memory: starts on the host, comes to the card when work touches it, stays out when there is no room ----
 */

NVS_API cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	void *pages = NULL;
	CUresult result = p == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(NVS_MANAGED, &pages, n);
	if (result == CUDA_SUCCESS)
		*p = (CUdeviceptr)(uintptr_t)pages;
	return result;
}

/* Take the memory's place on the card of the context that allocated it, if there is room. */
static bool settle_on_card(struct nvs_mapping *mapping)
{
	uint64_t bytes = nvs_round_up(mapping->size, NVS_GRANULARITY);
	nvs_node_lock(nvs_process.node);
	bool fits = nvs_slot_charge(nvs_process.node, mapping->physical->slot, bytes);
	nvs_node_unlock(nvs_process.node);
	if (fits)
		mapping->physical->charged = bytes;
	return fits;
}

double nvs_managed_fault(CUcontext ctx, uint64_t address, uint64_t n)
{
	double ns = 0;
	struct nvs_node *node = nvs_process.node;
	for (uint64_t at = address; at < address + n;) {
		struct nvs_mapping *mapping = nvs_mapping_at(at);
		if (mapping == NULL)
			break;
		uint64_t end = mapping->start + mapping->size, moved = (end < address + n ? end : address + n) - at;
		if (mapping->kind == NVS_MANAGED && mapping->physical->charged == 0) {
			settle_on_card(mapping);
			ns += 1e9 * (double)moved / node->profile.fault_bandwidth;
			nvs_node_lock(node);
			node->gpus[ctx->gpu].counters.bytes_faulted += moved;
			nvs_node_unlock(node);
		}
		at = end;
	}
	return ns;
}

static CUresult prefetch(CUdeviceptr p, size_t n, bool to_host, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	if (mapping == NULL || mapping->kind != NVS_MANAGED)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_physical *physical = mapping->physical;
	struct nvs_work work = {.engine = to_host ? NVS_D2H : NVS_H2D,
		.count = to_host ? NVS_COUNT_D2H : NVS_COUNT_H2D,
		.work = (double)n,
		.bytes = n};
	if (to_host == (physical->charged == 0))
		return nvs_end(CUDA_SUCCESS); /* it is there */
	if (!to_host && !settle_on_card(mapping))
		return nvs_end(CUDA_SUCCESS); /* no room: it stays, and faults */
	if (to_host) {
		nvs_node_lock(nvs_process.node);
		nvs_slot_refund(nvs_process.node, physical->slot, physical->charged);
		nvs_node_unlock(nvs_process.node);
		physical->charged = 0;
	}
	return nvs_end(nvs_submit(stream, &work, NULL));
}

NVS_API cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice device, CUstream stream)
{
	return prefetch(p, n, device == -1, stream);
}
NVS_PT(cuMemPrefetchAsync, _ptsz, (CUdeviceptr p, size_t n, CUdevice device, CUstream stream), (p, n, device, stream))

NVS_API cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream stream)
{
	return prefetch(p, n, to.type != CU_MEM_LOCATION_TYPE_DEVICE, stream);
}
NVS_PT(cuMemPrefetchAsync_v2, _ptsz, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream stream),
	(p, n, to, flags, stream))

NVS_API cuMemAdvise(CUdeviceptr p, size_t n, int advice, CUdevice device)
{
	return CUDA_SUCCESS;
}

NVS_API cuMemAdvise_v2(CUdeviceptr p, size_t n, int advice, CUmemLocation location)
{
	return CUDA_SUCCESS;
}
