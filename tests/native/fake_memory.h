/* The memory room of the interposer over a small strict driver of its own: every real function can be made to fail,
 * every rule of the virtual-memory API is checked, and the scheduler and the gate answer as a test says. The room's
 * files are part of the program, so that their internals can be looked at. */
#ifndef NVS_FAKE_MEMORY_H
#define NVS_FAKE_MEMORY_H

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../native/interposer/table.c"
#include "../../native/interposer/backing.c"
#include "../../native/interposer/slab.c"
#include "../../native/interposer/array_size.c"
#include "../../native/interposer/counted.c"
#include "../../native/interposer/memory.c"
#include "../../native/interposer/contexts.c"
#include "../../native/interposer/report.c"

#define MIB (1ull << 20)

/* ---- the other rooms ---- */

struct nvs_real nvs_real;
__thread int nvs_inside;

static uint64_t fake_limit = UINT64_MAX; /* per device */
static uint64_t fake_card;               /* what nvs_link_card answers */
static _Atomic uint64_t fake_allocated[NVS_MAX_DEVICES];
static _Atomic int64_t fake_pinned[NVS_MAX_DEVICES];
static _Atomic bool fake_drain_fails;
static _Atomic unsigned fake_drains, fake_contexts_announced, fake_contexts_ended;

bool nvs_resolve_driver(void)
{
	return true;
}

void nvs_log(const char *level, const char *format, ...)
{
}

CUresult nvs_link_attach(CUdevice device)
{
	return CUDA_SUCCESS;
}

CUresult nvs_link_request(CUdevice device, uint64_t bytes)
{
	uint64_t now = atomic_load(&fake_allocated[device]);
	do {
		if (bytes > fake_limit || now + bytes > fake_limit)
			return CUDA_ERROR_OUT_OF_MEMORY;
	} while (!atomic_compare_exchange_weak(&fake_allocated[device], &now, now + bytes));
	return CUDA_SUCCESS;
}

void nvs_link_release(CUdevice device, uint64_t bytes)
{
	assert(atomic_fetch_sub(&fake_allocated[device], bytes) >= bytes);
}

uint64_t nvs_link_allocated(CUdevice device)
{
	return fake_allocated[device];
}

void nvs_link_pinned(CUdevice device, int64_t delta)
{
	assert(atomic_fetch_add(&fake_pinned[device], delta) + delta >= 0);
}

uint64_t nvs_link_card(CUdevice device)
{
	return fake_card;
}

bool nvs_gate_drain(uint32_t deadline_ms)
{
	atomic_fetch_add(&fake_drains, 1);
	return !fake_drain_fails;
}

void nvs_context_created(CUcontext context, CUdevice device)
{
	atomic_fetch_add(&fake_contexts_announced, 1);
}

void nvs_context_destroyed(CUcontext context)
{
	atomic_fetch_add(&fake_contexts_ended, 1);
}

/* ---- the driver ---- */

#define FAKE_GRANULARITY (2 * MIB)
#define FAKE_SLOTS 8192

struct fake_range {
	CUdeviceptr base; /* 0: free slot */
	size_t size;
	CUmemGenericAllocationHandle handle; /* of a mapping */
	uint64_t accessors;
};

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_range fake_reserved[FAKE_SLOTS], fake_mapped[FAKE_SLOTS];
static size_t fake_handles, fake_maps, fake_reservations, fake_native;
static uint64_t fake_next = 0x700000000000ull, fake_next_handle = 1;
static int fake_fail_at; /* the how-manieth call fails; 0: none */
static CUresult fake_error = CUDA_ERROR_UNKNOWN;
static int fake_virtual_memory = 1;
static void (*fake_during_set_access)(void); /* called once, in the middle of the next cuMemSetAccess */
static unsigned fake_primary_retained[2];
static struct CUctx_st {
	CUdevice device;
} fake_contexts[2] = {{0}, {1}};
static __thread CUcontext fake_current;

static bool fake_fails(void)
{
	return fake_fail_at > 0 && --fake_fail_at == 0;
}

static struct fake_range *fake_at(struct fake_range *ranges, CUdeviceptr base)
{
	for (int i = 0; i < FAKE_SLOTS; i++)
		if (ranges[i].base == base)
			return &ranges[i];
	return NULL;
}

static CUresult fake_cuMemAddressReserve(
	CUdeviceptr *p, size_t n, size_t align, CUdeviceptr address, unsigned long long flags)
{
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails();
	if (!fails) {
		assert(n > 0 && n % FAKE_GRANULARITY == 0);
		struct fake_range *slot = fake_at(fake_reserved, 0);
		assert(slot != NULL);
		*p = fake_next;
		fake_next += n;
		*slot = (struct fake_range){.base = *p, .size = n};
		fake_reservations++;
	}
	pthread_mutex_unlock(&fake_lock);
	return fails ? fake_error : CUDA_SUCCESS;
}

