#include "backing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "link.h"
#include "log.h"
#include "memory.h"

#define ATTRIBUTE_VIRTUAL_MEMORY_SUPPORTED 102
#define ATTRIBUTE_RDMA_WITH_VIRTUAL_MEMORY 110

static pthread_mutex_t backings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvs_backing *backings;            /* under the lock */
static _Atomic uint64_t peers[NVS_MAX_DEVICES]; /* [owner]: bit per device that may use its memory, besides itself */
static _Atomic size_t granularities[NVS_MAX_DEVICES]; /* 0: not asked yet */
#define UNSUPPORTED 1

/* Also what cuMemAlloc gives: memory that network cards can reach, where card and driver can do that. */
static CUmemAllocationProp properties(CUdevice device)
{
	int rdma = 0;
	if (nvs_real.cuDeviceGetAttribute(&rdma, ATTRIBUTE_RDMA_WITH_VIRTUAL_MEMORY, device) != CUDA_SUCCESS)
		rdma = 0;
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.allocFlags.gpuDirectRDMACapable = rdma != 0,
	};
}

static bool driver_has_virtual_memory(void)
{
	return nvs_real.cuMemCreate != NULL && nvs_real.cuMemRelease != NULL && nvs_real.cuMemMap != NULL &&
	       nvs_real.cuMemUnmap != NULL && nvs_real.cuMemSetAccess != NULL && nvs_real.cuMemAddressReserve != NULL &&
	       nvs_real.cuMemAddressFree != NULL && nvs_real.cuMemGetAllocationGranularity != NULL &&
	       nvs_real.cuDeviceGetAttribute != NULL;
}

static size_t ask_granularity(CUdevice device)
{
	int supported = 0;
	size_t granularity = 0;
	if (!driver_has_virtual_memory() ||
		nvs_real.cuDeviceGetAttribute(&supported, ATTRIBUTE_VIRTUAL_MEMORY_SUPPORTED, device) != CUDA_SUCCESS ||
		!supported)
		return UNSUPPORTED;
	CUmemAllocationProp prop = properties(device);
	CUresult result = nvs_real.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	return result == CUDA_SUCCESS && granularity > UNSUPPORTED ? granularity : UNSUPPORTED;
}

static size_t granularity_of(CUdevice device)
{
	if (device < 0 || device >= NVS_MAX_DEVICES)
		return UNSUPPORTED;
	size_t known = atomic_load(&granularities[device]);
	if (known == 0) {
		known = ask_granularity(device);
		atomic_store(&granularities[device], known);
		if (known == UNSUPPORTED)
			NVS_DEBUG("device %d has no virtual-memory API: its memory is counted, but cannot be moved",
				device);
	}
	return known;
}

