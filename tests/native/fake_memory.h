/* The interposer's memory/ over a small strict driver of its own: every real function can be made to fail,
 * every rule of the virtual-memory API is checked, and the scheduler and the gate answer as a test says. */
#ifndef NVS_FAKE_MEMORY_H
#define NVS_FAKE_MEMORY_H

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/env.h"
#include "base/log.h"
#include "gate/gate.h"
#include "gate/streams.h"
#include "ipc/ipc.h"
#include "ipc/state.h"
#include "link/link.h"
#include "memory/memory.h"
#include "memory/ordered/ordered.h"
#include "memory/slab.h"
#include "memory/state.h"
#include "memory/swap/backing.h"
#include "memory/swap/hostmem.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "memory/swap/state.h"
#include "memory/table.h"
#include "memory/virtual/state.h"
#include "memory/virtual/virtual.h"
#include "nvml/outsiders.h"
#include "resolve/resolve.h"

#define MIB (1ull << 20)

/* ---- the other folders ---- */

struct nvs_real nvs_real;
__thread int nvs_inside;

static uint64_t fake_limit = UINT64_MAX; /* per device */
static uint64_t fake_card;               /* what nvs_link_card answers */
static _Atomic uint64_t fake_allocated[NVS_MAX_DEVICES];
static _Atomic int64_t fake_pinned[NVS_MAX_DEVICES];
static _Atomic bool fake_drain_fails;
static _Atomic unsigned fake_moves; /* told to the link */
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

CUresult nvs_link_request(CUdevice device, uint64_t bytes, bool stays, bool *resident)
{
	uint64_t now = atomic_load(&fake_allocated[device]);
	do {
		if (bytes > fake_limit || now + bytes > fake_limit)
			return CUDA_ERROR_OUT_OF_MEMORY;
	} while (!atomic_compare_exchange_weak(&fake_allocated[device], &now, now + bytes));
	*resident = nvs_residency_claim(device, bytes);
	return CUDA_SUCCESS;
}

static bool fake_keep_denied;

CUresult nvs_link_keep(CUdevice device, uint64_t bytes)
{
	if (fake_keep_denied)
		return CUDA_ERROR_OUT_OF_MEMORY;
	nvs_residency_pin(device, (int64_t)bytes);
	return CUDA_SUCCESS;
}

void nvs_link_release(CUdevice device, uint64_t bytes, uint64_t resident)
{
	nvs_residency_forget(device, resident, bytes - resident);
	assert(atomic_fetch_sub(&fake_allocated[device], bytes) >= bytes);
}

uint64_t nvs_link_allocated(CUdevice device)
{
	return fake_allocated[device];
}

void nvs_link_pinned(CUdevice device, int64_t delta)
{
	assert(atomic_fetch_add(&fake_pinned[device], delta) + delta >= 0);
	nvs_residency_pin(device, delta);
}

static bool fake_is_counted;

bool nvs_link_is_counted(CUdevice device)
{
	return fake_is_counted;
}

void nvs_link_want(void)
{
}

void nvs_link_moved(CUdevice device)
{
	atomic_fetch_add(&fake_moves, 1);
}

void nvs_link_uuid(CUdevice device, char *text, size_t size)
{
	text[0] = '\0';
}

void nvs_outsiders(const char *uuid, char *text, size_t size)
{
	text[0] = '\0';
}

const struct nvs_env *nvs_env(void)
{
	static const struct nvs_env environment;
	return &environment;
}

CUstreamCaptureMode nvs_relax(void)
{
	return CU_STREAM_CAPTURE_MODE_RELAXED;
}

void nvs_unrelax(CUstreamCaptureMode before)
{
}

pthread_mutex_t nvs_streams_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint32_t nvs_captures;
static CUstream fake_capturing; /* the one stream that captures */

