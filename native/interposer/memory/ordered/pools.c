/* Pool handles, and what the application is told of the pools behind them.
 *
 * Ours are the default pools of the devices, and pools that the application makes of plain device memory that nobody
 * else can open. All others (exportable, imported, of host or managed memory) stay the driver's, counted as pinned.
 * What we do not answer ourselves the driver answers for its own, empty pool: it keeps thresholds, flags and access
 * rights. */
#include "memory/ordered/ordered.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/devices.h"
#include "gate/entry.h"
#include "memory/swap/backing.h"
#include "resolve/resolve.h"

/* Work that is just over is seen a moment later. */
#define TRIM_WAIT_MS 10

/* Linked for ever; one that ended is reused. The list and its handles are changed under nvs_ordered_lock. */
static _Atomic(struct nvs_pool *) pools;
static struct nvs_pool *current_pools[NVS_MAX_DEVICES]; /* NULL: to be asked for */

struct nvs_pool *nvs_pool_first(void)
{
	return atomic_load(&pools);
}

/* ---- handles ---- */

struct nvs_pool *nvs_pool_known(CUmemoryPool handle)
{
	struct nvs_pool *pool = nvs_pool_first();
	while (pool != NULL && pool->handle != handle)
		pool = pool->next;
	return pool;
}

/* The lock is held. Its lanes are empty; they serve the pool that comes. */
static struct nvs_pool *find_ended(void)
{
	struct nvs_pool *pool = nvs_pool_first();
	while (pool != NULL && (pool->handle != NULL || pool->heap.reserved > 0))
		pool = pool->next;
	return pool;
}

/* The lock is held. NULL without host memory. */
static struct nvs_pool *add_pool(void)
{
	struct nvs_pool *pool = find_ended();
	if (pool != NULL)
		return pool;
	pool = calloc(1, sizeof(*pool));
	if (pool == NULL)
		return NULL;
	pool->heap.space = &nvs_ordered_space;
	pool->next = nvs_pool_first();
	atomic_store(&pools, pool);
	return pool;
}

static struct nvs_pool *remember_pool(CUmemoryPool handle, CUdevice device, bool ours, uint64_t limit)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_pool *pool = nvs_pool_known(handle);
	if (pool == NULL && (pool = add_pool()) != NULL) {
		pool->handle = handle;
		pool->device = device;
		pool->ours = ours;
		pool->threshold = 0;
		pool->limit = limit;
		pool->heap.used_high = pool->heap.reserved_high = 0;
	}
	pthread_mutex_unlock(&nvs_ordered_lock);
	return pool;
}

static struct nvs_pool *find_pool(CUmemoryPool handle)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	struct nvs_pool *pool = nvs_pool_known(handle);
	pthread_mutex_unlock(&nvs_ordered_lock);
	return pool;
}

/* The device whose default pool it is; -1: none's. */
static CUdevice default_of(CUmemoryPool handle)
{
	int count = 0;
	CUmemoryPool its;
	if (nvs_real.cuDeviceGetDefaultMemPool == NULL || nvs_real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return -1;
	for (int device = 0; device < count; device++)
		if (nvs_real.cuDeviceGetDefaultMemPool(&its, device) == CUDA_SUCCESS && its == handle)
			return device;
	return -1;
}

struct nvs_pool *nvs_pool_of(CUmemoryPool handle)
{
	struct nvs_pool *pool = handle != NULL ? find_pool(handle) : NULL;
	if (pool != NULL || handle == NULL)
		return pool;
	CUdevice device = default_of(handle);
	return remember_pool(handle, device, device >= 0 && nvs_backing_supported(device), 0);
}

struct nvs_pool *nvs_pool_current_known(CUdevice device)
{
	return nvs_is_managed(device) ? current_pools[device] : NULL;
}

struct nvs_pool *nvs_pool_current(CUdevice device)
{
	CUmemoryPool handle;
	if (!nvs_is_managed(device) || nvs_real.cuDeviceGetMemPool == NULL ||
		nvs_real.cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS)
		return NULL;
	struct nvs_pool *pool = nvs_pool_of(handle);
	pthread_mutex_lock(&nvs_ordered_lock);
	current_pools[device] = pool;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return pool;
}

static void ask_for_current_again(void)
{
	pthread_mutex_lock(&nvs_ordered_lock);
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		current_pools[i] = NULL;
	pthread_mutex_unlock(&nvs_ordered_lock);
}

void nvs_pools_after_fork(void)
{
	atomic_store(&pools, NULL);
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		current_pools[i] = NULL;
}

/* The pool behind the handle if it is ours. */
static struct nvs_pool *our_pool(CUmemoryPool handle)
{
	struct nvs_pool *pool = nvs_pool_of(handle);
	return pool != NULL && pool->ours ? pool : NULL;
}

/* ---- life ---- */

static bool may_be_ours(const CUmemPoolProps *props)
{
	return props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && props->handleTypes == 0 && props->usage == 0 &&
	       props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && nvs_backing_supported(props->location.id);
}

NVS_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	NVS_PASS_INSIDE(cuMemPoolCreate, (pool, props));
	nvs_inside++;
	CUresult result = nvs_real.cuMemPoolCreate(pool, props);
	if (result == CUDA_SUCCESS)
		remember_pool(*pool, props->location.id, may_be_ours(props), props->maxSize);
	nvs_inside--;
	return result;
}