static CUresult fake_cuMemAddressFree(CUdeviceptr p, size_t n)
{
	pthread_mutex_lock(&fake_lock);
	struct fake_range *range = fake_at(fake_reserved, p);
	assert(range != NULL && range->size == n);
	for (int i = 0; i < FAKE_SLOTS; i++)
		assert(fake_mapped[i].base == 0 || fake_mapped[i].base < p || fake_mapped[i].base >= p + n);
	range->base = 0;
	fake_reservations--;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails();
	if (!fails) {
		assert(n > 0 && n % FAKE_GRANULARITY == 0 && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
		*handle = fake_next_handle++;
		fake_handles++;
	}
	pthread_mutex_unlock(&fake_lock);
	return fails ? fake_error : CUDA_SUCCESS;
}

static CUresult fake_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	pthread_mutex_lock(&fake_lock);
	assert(fake_handles > 0);
	fake_handles--;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemMap(
	CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails();
	if (!fails) {
		assert(offset == 0 && fake_at(fake_mapped, p) == NULL);
		struct fake_range *slot = fake_at(fake_mapped, 0);
		assert(slot != NULL);
		*slot = (struct fake_range){.base = p, .size = n, .handle = handle};
		fake_maps++;
	}
	pthread_mutex_unlock(&fake_lock);
	return fails ? fake_error : CUDA_SUCCESS;
}

static CUresult fake_cuMemUnmap(CUdeviceptr p, size_t n)
{
	pthread_mutex_lock(&fake_lock);
	struct fake_range *range = fake_at(fake_mapped, p);
	assert(range != NULL && range->size == n);
	range->base = 0;
	fake_maps--;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *desc, size_t count)
{
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails();
	size_t covered = 0;
	for (int i = 0; i < FAKE_SLOTS && !fails; i++) {
		struct fake_range *range = &fake_mapped[i];
		if (range->base == 0 || range->base < p || range->base >= p + n)
			continue;
		covered += range->size;
		range->accessors = 0;
		for (size_t k = 0; k < count; k++)
			range->accessors |= 1ull << desc[k].location.id;
	}
	assert(fails || covered == n);
	void (*meanwhile)(void) = fake_during_set_access;
	fake_during_set_access = NULL;
	pthread_mutex_unlock(&fake_lock);
	if (meanwhile != NULL)
		meanwhile();
	return fails ? fake_error : CUDA_SUCCESS;
}

static CUresult fake_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
	*granularity = FAKE_GRANULARITY;
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	*value = attribute == ATTRIBUTE_VIRTUAL_MEMORY_SUPPORTED ? fake_virtual_memory : 0;
	return CUDA_SUCCESS;
}

static CUresult fake_cuCtxGetCurrent(CUcontext *context)
{
	*context = fake_current;
	return CUDA_SUCCESS;
}

static CUresult fake_cuCtxGetDevice(CUdevice *device)
{
	if (fake_current == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = fake_current->device;
	return CUDA_SUCCESS;
}

static __thread CUcontext fake_pushed_over;

static CUresult fake_cuCtxPushCurrent(CUcontext context)
{
	fake_pushed_over = fake_current;
	fake_current = context;
	return CUDA_SUCCESS;
}

static CUresult fake_cuCtxPopCurrent(CUcontext *context)
{
	*context = fake_current;
	fake_current = fake_pushed_over;
	return CUDA_SUCCESS;
}

static CUresult fake_make_pointer(CUdeviceptr *p, size_t n)
{
	if (n == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_current == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails();
	if (!fails) {
		*p = fake_next;
		fake_next += (n + FAKE_GRANULARITY) / FAKE_GRANULARITY * FAKE_GRANULARITY;
		fake_native++;
	}
	pthread_mutex_unlock(&fake_lock);
	return fails ? fake_error : CUDA_SUCCESS;
}

static CUresult fake_cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	return fake_make_pointer(p, n);
}

static CUresult fake_cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream stream)
{
	return fake_make_pointer(p, n);
}

static CUdeviceptr fake_unknown_freed;

static CUresult fake_cuMemFree(CUdeviceptr p)
{
	if (p == 0)
		return CUDA_SUCCESS;
	fake_unknown_freed = p;
	if (fake_native == 0)
		return CUDA_ERROR_INVALID_VALUE;
	fake_native--;
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
	return fake_cuMemFree(p);
}

static CUresult fake_cuMemGetInfo(size_t *available, size_t *total)
{
	*available = 3000 * MIB;
	*total = 14913 * MIB;
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	*bytes = 14913 * MIB;
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	return CUDA_ERROR_NOT_FOUND;
}

