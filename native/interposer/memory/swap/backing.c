#include "memory/swap/backing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/devices.h"
#include "base/env.h"
#include "base/log.h"
#include "link/link.h"
#include "memory/swap/hostmem.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "memory/swap/state.h"

#define UNIFIED_GRANULARITY ((size_t)2 << 20)

/* How a device's memory is backed. */
struct kind {
	const struct nvs_backend *backend; /* NULL: not at all */
	size_t granularity;
};

static pthread_mutex_t kinds_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kind kinds[NVS_MAX_DEVICES]; /* written once each, under the lock */
_Atomic uint64_t nvs_kinds_known;

static struct kind choose(CUdevice device)
{
	bool unified = nvs_unified_supported(device);
	size_t granularity = unified && nvs_env()->single_oversub ? 0 : nvs_mapped_granularity(device);
	if (granularity > 0)
		return (struct kind){&nvs_mapped, granularity};
	if (unified) {
		NVS_DEBUG("memory of device %d is unified memory", device);
		nvs_residency_unified(device);
		return (struct kind){&nvs_unified, UNIFIED_GRANULARITY};
	}
	NVS_DEBUG("device %d has neither the virtual-memory API nor unified memory with prefetches: its memory is "
		  "counted, but cannot be moved",
		device);
	return (struct kind){NULL, 1};
}

static const struct kind *kind_of(CUdevice device)
{
	static const struct kind none = {NULL, 1};
	if (!nvs_is_managed(device))
		return &none;
	if ((atomic_load(&nvs_kinds_known) & 1ull << device) == 0) {
		pthread_mutex_lock(&kinds_lock);
		if ((atomic_load(&nvs_kinds_known) & 1ull << device) == 0)
			kinds[device] = choose(device);
		atomic_fetch_or(&nvs_kinds_known, 1ull << device);
		pthread_mutex_unlock(&kinds_lock);
	}
	return &kinds[device];
}

bool nvs_backing_supported(CUdevice device)
{
	return kind_of(device)->backend != NULL;
}

/* When it has to leave the card it needs host memory, and then nobody is there to be told that there is none. So it is
 * set aside now; memory that is on the card without it stays there, and the scheduler knows before it plans with it. */
static CUresult set_aside(struct nvs_backing *backing, bool resident)
{
	static _Atomic bool said;
	if (nvs_env()->swap_off)
		return CUDA_SUCCESS;
	if (nvs_host_promise(backing->size)) {
		backing->promised = backing->size;
		return CUDA_SUCCESS;
	}
	if (resident) {
		for (size_t i = 0; i < backing->chunk_count; i++)
			backing->chunks[i].blocked = true;
		return CUDA_SUCCESS;
	}
	if (!atomic_exchange(&said, true))
		NVS_WARN("%zu MiB denied: neither the card nor the host (or this container's memory limit) has room "
			 "for them",
			backing->size >> 20);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct nvs_backing *plan(
	const struct kind *kind, CUdevice device, size_t size, bool shared, const CUmemAllocationProp *prop)
{
	size_t count = (size + nvs_chunk_bytes - 1) / nvs_chunk_bytes;
	struct nvs_backing *backing = calloc(1, sizeof(*backing) + count * sizeof(backing->chunks[0]));
	if (backing == NULL)
		return NULL;
	backing->backend = kind->backend;
	backing->device = device;
	backing->size = size;
	backing->shared = shared;
	if (prop != NULL)
		backing->prop = *prop;
	backing->chunk_count = count;
	for (size_t i = 0; i < count; i++)
		backing->chunks[i].size = i + 1 < count ? nvs_chunk_bytes : size - i * nvs_chunk_bytes;
	return backing;
}

static CUresult make(
	CUdevice device, size_t size, bool shared, const CUmemAllocationProp *prop, struct nvs_backing **out)
{
	const struct kind *kind = kind_of(device);
	if (kind->backend == NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (size > SIZE_MAX - kind->granularity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	size = (size + kind->granularity - 1) / kind->granularity * kind->granularity;

	bool resident;
	CUresult result = nvs_link_request(device, size, false, &resident);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_backing *backing = plan(kind, device, size, shared, prop);
	result = backing != NULL ? set_aside(backing, resident) : CUDA_ERROR_OUT_OF_MEMORY;
	bool stays = result == CUDA_SUCCESS && backing->chunks[0].blocked;
	if (result == CUDA_SUCCESS)
		result = kind->backend->create(backing, resident);
	if (result != CUDA_SUCCESS) {
		nvs_host_forgive(backing != NULL ? backing->promised : 0);
		free(backing);
		nvs_link_release(device, size, resident ? size : 0);
		return result;
	}
	if (stays)
		nvs_link_moved(device); /* what is pinned is known at once */
	nvs_mover_kick();
	*out = backing;
	return CUDA_SUCCESS;
}

CUresult nvs_backing_create(CUdevice device, size_t size, bool shared, struct nvs_backing **out)
{
	return make(device, size, shared, NULL, out);
}

CUresult nvs_backing_create_as(const CUmemAllocationProp *prop, size_t size, struct nvs_backing **out)
{
	return make(prop->location.id, size, false, prop, out);
}

bool nvs_backing_exportable(CUdevice device)
{
	return kind_of(device)->backend == &nvs_mapped && nvs_mapped_exportable(device);
}

/* Memory for tiles of sparse arrays has no addresses to copy it by. */
bool nvs_backing_takes(const CUmemAllocationProp *prop, size_t size)
{
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		(prop->allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) != 0 || nvs_env()->swap_off)
		return false;
	const struct kind *kind = kind_of(prop->location.id);
	return kind->backend == &nvs_mapped && size > 0 && size % kind->granularity == 0;
}

void nvs_backing_destroy(struct nvs_backing *backing)
{
	uint64_t resident = nvs_residency_remove(backing);
	backing->backend->destroy(backing);
	nvs_host_forgive(backing->promised);
	nvs_link_release(backing->device, backing->size, resident);
	free(backing);
}

void nvs_backing_after_fork(void)
{
	pthread_mutex_init(&kinds_lock, NULL);
	nvs_mapped_after_fork();
}
