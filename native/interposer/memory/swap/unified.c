/* Unified memory: the driver moves pages when they are touched, so a process may use more than the card has; before and
 * after its turns they are moved ahead of that, by prefetches. Slower than memory of our own, so it serves only what
 * that cannot: one process larger than the card (NVSHARE_ENABLE_SINGLE_OVERSUB), and cards without the virtual-memory
 * API. No advice is given to the driver: a preferred location would stay behind and bind the pages for ever. */
#include "memory/swap/backing.h"

#include "base/bars.h"
#include "memory/swap/residency.h"
#include "resolve/resolve.h"

#define ATTACH_GLOBAL 1u
#define CPU (-1)

bool nvs_unified_supported(CUdevice device)
{
	int managed = 0, concurrent = 0;
	if (nvs_real.cuMemAllocManaged == NULL || nvs_real.cuDeviceGetAttribute == NULL ||
		(nvs_real.cuMemPrefetchAsync == NULL && nvs_real.cuMemPrefetchAsync_v2 == NULL))
		return false;
	return nvs_real.cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device) == CUDA_SUCCESS &&
	       managed &&
	       nvs_real.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) ==
		       CUDA_SUCCESS &&
	       concurrent;
}

static CUresult create_unified(struct nvs_backing *backing, bool resident)
{
	CUresult result = nvs_real.cuMemAllocManaged(&backing->base, backing->size, ATTACH_GLOBAL);
	if (result != CUDA_SUCCESS)
		return result;
	nvs_bar_raise(NVS_BAR_MANAGED);
	for (size_t i = 0; resident && i < backing->chunk_count; i++)
		backing->chunks[i].state = NVS_CHUNK_GPU; /* its pages come when they are touched */
	nvs_residency_add(backing);
	return CUDA_SUCCESS;
}

static void destroy_unified(struct nvs_backing *backing)
{
	nvs_real.cuMemFree_v2(backing->base);
}

static CUresult copy_unified(struct nvs_backing *backing, size_t index, bool out, CUstream stream)
{
	CUdeviceptr at = nvs_chunk_address(backing, index);
	size_t size = backing->chunks[index].size;
	if (nvs_real.cuMemPrefetchAsync != NULL)
		return nvs_real.cuMemPrefetchAsync(at, size, out ? CPU : backing->device, stream);
	CUmemLocation to = {
		.type = out ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, .id = out ? 0 : backing->device};
	return nvs_real.cuMemPrefetchAsync_v2(at, size, to, 0, stream);
}

/* The pages take care of themselves. */
static CUresult bring_unified(struct nvs_backing *backing, size_t index)
{
	return CUDA_SUCCESS;
}

static void take_unified(struct nvs_backing *backing, size_t index)
{
}

const struct nvs_backend nvs_unified = {
	.is_unified = true,
	.create = create_unified,
	.destroy = destroy_unified,
	.bring = bring_unified,
	.copy = copy_unified,
	.take = take_unified,
};