/* As a driver does for mapped memory: no context, the mapping as the range. */
static CUresult fake_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	uint64_t value = attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
	memcpy(data, &value, attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 4 : 8);
	return CUDA_SUCCESS;
}

static CUresult fake_cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr p)
{
	for (unsigned i = 0; i < count; i++)
		fake_cuPointerGetAttribute(data[i], attributes[i], p);
	return CUDA_SUCCESS;
}

static CUresult fake_cuIpcGetMemHandle(void *handle, CUdeviceptr p)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuCtxDestroy(CUcontext context)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	fake_primary_retained[device]++;
	*context = &fake_contexts[device];
	return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
	fake_primary_retained[device]--;
	return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxReset(CUdevice device)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	*active = fake_primary_retained[device] > 0;
	return CUDA_SUCCESS;
}

static CUresult fake_cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	return fake_make_pointer((CUdeviceptr *)array, desc->Width);
}

static CUresult fake_cuArrayDestroy(CUarray array)
{
	return fake_cuMemFree((uintptr_t)array);
}

static void fake_begin(void)
{
	nvs_real = (struct nvs_real){
		.cuMemAddressReserve = fake_cuMemAddressReserve,
		.cuMemAddressFree = fake_cuMemAddressFree,
		.cuMemCreate = fake_cuMemCreate,
		.cuMemRelease = fake_cuMemRelease,
		.cuMemMap = fake_cuMemMap,
		.cuMemUnmap = fake_cuMemUnmap,
		.cuMemSetAccess = fake_cuMemSetAccess,
		.cuMemGetAllocationGranularity = fake_cuMemGetAllocationGranularity,
		.cuDeviceGetAttribute = fake_cuDeviceGetAttribute,
		.cuCtxGetCurrent = fake_cuCtxGetCurrent,
		.cuCtxGetDevice = fake_cuCtxGetDevice,
		.cuCtxPushCurrent_v2 = fake_cuCtxPushCurrent,
		.cuCtxPopCurrent_v2 = fake_cuCtxPopCurrent,
		.cuMemAlloc_v2 = fake_make_pointer,
		.cuMemAllocManaged = fake_cuMemAllocManaged,
		.cuMemAllocAsync = fake_cuMemAllocAsync,
		.cuMemFree_v2 = fake_cuMemFree,
		.cuMemFreeAsync = fake_cuMemFreeAsync,
		.cuMemGetInfo_v2 = fake_cuMemGetInfo,
		.cuDeviceTotalMem_v2 = fake_cuDeviceTotalMem,
		.cuMemGetAddressRange_v2 = fake_cuMemGetAddressRange,
		.cuPointerGetAttribute = fake_cuPointerGetAttribute,
		.cuPointerGetAttributes = fake_cuPointerGetAttributes,
		.cuIpcGetMemHandle = fake_cuIpcGetMemHandle,
		.cuCtxDestroy_v2 = fake_cuCtxDestroy,
		.cuCtxEnablePeerAccess = fake_cuCtxEnablePeerAccess,
		.cuDevicePrimaryCtxRetain = fake_cuDevicePrimaryCtxRetain,
		.cuDevicePrimaryCtxRelease_v2 = fake_cuDevicePrimaryCtxRelease,
		.cuDevicePrimaryCtxReset_v2 = fake_cuDevicePrimaryCtxReset,
		.cuDevicePrimaryCtxGetState = fake_cuDevicePrimaryCtxGetState,
		.cuArrayCreate_v2 = fake_cuArrayCreate,
		.cuArrayDestroy = fake_cuArrayDestroy,
	};
	fake_limit = UINT64_MAX;
	fake_card = 0;
	fake_fail_at = 0;
	fake_drain_fails = false;
	fake_current = &fake_contexts[0];
	fake_virtual_memory = 1;
}

/* The invariant at every test's end: nothing is left in the driver, in the count or in the table. */
static void fake_end(void)
{
	size_t count, bytes;
	fake_drain_fails = false;
	nvs_memory_reap(1);
	for (int device = 0; device < 2; device++)
		nvs_slab_trim(device);
	nvs_table_parked(&count, &bytes);
	assert(count == 0 && bytes == 0);
	assert(allocations == NULL && by_address == NULL && backings == NULL && counted_list == NULL && by_key == NULL);
	assert(fake_handles == 0 && fake_maps == 0 && fake_reservations == 0);
	for (int device = 0; device < 2; device++) {
		assert(fake_allocated[device] == 0 && fake_pinned[device] == 0);
		atomic_store(&granularities[device], 0);
		atomic_store(&peers[device], 0);
	}
}

#define RUN(test)                                                                                                      \
	do {                                                                                                           \
		fake_begin();                                                                                          \
		test();                                                                                                \
		fake_end();                                                                                            \
	} while (0)

#endif
