/* The virtual-memory API, with the real one's rules: 2 MiB granularity, whole mappings only, offset 0, access set by
 * hand. */
#include "sim.h"
#include "vspace.h"

static bool granular(uint64_t value)
{
	return value % NVS_GRANULARITY == 0;
}

NVS_API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
	if (granularity == NULL || prop == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = NVS_GRANULARITY;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t align, CUdeviceptr addr, unsigned long long flags)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0 || !granular(n) || (align & (align - 1)) != 0 || flags != 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*p = nvs_reserve(n, align, addr);
	return nvs_end(*p != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

NVS_API cuMemAddressFree(CUdeviceptr p, size_t n)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_catch_up();
	return nvs_end(nvs_unreserve(p, n) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

NVS_API cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_takes(1e9 * nvs_process.node->profile.mem_create);
	if (handle == NULL || prop == NULL || n == 0 || !granular(n) || flags != 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return nvs_end(CUDA_ERROR_NOT_SUPPORTED);
	int gpu = nvs_gpu_of(prop->location.id);
	if (gpu < 0)
		return nvs_end(CUDA_ERROR_INVALID_DEVICE);
	int slot = nvs_memory_slot((unsigned)gpu);
	struct nvs_physical *physical;
	result = slot < 0 ? CUDA_ERROR_OUT_OF_MEMORY : nvs_physical_new((unsigned)gpu, slot, n, n, NULL, &physical);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	physical->prop = *prop;
	nvs_physical_give_handle(physical);
	*handle = physical->handle;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_takes(1e9 * nvs_process.node->profile.mem_release);
	struct nvs_physical *physical = nvs_physical_of(handle);
	if (physical == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	physical->handles--;
	nvs_physical_put(physical);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping *mapping = nvs_mapping_at((uint64_t)(uintptr_t)address);
	if (mapping == NULL || mapping->kind != NVS_MAPPED)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	nvs_physical_give_handle(mapping->physical);
	*handle = mapping->physical->handle;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_physical *physical = nvs_physical_of(handle);
	if (physical == NULL || prop == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*prop = physical->prop;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_takes(1e9 * nvs_process.node->profile.mem_map);
	struct nvs_physical *physical = nvs_physical_of(handle);
	if (physical == NULL || offset != 0 || flags != 0 || n == 0 || !granular(n) || !granular(p))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (n > physical->contents.size || !nvs_is_reserved(p, n) || nvs_mapping_overlaps(p, n))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_mapping mapping = {.start = p, .size = n, .kind = NVS_MAPPED, .physical = physical};
	return nvs_end(nvs_mapping_add(&mapping) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* True when [p, p + n) is exactly a row of whole mappings. */
static bool is_whole(uint64_t p, uint64_t n)
{
	uint64_t at = p;
	while (at < p + n) {
		struct nvs_mapping *mapping = nvs_mapping_at(at);
		if (mapping == NULL || mapping->kind != NVS_MAPPED || mapping->start != at)
			return false;
		at += mapping->size;
	}
	return n > 0 && at == p + n;
}

/* At once, whatever work is still queued: that work then meets an illegal address. */
NVS_API cuMemUnmap(CUdeviceptr p, size_t n)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_catch_up();
	if (!is_whole(p, n))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	for (uint64_t at = p; at < p + n;) {
		struct nvs_mapping *mapping = nvs_mapping_at(at);
		at += mapping->size;
		nvs_mapping_remove(mapping);
		nvs_takes(1e9 * nvs_process.node->profile.mem_unmap);
	}
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *desc, size_t count)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_catch_up();
	if (desc == NULL || count == 0 || !is_whole(p, n))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		int gpu = nvs_gpu_of(desc[i].location.id);
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || gpu < 0)
			return nvs_end(CUDA_ERROR_INVALID_DEVICE);
		for (uint64_t at = p; at < p + n;) {
			struct nvs_mapping *mapping = nvs_mapping_at(at);
			if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
				mapping->access &= ~(1ull << gpu);
			else
				mapping->access |= 1ull << gpu;
			at += mapping->size;
			nvs_takes(1e9 * nvs_process.node->profile.mem_set_access);
		}
	}
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	int gpu = location == NULL ? -1 : nvs_gpu_of(location->id);
	if (flags == NULL || mapping == NULL || gpu < 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*flags = mapping->access & 1ull << gpu ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return nvs_end(CUDA_SUCCESS);
}
