/* cuMemAlloc and cuMemFree over memory of our own.
 *
 * cuMemFree waits for the work that may still use the memory; unmapping does not. So a freed allocation is parked
 * first: it is gone for the application, but its memory stays until a drain has shown that all work submitted before
 * has finished. Large ones are drained for at once. Small ones are parked until a few have come together, so that one
 * drain serves them all: the only promise to keep is that a piece is not handed out again under work that still uses
 * it. A drain that is not possible (a stream captures) or takes too long leaves them parked for the next call. */
#include "memory/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/devices.h"
#include "base/log.h"
#include "gate/entry.h"
#include "gate/gate.h"
#include "ipc/ipc.h"
#include "memory/counted.h"
#include "memory/ordered/ordered.h"
#include "memory/slab.h"
#include "memory/state.h"
#include "memory/swap/backing.h"
#include "memory/swap/hostmem.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "memory/table.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

/* A free that waits longer goes on with the memory parked. The driver would wait for ever, but only for its own device,
 * and a collective's kernel on one GPU may be waiting for the launch on another that comes after this free. */
#define FREE_WAIT_MS 1000
/* An allocation that would fail waits longer for what is parked. */
#define SHORTAGE_WAIT_MS 10000

#define PITCH 512u

/* Held by the one thread that drains for what is parked, while it waits. Neither submitting nor the link takes it. */
static pthread_mutex_t reap_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- freeing ---- */

static void discard(struct nvs_allocation *allocation)
{
	if (allocation->import != NULL)
		nvs_import_destroy(allocation->import);
	else if (allocation->slab != NULL)
		nvs_slab_give(allocation->slab, allocation->base, allocation->size);
	else
		nvs_backing_destroy(allocation->backing);
	free(allocation);
}

static bool enough_parked(void)
{
	size_t count, bytes;
	nvs_table_parked(&count, &bytes);
	return count >= NVS_PARKED_PIECES || bytes > NVS_SLAB_LARGEST;
}

static bool any_parked(void)
{
	size_t count, bytes;
	nvs_table_parked(&count, &bytes);
	return count > 0;
}

void nvs_memory_reap(uint32_t deadline_ms)
{
	if (deadline_ms > 0)
		pthread_mutex_lock(&reap_lock);
	else if (pthread_mutex_trylock(&reap_lock) != 0)
		return;
	struct nvs_allocation *list = nvs_table_take_parked();
	if (list != NULL && !nvs_gate_drain(deadline_ms)) {
		nvs_table_put_back_parked(list);
		list = NULL;
	}
	while (list != NULL) {
		struct nvs_allocation *next = list->next_parked;
		nvs_table_remove(list);
		discard(list);
		list = next;
	}
	pthread_mutex_unlock(&reap_lock);
}

bool nvs_memory_free(CUdeviceptr p, CUresult *result)
{
	switch (nvs_table_park(p)) {
	case NVS_NOT_OURS:
		return false;
	case NVS_NOT_A_BASE:
		*result = CUDA_ERROR_INVALID_VALUE;
		return true;
	case NVS_PARKED:
		break;
	}
	if (enough_parked())
		nvs_memory_reap(FREE_WAIT_MS);
	*result = CUDA_SUCCESS;
	return true;
}

/* At once, however small it is: it is not ours to keep. */
CUresult nvs_memory_end_import(CUdeviceptr p)
{
	if (nvs_table_park_import(p) != NVS_PARKED)
		return CUDA_ERROR_INVALID_VALUE;
	nvs_memory_reap(FREE_WAIT_MS);
	return CUDA_SUCCESS;
}

NVS_EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
	static _Atomic bool said;
	NVS_PASS_INSIDE(cuMemFree_v2, (p));
	CUresult result;
	nvs_inside++;
	if (!nvs_memory_free(p, &result) && !nvs_ordered_free(p, &result) && !nvs_counted_free(p, &result)) {
		if (p != 0 && !atomic_exchange(&said, true))
			NVS_DEBUG("free of 0x%llx, which was not allocated through nvshare: passed to the driver", p);
		result = nvs_real.cuMemFree_v2(p);
	}
	nvs_inside--;
	return result;
}

/* ---- allocating ---- */

