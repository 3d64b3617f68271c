#include "memory/counted.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/bars.h"
#include "gate/entry.h"
#include "link/link.h"
#include "memory/array_size.h"
#include "memory/memory.h"
#include "memory/ordered/ordered.h"
#include "memory/state.h"
#include "memory/swap/residency.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

struct counted {
	enum nvs_counted_kind kind;
	uint64_t key;
	uint64_t bytes;
	CUdevice device;
	CUcontext context;
	struct counted *next, *previous;
};

static pthread_mutex_t counted_lock = PTHREAD_MUTEX_INITIALIZER;
void *nvs_counted_tree;
struct counted *nvs_counted_list;

/* ---- what is remembered ---- */

static int compare_keys(const void *left, const void *right)
{
	const struct counted *a = left, *b = right;
	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return a->key < b->key ? -1 : a->key > b->key;
}

/* Under the lock. */
static bool insert(struct counted *entry)
{
	struct counted **node = tsearch(entry, &nvs_counted_tree, compare_keys);
	if (node == NULL || *node != entry)
		return false;
	NVS_LIST_PUSH(nvs_counted_list, entry);
	return true;
}

/* Under the lock. */
static void take_out(struct counted *entry)
{
	tdelete(entry, &nvs_counted_tree, compare_keys);
	NVS_LIST_TAKE(nvs_counted_list, entry);
}

/* Taken out before the driver frees it, because the driver may hand the same value to another thread at once. */
static struct counted *take(enum nvs_counted_kind kind, uint64_t key)
{
	struct counted wanted = {.kind = kind, .key = key};
	pthread_mutex_lock(&counted_lock);
	struct counted **node = tfind(&wanted, &nvs_counted_tree, compare_keys);
	struct counted *entry = node != NULL ? *node : NULL;
	if (entry != NULL)
		take_out(entry);
	pthread_mutex_unlock(&counted_lock);
	return entry;
}

static void give_back(CUdevice device, uint64_t bytes)
{
	nvs_link_pinned(device, -(int64_t)bytes);
	nvs_link_release(device, bytes, bytes);
}

static bool remember(struct counted *entry)
{
	pthread_mutex_lock(&counted_lock);
	bool kept = insert(entry);
	pthread_mutex_unlock(&counted_lock);
	return kept;
}

static void forget(struct counted *entry)
{
	give_back(entry->device, entry->bytes);
	free(entry);
}

/* The driver answered a free of something that we took out. */
static CUresult freed(struct counted *entry, CUresult result)
{
	if (entry == NULL)
		return result;
	if (result == CUDA_SUCCESS || !remember(entry))
		forget(entry);
	return result;
}

/* The driver takes the card's memory at once, so it has to be there: wait for the turn that brings it. */
static void wait_for_room(CUdevice device, uint64_t bytes)
{
	nvs_residency_forget(device, 0, bytes);
	while (!nvs_residency_claim_at_once(device, bytes))
		nvs_link_want();
}

CUresult nvs_counted_ask(CUdevice device, uint64_t bytes)
{
	bool resident = true;
	if (bytes == 0)
		return CUDA_SUCCESS;
	CUresult result = nvs_link_request(device, bytes, true, &resident);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && nvs_memory_give_up_spares(device))
		result = nvs_link_request(device, bytes, true, &resident);
	if (result != CUDA_SUCCESS)
		return result;
	if (!resident) {
		nvs_link_want();
		wait_for_room(device, bytes);
	}
	nvs_link_pinned(device, (int64_t)bytes);
	return CUDA_SUCCESS;
}

CUresult nvs_counted_confirm(
	CUresult result, enum nvs_counted_kind kind, const void *made, CUdevice device, uint64_t bytes)
{
	struct counted *entry = result == CUDA_SUCCESS ? calloc(1, sizeof(*entry)) : NULL;
	if (entry != NULL) {
		*entry = (struct counted){
			.kind = kind, .bytes = bytes, .device = device, .context = nvs_current_context()};
		memcpy(&entry->key, made, sizeof(entry->key));
		if (remember(entry))
			return result;
		free(entry);
	}
	give_back(device,
		bytes); /* the call failed, or the memory could not be remembered and would be counted for ever */
	return result;
}

