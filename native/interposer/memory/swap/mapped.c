/* Memory of our own, by the driver's virtual-memory API: addresses are reserved once, physical memory comes and goes.
 */
#include "memory/swap/backing.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/log.h"
#include "link/link.h"
#include "memory/swap/hostmem.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "resolve/resolve.h"

/* The driver frees the memory of a process that died a little later; the scheduler looks once a second what contexts
 * take. */
#define ROOM_WAIT_NS (2 * NVS_NS_PER_S)

static _Atomic uint64_t peers[NVS_MAX_DEVICES]; /* [owner]: bit per device that may use its memory, besides itself */

static bool has_attribute(CUdevice device, int attribute)
{
	int value = 0;
	return nvs_real.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

bool nvs_mapped_exportable(CUdevice device)
{
	return nvs_real.cuMemExportToShareableHandle != NULL && nvs_real.cuMemImportFromShareableHandle != NULL &&
	       has_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

/* Also what cuMemAlloc gives: memory that other processes and network cards can reach, where card and driver can do
 * that. Only when it is made can it be said that it may be exported, and nobody knows then which will be. */
static CUmemAllocationProp properties(CUdevice device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = nvs_mapped_exportable(device) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.allocFlags.gpuDirectRDMACapable =
			has_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
	};
}

static bool driver_has_virtual_memory(void)
{
	return nvs_real.cuMemCreate != NULL && nvs_real.cuMemRelease != NULL && nvs_real.cuMemMap != NULL &&
	       nvs_real.cuMemUnmap != NULL && nvs_real.cuMemSetAccess != NULL && nvs_real.cuMemAddressReserve != NULL &&
	       nvs_real.cuMemAddressFree != NULL && nvs_real.cuMemGetAllocationGranularity != NULL &&
	       nvs_real.cuDeviceGetAttribute != NULL;
}

size_t nvs_mapped_granularity(CUdevice device)
{
	size_t granularity = 0;
	if (!driver_has_virtual_memory() ||
		!has_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return 0;
	CUmemAllocationProp prop = properties(device);
	CUresult result = nvs_real.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	return result == CUDA_SUCCESS ? granularity : 0;
}

static CUresult set_access(CUdeviceptr base, size_t size, CUdevice device, uint64_t accessors)
{
	CUmemAccessDesc access[NVS_MAX_DEVICES];
	size_t count = 0;
	accessors |= 1ull << device;
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		if (accessors & (1ull << i))
			access[count++] = (CUmemAccessDesc){
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = i},
				.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			};
	return nvs_real.cuMemSetAccess(base, size, access, count);
}

static CUresult create_and_map(
	CUdeviceptr at, size_t size, const CUmemAllocationProp *prop, CUmemGenericAllocationHandle *handle)
{
	CUresult result = nvs_real.cuMemCreate(handle, size, prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_real.cuMemMap(at, size, 0, *handle, 0);
	if (result != CUDA_SUCCESS)
		nvs_real.cuMemRelease(*handle);
	return result;
}

size_t nvs_mapped_try(const CUmemAllocationProp *prop)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t size;
	bool works = false;
	if (nvs_real.cuMemGetAllocationGranularity(&size, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
		nvs_real.cuMemAddressReserve(&at, size, 0, 0, 0) != CUDA_SUCCESS)
		return 0;
	if (create_and_map(at, size, prop, &handle) == CUDA_SUCCESS) {
		works = set_access(at, size, prop->location.id, 0) == CUDA_SUCCESS;
		nvs_real.cuMemUnmap(at, size);
		nvs_real.cuMemRelease(handle);
	}
	nvs_real.cuMemAddressFree(at, size);
	return works ? size : 0;
}

static CUresult map_chunk(struct nvs_backing *backing, size_t index)
{
	struct nvs_chunk *chunk = &backing->chunks[index];
	return create_and_map(nvs_chunk_address(backing, index), chunk->size, &backing->prop, &chunk->handle);
}

CUresult nvs_mapped_show(const struct nvs_backing *backing, const struct nvs_view *view, size_t index)
{
	CUdeviceptr at = view->at.base + index * nvs_chunk_bytes;
	size_t part = nvs_view_part(backing, view, index);
	if (part == 0)
		return CUDA_SUCCESS;
	CUresult result = nvs_real.cuMemMap(at, part, 0, backing->chunks[index].handle, 0);
	if (result != CUDA_SUCCESS || view->access_count == 0)
		return result;
	result = nvs_real.cuMemSetAccess(at, part, view->access, view->access_count);
	if (result != CUDA_SUCCESS)
		nvs_real.cuMemUnmap(at, part);
	return result;
}

CUresult nvs_mapped_hide(const struct nvs_backing *backing, const struct nvs_view *view, size_t index)
{
	size_t part = nvs_view_part(backing, view, index);
	return part > 0 ? nvs_real.cuMemUnmap(view->at.base + index * nvs_chunk_bytes, part) : CUDA_SUCCESS;
}

/* In the views before `end`; NULL: all. */
static void hide_until(const struct nvs_backing *backing, size_t index, const struct nvs_view *end)
{
	for (const struct nvs_view *view = backing->views; view != end; view = view->next)
		nvs_mapped_hide(backing, view, index);
}

static CUresult show_everywhere(const struct nvs_backing *backing, size_t index)
{
	for (const struct nvs_view *view = backing->views; view != NULL; view = view->next) {
		CUresult result = nvs_mapped_show(backing, view, index);
		if (result != CUDA_SUCCESS) {
			hide_until(backing, index, view);
			return result;
		}
	}
	return CUDA_SUCCESS;
}

/* An unmap cannot span or split a mapping on every driver, so each chunk is undone alone. */
static void unmap_chunk(struct nvs_backing *backing, size_t index)
{
	struct nvs_chunk *chunk = &backing->chunks[index];
	nvs_real.cuMemUnmap(nvs_chunk_address(backing, index), chunk->size);
	nvs_real.cuMemRelease(chunk->handle);
}

static CUresult bring(struct nvs_backing *backing, size_t index)
{
	CUresult result = map_chunk(backing, index);
	if (result != CUDA_SUCCESS)
		return result;
	/* A peer that is allowed meanwhile waits for the mover, and then finds this chunk mapped. */
	result = set_access(nvs_chunk_address(backing, index), backing->chunks[index].size, backing->device,
		atomic_load(&peers[backing->device]));
	if (result == CUDA_SUCCESS)
		result = show_everywhere(backing, index);
	if (result != CUDA_SUCCESS)
		unmap_chunk(backing, index);
	return result;
}

/* The memory is gone only when it is mapped nowhere any more. */
static void take_everywhere(struct nvs_backing *backing, size_t index)
{
	hide_until(backing, index, NULL);
	unmap_chunk(backing, index);
}

static void unmap_first(struct nvs_backing *backing, size_t count)
{
	for (size_t i = 0; i < count; i++)
		unmap_chunk(backing, i);
}

/* A scheduler has given the room: somebody else is about to leave it, or has to be told to. */
static CUresult map_chunk_patiently(struct nvs_backing *backing, size_t index)
{
	uint64_t pause = 0, deadline = nvs_now_ns() + ROOM_WAIT_NS;
	CUresult result = map_chunk(backing, index);
	while (result == CUDA_ERROR_OUT_OF_MEMORY && nvs_link_is_counted(backing->device) && nvs_now_ns() < deadline) {
		nvs_sleep_growing(&pause);
		result = map_chunk(backing, index);
	}
	return result;
}

static CUresult map_all(struct nvs_backing *backing)
{
	for (size_t i = 0; i < backing->chunk_count; i++) {
		CUresult result = map_chunk_patiently(backing, i);
		if (result != CUDA_SUCCESS) {
			unmap_first(backing, i);
			return result;
		}
		backing->chunks[i].state = NVS_CHUNK_GPU;
	}
	return CUDA_SUCCESS;
}

/* Works on a copy of the list, because the driver is not called under its lock. A backing that is freed meanwhile makes
 * the driver refuse its range, which is not a failure of what the application asked: nobody may use that memory any
 * more. Chunks that are not on the card get the access when they come. */
static CUresult renew_access(CUdevice owner)
{
	size_t count;
	nvs_mover_pause();
	uint64_t allowed = atomic_load(&peers[owner]);
	struct nvs_range *ranges = nvs_residency_mapped(owner, &count);
	for (size_t i = 0; ranges != NULL && i < count; i++)
		if (set_access(ranges[i].base, ranges[i].size, owner, allowed) != CUDA_SUCCESS)
			NVS_DEBUG("a peer got no access to %zu bytes at 0x%llx of device %d", ranges[i].size,
				ranges[i].base, owner);
	nvs_mover_resume();
	free(ranges);
	return ranges != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* On the card now. A peer that is allowed while we map was either seen by us before, or sees us in the list. */
static CUresult fill(struct nvs_backing *backing)
{
	CUresult result = map_all(backing);
	if (result != CUDA_SUCCESS)
		return result;
	uint64_t allowed = atomic_load(&peers[backing->device]);
	result = set_access(backing->base, backing->size, backing->device, allowed);
	if (result != CUDA_SUCCESS) {
		unmap_first(backing, backing->chunk_count);
		return result;
	}
	nvs_residency_add(backing);
	if (atomic_load(&peers[backing->device]) != allowed)
		renew_access(backing->device);
	return CUDA_SUCCESS;
}

static CUresult create_mapped(struct nvs_backing *backing, bool resident)
{
	if (backing->prop.type == CU_MEM_ALLOCATION_TYPE_INVALID)
		backing->prop = properties(backing->device);
	CUresult result = nvs_real.cuMemAddressReserve(&backing->base, backing->size, 0, 0, 0);
	if (result != CUDA_SUCCESS)
		return result;
	if (!resident) {
		nvs_residency_add(backing);
		return CUDA_SUCCESS;
	}
	result = fill(backing);
	if (result != CUDA_SUCCESS)
		nvs_real.cuMemAddressFree(backing->base, backing->size);
	return result;
}

static void destroy_mapped(struct nvs_backing *backing)
{
	for (size_t i = 0; i < backing->chunk_count; i++) {
		if (nvs_chunk_is_mapped(&backing->chunks[i]))
			unmap_chunk(backing, i);
		nvs_host_free(backing->chunks[i].buffer);
	}
	nvs_real.cuMemAddressFree(backing->base, backing->size);
}

static CUresult copy_mapped(struct nvs_backing *backing, size_t index, bool out, CUstream stream)
{
	const struct nvs_chunk *chunk = &backing->chunks[index];
	CUdeviceptr at = nvs_chunk_address(backing, index);
	return out ? nvs_real.cuMemcpyDtoHAsync_v2(chunk->buffer->base, at, chunk->size, stream)
		   : nvs_real.cuMemcpyHtoDAsync_v2(at, chunk->buffer->base, chunk->size, stream);
}

const struct nvs_backend nvs_mapped = {
	.create = create_mapped,
	.destroy = destroy_mapped,
	.bring = bring,
	.copy = copy_mapped,
	.take = take_everywhere,
};

CUresult nvs_backing_allow_peer(CUdevice owner, CUdevice accessor)
{
	if (owner == accessor || !nvs_is_managed(owner) || !nvs_is_managed(accessor))
		return CUDA_SUCCESS;
	atomic_fetch_or(&peers[owner], 1ull << accessor);
	return renew_access(owner);
}

void nvs_mapped_after_fork(void)
{
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		atomic_store(&peers[i], 0);
}