static CUresult find_piece(struct nvs_allocation *allocation)
{
	if (nvs_slab_take(allocation->device, allocation->size, &allocation->base, &allocation->slab))
		return CUDA_SUCCESS;
	if (any_parked()) {
		nvs_memory_reap(0);
		if (nvs_slab_take(allocation->device, allocation->size, &allocation->base, &allocation->slab))
			return CUDA_SUCCESS;
	}
	return nvs_slab_grow(allocation->device, allocation->size, &allocation->base, &allocation->slab);
}

static CUresult back(struct nvs_allocation *allocation)
{
	if (allocation->size <= NVS_SLAB_LARGEST)
		return find_piece(allocation);
	CUresult result = nvs_backing_create(allocation->device, allocation->size, false, &allocation->backing);
	if (result == CUDA_SUCCESS)
		allocation->base = allocation->backing->base;
	return result;
}

bool nvs_memory_give_up_spares(CUdevice device)
{
	bool parked = any_parked();
	if (parked)
		nvs_memory_reap(SHORTAGE_WAIT_MS);
	bool trimmed = nvs_is_managed(device) && nvs_slab_trim(device);
	bool given_up = nvs_ordered_give_up(device, SHORTAGE_WAIT_MS);
	return parked || trimmed || given_up;
}

static CUresult allocate(CUdevice device, size_t size, CUdeviceptr *p)
{
	if (enough_parked())
		nvs_memory_reap(0);
	struct nvs_allocation *allocation = calloc(1, sizeof(*allocation));
	if (allocation == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*allocation = (struct nvs_allocation){.size = size, .device = device, .context = nvs_current_context()};
	CUresult result = back(allocation);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && nvs_memory_give_up_spares(device))
		result = back(allocation);
	if (result != CUDA_SUCCESS) {
		free(allocation);
		return result;
	}
	if (!nvs_table_insert(allocation)) {
		discard(allocation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = allocation->base;
	return CUDA_SUCCESS;
}

/* Without the virtual-memory API: the driver's memory, counted, and it stays where it is. */
static CUresult allocate_natively(CUdevice device, size_t size, CUdeviceptr *p)
{
	CUresult result = nvs_counted_ask(device, size);
	if (result != CUDA_SUCCESS)
		return result;
	return nvs_counted_confirm(nvs_real.cuMemAlloc_v2(p, size), NVS_COUNTED_POINTER, p, device, size);
}

NVS_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	NVS_PASS_INSIDE(cuMemAlloc_v2, (p, n));
	CUdevice device;
	if (p == NULL || n == 0 || nvs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return nvs_real.cuMemAlloc_v2(p, n); /* for its error */
	nvs_inside++;
	CUresult result = nvs_backing_supported(device) ? allocate(device, n, p) : allocate_natively(device, n, p);
	nvs_inside--;
	return result;
}

NVS_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned element)
{
	NVS_PASS_INSIDE(cuMemAllocPitch_v2, (p, pitch, w, h, element));
	bool element_is_allowed = element == 4 || element == 8 || element == 16;
	if (p == NULL || pitch == NULL || w == 0 || h == 0 || !element_is_allowed)
		return nvs_real.cuMemAllocPitch_v2(p, pitch, w, h, element); /* for its error */
	size_t row, size;
	if (__builtin_add_overflow(w, PITCH - 1, &row) || __builtin_mul_overflow(row & ~(size_t)(PITCH - 1), h, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = cuMemAlloc_v2(p, size);
	if (result == CUDA_SUCCESS)
		*pitch = row & ~(size_t)(PITCH - 1);
	return result;
}

/* ---- what the rest of memory/ calls ---- */

void nvs_memory_context_gone(CUcontext context, CUdevice device)
{
	nvs_table_park_context(context);
	if (any_parked())
		nvs_memory_reap(FREE_WAIT_MS);
	if (nvs_is_managed(device))
		nvs_slab_trim(device);
	nvs_ordered_context_gone(context, device);
	nvs_counted_context_gone(context);
}

void nvs_memory_after_fork(void)
{
	pthread_mutex_init(&reap_lock, NULL);
	nvs_table_after_fork();
	nvs_slab_after_fork();
	nvs_backing_after_fork();
	nvs_residency_after_fork();
	nvs_host_after_fork();
	nvs_mover_after_fork();
	nvs_counted_after_fork();
	nvs_contexts_after_fork();
}