bool nvs_backing_supported(CUdevice device)
{
	return granularity_of(device) != UNSUPPORTED;
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

static CUresult map_chunk(CUdeviceptr at, struct nvs_chunk *chunk, const CUmemAllocationProp *prop)
{
	CUresult result = nvs_real.cuMemCreate(&chunk->handle, chunk->size, prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_real.cuMemMap(at, chunk->size, 0, chunk->handle, 0);
	if (result != CUDA_SUCCESS)
		nvs_real.cuMemRelease(chunk->handle);
	return result;
}

/* Chunks 0 .. count-1 are mapped. An unmap cannot span or split a mapping on every driver, so each is undone alone. */
static void unmap_chunks(struct nvs_backing *backing, size_t count)
{
	CUdeviceptr at = backing->base;
	for (size_t i = 0; i < count; i++) {
		nvs_real.cuMemUnmap(at, backing->chunks[i].size);
		nvs_real.cuMemRelease(backing->chunks[i].handle);
		at += backing->chunks[i].size;
	}
}

static CUresult map_all(struct nvs_backing *backing)
{
	CUmemAllocationProp prop = properties(backing->device);
	CUdeviceptr at = backing->base;
	for (size_t i = 0; i < backing->chunk_count; i++) {
		CUresult result = map_chunk(at, &backing->chunks[i], &prop);
		if (result != CUDA_SUCCESS) {
			unmap_chunks(backing, i);
			return result;
		}
		at += backing->chunks[i].size;
	}
	return CUDA_SUCCESS;
}

static void publish(struct nvs_backing *backing)
{
	pthread_mutex_lock(&backings_lock);
	backing->previous = NULL;
	backing->next = backings;
	if (backings != NULL)
		backings->previous = backing;
	backings = backing;
	pthread_mutex_unlock(&backings_lock);
}

static void withdraw(struct nvs_backing *backing)
{
	pthread_mutex_lock(&backings_lock);
	if (backing->previous != NULL)
		backing->previous->next = backing->next;
	else
		backings = backing->next;
	if (backing->next != NULL)
		backing->next->previous = backing->previous;
	pthread_mutex_unlock(&backings_lock);
}

/* A peer that was allowed while we mapped was either seen by us before, or sees us in the list. */
static CUresult allow_known_peers(struct nvs_backing *backing)
{
	uint64_t allowed = atomic_load(&peers[backing->device]);
	CUresult result = set_access(backing->base, backing->size, backing->device, allowed);
	if (result != CUDA_SUCCESS)
		return result;
	publish(backing);
	uint64_t now = atomic_load(&peers[backing->device]);
	if (now != allowed && (result = set_access(backing->base, backing->size, backing->device, now)) != CUDA_SUCCESS)
		withdraw(backing);
	return result;
}

static CUresult fill(struct nvs_backing *backing)
{
	CUresult result = nvs_real.cuMemAddressReserve(&backing->base, backing->size, 0, 0, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = map_all(backing);
	if (result == CUDA_SUCCESS) {
		result = allow_known_peers(backing);
		if (result != CUDA_SUCCESS)
			unmap_chunks(backing, backing->chunk_count);
	}
	if (result != CUDA_SUCCESS)
		nvs_real.cuMemAddressFree(backing->base, backing->size);
	return result;
}

static struct nvs_backing *plan(CUdevice device, size_t size)
{
	size_t count = (size + NVS_CHUNK_BYTES - 1) / NVS_CHUNK_BYTES;
	struct nvs_backing *backing = calloc(1, sizeof(*backing) + count * sizeof(backing->chunks[0]));
	if (backing == NULL)
		return NULL;
	backing->device = device;
	backing->size = size;
	backing->chunk_count = count;
	for (size_t i = 0; i < count; i++)
		backing->chunks[i].size = i + 1 < count ? NVS_CHUNK_BYTES : size - i * NVS_CHUNK_BYTES;
	return backing;
}

CUresult nvs_backing_create(CUdevice device, size_t size, struct nvs_backing **out)
{
	size_t granularity = granularity_of(device);
	if (size > SIZE_MAX - granularity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	size = (size + granularity - 1) / granularity * granularity;

	CUresult result = nvs_link_request(device, size);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_backing *backing = plan(device, size);
	result = backing != NULL ? fill(backing) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		free(backing);
		nvs_link_release(device, size);
		return result;
	}
	*out = backing;
	return CUDA_SUCCESS;
}

void nvs_backing_destroy(struct nvs_backing *backing)
{
	withdraw(backing);
	unmap_chunks(backing, backing->chunk_count);
	nvs_real.cuMemAddressFree(backing->base, backing->size);
	nvs_link_release(backing->device, backing->size);
	free(backing);
}

struct range {
	CUdeviceptr base;
	size_t size;
};

static struct range *ranges_on(CUdevice device, size_t *count)
{
	size_t total = 0, used = 0;
	pthread_mutex_lock(&backings_lock);
	for (struct nvs_backing *each = backings; each != NULL; each = each->next)
		total += each->device == device;
	struct range *ranges = calloc(total + 1, sizeof(*ranges));
	for (struct nvs_backing *each = backings; ranges != NULL && each != NULL; each = each->next)
		if (each->device == device)
			ranges[used++] = (struct range){each->base, each->size};
	pthread_mutex_unlock(&backings_lock);
	*count = used;
	return ranges;
}

/* Works on a copy of the list, because the driver is not called under the lock. A backing that is freed meanwhile makes
 * the driver refuse its range, which is not a failure of what the application asked: nobody may use that memory any
 * more. */
CUresult nvs_backing_allow_peer(CUdevice owner, CUdevice accessor)
{
	if (owner == accessor || owner < 0 || owner >= NVS_MAX_DEVICES || accessor < 0 || accessor >= NVS_MAX_DEVICES)
		return CUDA_SUCCESS;
	uint64_t allowed = atomic_fetch_or(&peers[owner], 1ull << accessor) | 1ull << accessor;
	size_t count;
	struct range *ranges = ranges_on(owner, &count);
	if (ranges == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count; i++)
		if (set_access(ranges[i].base, ranges[i].size, owner, allowed) != CUDA_SUCCESS)
			NVS_DEBUG("device %d got no access to %zu bytes at 0x%llx of device %d", accessor,
				ranges[i].size, ranges[i].base, owner);
	free(ranges);
	return CUDA_SUCCESS;
}

void nvs_backing_after_fork(void)
{
	pthread_mutex_init(&backings_lock, NULL);
	backings = NULL;
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		atomic_store(&peers[i], 0);
}