bool nvs_stream_capturing(CUstream stream)
{
	return stream != NULL && stream == fake_capturing;
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

/* The gate is never in the way of those that need memory: who has to wait there does what a test says first. */
_Atomic uint32_t nvs_gate;
static void (*fake_at_gate)(void);

CUresult nvs_gate_enter_slow(CUstream stream)
{
	return nvs_gate_enter_unmeasured();
}

CUresult nvs_gate_enter_unmeasured(void)
{
	if (fake_at_gate != NULL)
		fake_at_gate();
	if (nvs_self == NULL)
		nvs_thread_join();
	nvs_self->in_call = NVS_IN_CALL;
	return CUDA_SUCCESS;
}

void nvs_link_wake(void)
{
}

void nvs_gate_leave_slow(void)
{
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
#define FAKE_IMPORTED (1ull << 32) /* handles from here on are memory of other processes */

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
static int fake_virtual_memory = 1, fake_unified_memory, fake_descriptors;
static uint64_t fake_next_imported = FAKE_IMPORTED;
static _Atomic bool fake_export_fails;
static _Atomic uint64_t fake_prefetched_out, fake_prefetched_in; /* bytes */
static void (*fake_during_set_access)(void);               /* called once, in the middle of the next cuMemSetAccess */
static size_t fake_sizes[1 << 16];                         /* by handle */
static CUmemAllocationProp fake_last_prop;                 /* of the last memory made */
static bool fake_has_contents;                             /* physical memory can be written and copied */
static uint8_t *fake_data[1 << 16];                        /* by handle */
static uint64_t fake_capacity = UINT64_MAX, fake_physical; /* bytes on the card */
static _Atomic bool fake_copies_hang;                      /* events are not reached while set */
static _Atomic bool fake_copies_fail;
static _Atomic uint64_t fake_copied_out, fake_copied_in; /* bytes */
static struct fake_range fake_locked[FAKE_SLOTS];        /* page-locked memory of the host */
static bool fake_register_fails;
static size_t fake_registered; /* its bytes */
static _Atomic int fake_streams, fake_events;
static unsigned fake_primary_retained[2];
static struct CUctx_st {
	CUdevice device;
} fake_contexts[2] = {{0}, {1}};
static __thread CUcontext fake_current;

static bool fake_no_context_left;

CUcontext nvs_context_on(CUdevice device)
{
	return fake_no_context_left ? NULL : &fake_contexts[device];
}

/* Streams are of the current context. */
struct nvs_context *nvs_context_of(CUstream stream)
{
	static struct nvs_context known[2] = {
		{.handle = &fake_contexts[0], .device = 0}, {.handle = &fake_contexts[1], .device = 1}};
	return fake_current != NULL ? &known[fake_current->device] : NULL;
}

uint32_t nvs_context_count(CUdevice device)
{
	return 1;
}

static _Atomic bool fake_context_fails; /* for good */

static CUresult fake_cuStreamQuery(CUstream stream)
{
	return atomic_load(&fake_context_fails) ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

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
	bool fails = fake_fails(), fits = n <= fake_capacity - fake_physical;
	if (!fails && fits) {
		assert(n > 0 && n % FAKE_GRANULARITY == 0 && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
		*handle = fake_next_handle++;
		fake_handles++;
		fake_last_prop = *prop;
		if (fake_has_contents) {
			assert(*handle < 1 << 16);
			fake_data[*handle] = malloc(n);
			memset(fake_data[*handle], 0xa5, n);
			fake_sizes[*handle] = n;
			fake_physical += n;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return fails ? fake_error : fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	pthread_mutex_lock(&fake_lock);
	assert(fake_handles > 0);
	fake_handles--;
	for (int i = 0; i < FAKE_SLOTS; i++) /* the memory would not be gone */
		assert(fake_mapped[i].base == 0 || fake_mapped[i].handle != handle || handle >= FAKE_IMPORTED);
	if (fake_has_contents && handle < FAKE_IMPORTED) {
		free(fake_data[handle]);
		fake_data[handle] = NULL;
		fake_physical -= fake_sizes[handle];
	}
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

/* Inside a reservation, with nothing mapped. The lock is held. */
static bool fake_is_free(CUdeviceptr p, size_t n)
{
	bool reserved = false;
	for (int i = 0; i < FAKE_SLOTS; i++) {
		const struct fake_range *range = &fake_reserved[i], *mapped = &fake_mapped[i];
		reserved = reserved || (range->base != 0 && range->base <= p && p + n <= range->base + range->size);
		if (mapped->base != 0 && mapped->base < p + n && p < mapped->base + mapped->size)
			return false;
	}
	return reserved;
}

static CUresult fake_cuMemMap(
	CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails();
	if (!fails) {
		assert(offset == 0 && (handle < fake_next_handle || handle >= FAKE_IMPORTED) && fake_is_free(p, n));
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
		for (size_t k = 0; k < count; k++)
			if (desc[k].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
				range->accessors &= ~(1ull << desc[k].location.id);
			else
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

/* Physical memory behind an address; it must be mapped, and accessible. The lock is held. */
static uint8_t *fake_memory_at(CUdeviceptr p, size_t n)
{
	for (int i = 0; i < FAKE_SLOTS; i++) {
		const struct fake_range *range = &fake_mapped[i];
		if (range->base == 0 || p < range->base || p >= range->base + range->size)
			continue;
		assert(p + n <= range->base + range->size && range->accessors != 0);
		return fake_data[range->handle] + (p - range->base);
	}
	assert(!"an address without memory");
	return NULL;
}

static CUresult fake_copy(void *host, CUdeviceptr p, size_t n, bool out)
{
	if (atomic_load(&fake_copies_fail))
		return CUDA_ERROR_LAUNCH_FAILED;
	pthread_mutex_lock(&fake_lock);
	if (out)
		memcpy(host, fake_memory_at(p, n), n);
	else
		memcpy(fake_memory_at(p, n), host, n);
	pthread_mutex_unlock(&fake_lock);
	atomic_fetch_add(out ? &fake_copied_out : &fake_copied_in, n);
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemcpyDtoHAsync(void *host, CUdeviceptr p, size_t n, CUstream stream)
{
	return fake_copy(host, p, n, true);
}

static CUresult fake_cuMemcpyHtoDAsync(CUdeviceptr p, const void *host, size_t n, CUstream stream)
{
	return fake_copy((void *)host, p, n, false);
}

static CUresult fake_cuMemHostRegister(void *p, size_t n, unsigned flags)
{
	if (fake_register_fails)
		return CUDA_ERROR_OUT_OF_MEMORY;
	assert(fake_current != NULL);
	pthread_mutex_lock(&fake_lock);
	struct fake_range *slot = fake_at(fake_locked, 0);
	*slot = (struct fake_range){.base = (CUdeviceptr)(uintptr_t)p, .size = n};
	fake_registered += n;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemHostUnregister(void *p)
{
	assert(fake_current != NULL);
	pthread_mutex_lock(&fake_lock);
	struct fake_range *slot = fake_at(fake_locked, (CUdeviceptr)(uintptr_t)p);
	assert(slot != NULL);
	fake_registered -= slot->size;
	slot->base = 0;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

static CUresult fake_cuStreamCreate(CUstream *stream, unsigned flags)
{
	assert(fake_current != NULL && flags == 1);
	*stream = (CUstream)(uintptr_t)(0x100 + atomic_fetch_add(&fake_streams, 1));
	return CUDA_SUCCESS;
}

static CUresult fake_cuStreamDestroy(CUstream stream)
{
	atomic_fetch_sub(&fake_streams, 1);
	return CUDA_SUCCESS;
}

static CUresult fake_cuEventCreate(CUevent *event, unsigned flags)
{
	*event = (CUevent)(uintptr_t)(0x100 + atomic_fetch_add(&fake_events, 1));
	return CUDA_SUCCESS;
}

static CUresult fake_cuEventDestroy(CUevent event)
{
	atomic_fetch_sub(&fake_events, 1);
	return CUDA_SUCCESS;
}

static CUresult fake_cuEventRecord(CUevent event, CUstream stream)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuEventQuery(CUevent event)
{
	return atomic_load(&fake_copies_hang) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
	*granularity = FAKE_GRANULARITY;
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	bool unified = attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY ||
		       attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
	*value = unified && fake_unified_memory;
	if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
		*value = fake_virtual_memory;
	if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
		*value = fake_descriptors;
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

static CUresult fake_cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice device, CUstream stream)
{
	atomic_fetch_add(device < 0 ? &fake_prefetched_out : &fake_prefetched_in, n);
	return CUDA_SUCCESS;
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

static CUresult fake_cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags)
{
	return CUDA_ERROR_ALREADY_MAPPED; /* no error of ours: the driver was asked */
}

static CUresult fake_cuIpcCloseMemHandle(CUdeviceptr p)
{
	return CUDA_ERROR_ALREADY_MAPPED;
}

/* A descriptor is of a file that holds the handle. */
static CUresult fake_cuMemExport(
	void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	if (atomic_load(&fake_export_fails))
		return CUDA_ERROR_NOT_PERMITTED;
	int fd = memfd_create("fake", MFD_CLOEXEC);
	assert(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fd >= 0);
	assert(pwrite(fd, &handle, sizeof(handle), 0) == sizeof(handle));
	memcpy(shareable, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemImport(CUmemGenericAllocationHandle *handle, void *os_handle, int type)
{
	assert(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	pthread_mutex_lock(&fake_lock);
	bool fails = fake_fails() || pread((int)(intptr_t)os_handle, handle, sizeof(*handle), 0) != sizeof(*handle);
	if (!fails) {
		*handle = fake_next_imported++;
		fake_handles++;
	}
	pthread_mutex_unlock(&fake_lock);
	return fails ? fake_error : CUDA_SUCCESS;
}

/* Of handles and mappings of its own, which no test has. */
static CUresult fake_cuMemGetAllocationProperties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *p)
{
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)
{
	return CUDA_ERROR_INVALID_VALUE;
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
	nvs_mover_pause();
	nvs_real = (struct nvs_real){
		.cuMemAddressReserve = fake_cuMemAddressReserve,
		.cuMemAddressFree = fake_cuMemAddressFree,
		.cuMemCreate = fake_cuMemCreate,
		.cuMemRelease = fake_cuMemRelease,
		.cuMemMap = fake_cuMemMap,
		.cuMemUnmap = fake_cuMemUnmap,
		.cuMemSetAccess = fake_cuMemSetAccess,
		.cuMemcpyDtoHAsync_v2 = fake_cuMemcpyDtoHAsync,
		.cuMemcpyHtoDAsync_v2 = fake_cuMemcpyHtoDAsync,
		.cuMemHostRegister_v2 = fake_cuMemHostRegister,
		.cuMemHostUnregister = fake_cuMemHostUnregister,
		.cuStreamCreate = fake_cuStreamCreate,
		.cuStreamQuery = fake_cuStreamQuery,
		.cuStreamDestroy_v2 = fake_cuStreamDestroy,
		.cuEventCreate = fake_cuEventCreate,
		.cuEventDestroy_v2 = fake_cuEventDestroy,
		.cuEventRecord = fake_cuEventRecord,
		.cuEventQuery = fake_cuEventQuery,
		.cuMemGetAllocationGranularity = fake_cuMemGetAllocationGranularity,
		.cuDeviceGetAttribute = fake_cuDeviceGetAttribute,
		.cuCtxGetCurrent = fake_cuCtxGetCurrent,
		.cuCtxGetDevice = fake_cuCtxGetDevice,
		.cuCtxPushCurrent_v2 = fake_cuCtxPushCurrent,
		.cuCtxPopCurrent_v2 = fake_cuCtxPopCurrent,
		.cuMemAlloc_v2 = fake_make_pointer,
		.cuMemAllocManaged = fake_cuMemAllocManaged,
		.cuMemPrefetchAsync = fake_cuMemPrefetchAsync,
		.cuMemAllocAsync = fake_cuMemAllocAsync,
		.cuMemFree_v2 = fake_cuMemFree,
		.cuMemFreeAsync = fake_cuMemFreeAsync,
		.cuMemGetInfo_v2 = fake_cuMemGetInfo,
		.cuDeviceTotalMem_v2 = fake_cuDeviceTotalMem,
		.cuMemGetAddressRange_v2 = fake_cuMemGetAddressRange,
		.cuPointerGetAttribute = fake_cuPointerGetAttribute,
		.cuPointerGetAttributes = fake_cuPointerGetAttributes,
		.cuIpcGetMemHandle = fake_cuIpcGetMemHandle,
		.cuIpcOpenMemHandle = fake_cuIpcOpenMemHandle,
		.cuIpcOpenMemHandle_v2 = fake_cuIpcOpenMemHandle,
		.cuIpcCloseMemHandle = fake_cuIpcCloseMemHandle,
		.cuMemExportToShareableHandle = fake_cuMemExport,
		.cuMemImportFromShareableHandle = fake_cuMemImport,
		.cuCtxDestroy_v2 = fake_cuCtxDestroy,
		.cuCtxEnablePeerAccess = fake_cuCtxEnablePeerAccess,
		.cuDevicePrimaryCtxRetain = fake_cuDevicePrimaryCtxRetain,
		.cuDevicePrimaryCtxRelease_v2 = fake_cuDevicePrimaryCtxRelease,
		.cuDevicePrimaryCtxReset_v2 = fake_cuDevicePrimaryCtxReset,
		.cuDevicePrimaryCtxGetState = fake_cuDevicePrimaryCtxGetState,
		.cuMemGetAllocationPropertiesFromHandle = fake_cuMemGetAllocationProperties,
		.cuMemRetainAllocationHandle = fake_cuMemRetainAllocationHandle,
		.cuMemGetAccess = fake_cuMemGetAccess,
		.cuArrayCreate_v2 = fake_cuArrayCreate,
		.cuArrayDestroy = fake_cuArrayDestroy,
	};
	fake_limit = UINT64_MAX;
	fake_card = 0;
	fake_fail_at = 0;
	fake_drain_fails = false;
	fake_at_gate = NULL;
	fake_current = &fake_contexts[0];
	fake_virtual_memory = 1;
	fake_unified_memory = 0;
	fake_descriptors = 0;
	fake_keep_denied = false;
	nvs_mover_resume();
}

/* The invariant at every test's end: nothing is left in the driver, in the count or in the table. */
static void fake_end(void)
{
	size_t count, bytes;
	fake_drain_fails = false;
	nvs_memory_reap(1);
	for (int device = 0; device < 2; device++) {
		nvs_slab_trim(device);
		nvs_ordered_give_up(device, 1);
	}
	nvs_table_parked(&count, &bytes);
	assert(count == 0 && bytes == 0);
	assert(nvs_imports == NULL);
	assert(nvs_token_tree == NULL && nvs_mapping_tree == NULL && nvs_reserved_tree == NULL);
	assert(nvs_allocation_list == NULL && nvs_allocation_tree == NULL && nvs_holdings.backings == NULL);
	assert(nvs_counted_list == NULL && nvs_counted_tree == NULL);
	assert(fake_handles == 0 && fake_maps == 0 && fake_reservations == 0);
	for (int device = 0; device < 2; device++) {
		struct nvs_holding left;
		nvs_residency_view(device, &left);
		assert(fake_allocated[device] == 0 && fake_pinned[device] == 0);
		assert(left.resident == 0 && left.absent == 0 && left.host == 0 && left.pinned == 0);
		nvs_holdings.devices[device].unified = false;
	}
	nvs_backing_after_fork(); /* no peers */
	atomic_store(&nvs_kinds_known, 0);
}

#define RUN(test)                                                                                                      \
	do {                                                                                                           \
		fake_begin();                                                                                          \
		test();                                                                                                \
		fake_end();                                                                                            \
	} while (0)

#endif