/* The handle is forgotten before the driver gives it to another pool. */
NVS_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	NVS_PASS_INSIDE(cuMemPoolDestroy, (handle));
	nvs_inside++;
	struct nvs_pool *pool = handle != NULL ? find_pool(handle) : NULL;
	if (pool != NULL) {
		pthread_mutex_lock(&nvs_ordered_lock);
		pool->handle = NULL;
		pthread_mutex_unlock(&nvs_ordered_lock);
	}
	CUresult result = nvs_real.cuMemPoolDestroy(handle);
	ask_for_current_again();
	if (pool != NULL && result != CUDA_SUCCESS) {
		pthread_mutex_lock(&nvs_ordered_lock);
		pool->handle = handle;
		pthread_mutex_unlock(&nvs_ordered_lock);
	} else if (pool != NULL) {
		nvs_pool_reap(pool, TRIM_WAIT_MS);
		nvs_pool_release(pool, 0, false);
	}
	nvs_inside--;
	return result;
}

NVS_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	NVS_PASS_INSIDE(cuDeviceSetMemPool, (device, pool));
	CUresult result = nvs_real.cuDeviceSetMemPool(device, pool);
	ask_for_current_again();
	return result;
}

NVS_EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	NVS_PASS_INSIDE(cuMemSetMemPool, (location, type, pool));
	CUresult result = nvs_real.cuMemSetMemPool(location, type, pool);
	ask_for_current_again();
	return result;
}

NVS_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	NVS_PASS_INSIDE(cuMemPoolTrimTo, (handle, keep));
	nvs_inside++;
	CUresult result = nvs_real.cuMemPoolTrimTo(handle, keep);
	struct nvs_pool *pool = result == CUDA_SUCCESS ? our_pool(handle) : NULL;
	if (pool != NULL) {
		nvs_pool_reap(pool, TRIM_WAIT_MS);
		nvs_pool_release(pool, keep, false);
	}
	nvs_inside--;
	return result;
}

/* ---- attributes ---- */

NVS_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	NVS_PASS_INSIDE(cuMemPoolSetAttribute, (handle, attribute, value));
	CUresult result = nvs_real.cuMemPoolSetAttribute(handle, attribute, value);
	struct nvs_pool *pool = result == CUDA_SUCCESS ? our_pool(handle) : NULL;
	if (pool == NULL)
		return result;
	pthread_mutex_lock(&nvs_ordered_lock);
	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		pool->threshold = *(cuuint64_t *)value;
	if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) /* may only be set to 0: start anew */
		pool->heap.reserved_high = pool->heap.reserved;
	if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		pool->heap.used_high = pool->heap.used;
	pthread_mutex_unlock(&nvs_ordered_lock);
	return result;
}

static uint64_t figure(const struct nvs_pool *pool, int attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return pool->heap.reserved;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return pool->heap.reserved_high;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return pool->heap.used;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return pool->heap.used_high;
	default:
		return 0;
	}
}

/* The driver's own pool may have a little too: what was allocated while a stream captured. */
NVS_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	NVS_PASS_INSIDE(cuMemPoolGetAttribute, (handle, attribute, value));
	CUresult result = nvs_real.cuMemPoolGetAttribute(handle, attribute, value);
	bool counts = attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH;
	struct nvs_pool *pool = result == CUDA_SUCCESS && counts ? our_pool(handle) : NULL;
	if (pool == NULL)
		return result;
	pthread_mutex_lock(&nvs_ordered_lock);
	*(cuuint64_t *)value += figure(pool, attribute);
	pthread_mutex_unlock(&nvs_ordered_lock);
	return result;
}

/* ---- peers ---- */

/* As for other memory of ours: given for the whole device, and not taken back. */
NVS_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
	NVS_PASS_INSIDE(cuMemPoolSetAccess, (handle, access, count));
	nvs_inside++;
	CUresult result = nvs_real.cuMemPoolSetAccess(handle, access, count);
	struct nvs_pool *pool = result == CUDA_SUCCESS ? our_pool(handle) : NULL;
	for (size_t i = 0; pool != NULL && result == CUDA_SUCCESS && i < count; i++)
		if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
			access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			result = nvs_backing_allow_peer(pool->device, access[i].location.id);
	nvs_inside--;
	return result;
}