bool nvs_counted_free(CUdeviceptr p, CUresult *result)
{
	struct counted *entry = take(NVS_COUNTED_POINTER, p);
	if (entry == NULL)
		return false;
	*result = freed(entry, nvs_real.cuMemFree_v2(p));
	return true;
}

void nvs_counted_context_gone(CUcontext context)
{
	struct counted *gone = NULL;
	pthread_mutex_lock(&counted_lock);
	for (struct counted *each = nvs_counted_list, *next; each != NULL; each = next) {
		next = each->next;
		if (each->context != context || each->kind == NVS_COUNTED_HANDLE)
			continue;
		take_out(each);
		each->next = gone;
		gone = each;
	}
	pthread_mutex_unlock(&counted_lock);
	while (gone != NULL) {
		struct counted *next = gone->next;
		forget(gone);
		gone = next;
	}
}

void nvs_counted_after_fork(void)
{
	pthread_mutex_init(&counted_lock, NULL);
	nvs_counted_tree = NULL;
	nvs_counted_list = NULL;
}

/* ---- managed and stream-ordered memory ---- */

NVS_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	NVS_PASS_INSIDE(cuMemAllocManaged, (p, n, flags));
	CUdevice device;
	if (p == NULL || n == 0 || nvs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return nvs_real.cuMemAllocManaged(p, n, flags); /* for its error */
	nvs_inside++;
	CUresult result = nvs_counted_ask(device, n);
	if (result == CUDA_SUCCESS)
		result =
			nvs_counted_confirm(nvs_real.cuMemAllocManaged(p, n, flags), NVS_COUNTED_POINTER, p, device, n);
	if (result == CUDA_SUCCESS)
		nvs_bar_raise(NVS_BAR_MANAGED);
	nvs_inside--;
	return result;
}

/* A stream of another device than the current one allocates on its own device. */
static CUresult device_of_stream(CUstream stream, CUdevice *device)
{
	CUcontext context;
	bool is_default = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
	if (is_default || nvs_real.cuStreamGetCtx == NULL || nvs_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
		return nvs_real.cuCtxGetDevice(device);
	return nvs_context_device(context, device);
}

/* Stream-ordered memory is ours (ordered.c) where it can be. The rest comes from the driver's pool, where it may stay
 * when it is freed; it is counted by what the application holds. The four differ in the real call only. */
#define ALLOC_ASYNC(name, params, args, handle, where)                                                                 \
	static CUresult counted_##name(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream)                   \
	{                                                                                                              \
		CUdevice device;                                                                                       \
		CUresult result = device_of_stream(stream, &device);                                                   \
		if (result == CUDA_SUCCESS)                                                                            \
			result = nvs_counted_ask(device, n);                                                           \
		if (result == CUDA_SUCCESS)                                                                            \
			result = nvs_counted_confirm(nvs_real.name args, NVS_COUNTED_POINTER, p, device, n);           \
		return result;                                                                                         \
	}                                                                                                              \
	static __attribute__((noinline, cold)) CUresult slow_##name params                                             \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, args);                                                                           \
		if (p == NULL || n == 0)                                                                               \
			return nvs_real.name args; /* for its error */                                                 \
		nvs_inside++;                                                                                          \
		CUresult result = nvs_ordered_alloc(p, n, handle, where, counted_##name);                              \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}                                                                                                              \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		if (__builtin_expect(p == NULL || n == 0 || !nvs_entry_try_enter(), 0))                                \
			return slow_##name args;                                                                       \
		nvs_inside++;                                                                                          \
		CUresult result = nvs_ordered_alloc(p, n, handle, where, counted_##name);                              \
		nvs_inside--;                                                                                          \
		nvs_entry_leave_first();                                                                               \
		return result;                                                                                         \
	}

ALLOC_ASYNC(cuMemAllocAsync, (CUdeviceptr * p, size_t n, CUstream stream), (p, n, stream), NULL, stream)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, (CUdeviceptr * p, size_t n, CUstream stream), (p, n, stream), NULL,
	NVS_PER_THREAD(stream))
ALLOC_ASYNC(cuMemAllocFromPoolAsync, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream stream),
	(p, n, pool, stream), pool, stream)
ALLOC_ASYNC(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream stream),
	(p, n, pool, stream), pool, NVS_PER_THREAD(stream))

/* Memory from cuMemAlloc may be freed this way too; it is parked until the stream's work is finished, like any other
 * free. */
#define FREE_ASYNC(name, where)                                                                                        \
	static CUresult other_##name(CUdeviceptr p, CUstream stream)                                                   \
	{                                                                                                              \
		CUresult result;                                                                                       \
		if (nvs_memory_free(p, &result))                                                                       \
			return result;                                                                                 \
		struct counted *entry = take(NVS_COUNTED_POINTER, p);                                                  \
		return freed(entry, nvs_real.name(p, stream));                                                         \
	}                                                                                                              \
	static __attribute__((noinline, cold)) CUresult slow_##name(CUdeviceptr p, CUstream stream)                    \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, (p, stream));                                                                    \
		nvs_inside++;                                                                                          \
		CUresult result = nvs_ordered_free_async(p, where, other_##name);                                      \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}                                                                                                              \
	NVS_EXPORT CUresult name(CUdeviceptr p, CUstream stream)                                                       \
	{                                                                                                              \
		if (__builtin_expect(!nvs_entry_try_enter(), 0))                                                       \
			return slow_##name(p, stream);                                                                 \
		nvs_inside++;                                                                                          \
		CUresult result = nvs_ordered_free_async(p, where, other_##name);                                      \
		nvs_inside--;                                                                                          \
		nvs_entry_leave_first();                                                                               \
		return result;                                                                                         \
	}

FREE_ASYNC(cuMemFreeAsync, stream)
FREE_ASYNC(cuMemFreeAsync_ptsz, NVS_PER_THREAD(stream))

/* ---- the application's own virtual memory ---- */

CUresult nvs_counted_create(
	CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	if (handle == NULL || prop == NULL || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return nvs_real.cuMemCreate(handle, n, prop, flags);
	CUdevice device = prop->location.id;
	CUresult result = nvs_counted_ask(device, n);
	if (result != CUDA_SUCCESS)
		return result;
	return nvs_counted_confirm(nvs_real.cuMemCreate(handle, n, prop, flags), NVS_COUNTED_HANDLE, handle, device, n);
}

CUresult nvs_counted_release(CUmemGenericAllocationHandle handle)
{
	struct counted *entry = take(NVS_COUNTED_HANDLE, handle);
	return freed(entry, nvs_real.cuMemRelease(handle));
}

/* ---- arrays ---- */

#define CREATE_ARRAY(name, params, args, kind, size)                                                                   \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, args);                                                                           \
		CUdevice device;                                                                                       \
		if (array == NULL || desc == NULL || nvs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)                 \
			return nvs_real.name args; /* for its error */                                                 \
		uint64_t bytes = size;                                                                                 \
		nvs_inside++;                                                                                          \
		CUresult result = nvs_counted_ask(device, bytes);                                                      \
		if (result == CUDA_SUCCESS)                                                                            \
			result = nvs_counted_confirm(nvs_real.name args, kind, array, device, bytes);                  \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}

CREATE_ARRAY(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc), (array, desc), NVS_COUNTED_ARRAY,
	nvs_array_bytes(desc))
CREATE_ARRAY(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc), (array, desc),
	NVS_COUNTED_ARRAY, nvs_array3d_bytes(desc))
CREATE_ARRAY(cuMipmappedArrayCreate, (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels),
	(array, desc, levels), NVS_COUNTED_MIPMAP, nvs_mipmap_bytes(desc, levels))

#define DESTROY_ARRAY(name, type, kind)                                                                                \
	NVS_EXPORT CUresult name(type array)                                                                           \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, (array));                                                                        \
		nvs_inside++;                                                                                          \
		struct counted *entry = take(kind, (uintptr_t)array);                                                  \
		CUresult result = freed(entry, nvs_real.name(array));                                                  \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}

DESTROY_ARRAY(cuArrayDestroy, CUarray, NVS_COUNTED_ARRAY)
DESTROY_ARRAY(cuMipmappedArrayDestroy, CUmipmappedArray, NVS_COUNTED_MIPMAP)
