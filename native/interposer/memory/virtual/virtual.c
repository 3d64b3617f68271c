/* The application's own virtual memory. A handle that cuMemCreate gives it is a token over a backing of ours, with an
 * address of its own for the mover's copies; wherever the application maps the token there is a view of the backing.
 * Chunks that come to the card are mapped at all of them, those that leave nowhere. The driver never sees a token. */
#include "memory/virtual/virtual.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/devices.h"
#include "base/log.h"
#include "base/bars.h"
#include "gate/entry.h"
#include "gate/gate.h"
#include "gate/streams.h"
#include "link/link.h"
#include "memory/counted.h"
#include "memory/memory.h"
#include "memory/swap/backing.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "memory/virtual/mappings.h"
#include "memory/virtual/state.h"
#include "resolve/resolve.h"

#define PROOFS 16

/* Memory that the driver was seen to make. */
struct proof {
	CUmemAllocationProp prop;
	size_t granularity;
};

pthread_mutex_t nvs_virtual_lock = PTHREAD_MUTEX_INITIALIZER;
void *nvs_token_tree;
static CUmemGenericAllocationHandle next_value = NVS_TOKEN_TAG << NVS_TOKEN_SHIFT;
static struct proof proofs[PROOFS];
static unsigned proof_count;

/* ---- nvs_token_tree ---- */

static int compare_values(const void *left, const void *right)
{
	const struct nvs_token *a = left, *b = right;
	return a->value < b->value ? -1 : a->value > b->value;
}

struct nvs_token *nvs_token_find(CUmemGenericAllocationHandle handle)
{
	struct nvs_token wanted = {.value = handle}, **node = tfind(&wanted, &nvs_token_tree, compare_values);
	return node != NULL && (*node)->references > 0 ? *node : NULL;
}

bool nvs_token_put_aside(struct nvs_token *token, struct nvs_token **done)
{
	if (token->references > 0 || token->backing->views != NULL)
		return false;
	tdelete(token, &nvs_token_tree, compare_values);
	token->next = *done;
	*done = token;
	return true;
}

void nvs_tokens_discard(struct nvs_token *token)
{
	while (token != NULL) {
		struct nvs_token *next = token->next;
		nvs_backing_destroy(token->backing);
		free(token);
		token = next;
	}
}

bool nvs_backing_is_present(const struct nvs_backing *backing)
{
	for (size_t i = 0; i < backing->chunk_count; i++)
		if (!nvs_residency_is_mapped(backing, i))
			return false;
	return true;
}

/* Under the lock. */
static const struct proof *find_proof(const CUmemAllocationProp *prop)
{
	for (unsigned i = 0; i < proof_count && i < PROOFS; i++)
		if (memcmp(&proofs[i].prop, prop, sizeof(*prop)) == 0)
			return &proofs[i];
	return NULL;
}

/* Can the driver make and map such memory (what handle types and compression allow depends on the machine)? When a
 * token's memory comes later, nobody is there to be told that it cannot. Tried once for each kind. Returns its
 * granularity, 0: no. */
static size_t prove(const CUmemAllocationProp *prop)
{
	pthread_mutex_lock(&nvs_virtual_lock);
	const struct proof *known = find_proof(prop);
	size_t granularity = known != NULL ? known->granularity : nvs_mapped_try(prop);
	if (known == NULL && granularity > 0)
		proofs[proof_count++ % PROOFS] = (struct proof){.prop = *prop, .granularity = granularity};
	pthread_mutex_unlock(&nvs_virtual_lock);
	return granularity;
}

static CUresult create_token(
	CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, size_t granularity)
{
	struct nvs_token *token = calloc(1, sizeof(*token));
	if (token == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = nvs_backing_create_as(prop, n, &token->backing);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && nvs_memory_give_up_spares(prop->location.id))
		result = nvs_backing_create_as(prop, n, &token->backing);
	if (result != CUDA_SUCCESS) {
		free(token);
		return result;
	}
	token->references = 1;
	token->granularity = granularity;
	pthread_mutex_lock(&nvs_virtual_lock);
	token->value = next_value++;
	bool kept = tsearch(token, &nvs_token_tree, compare_values) != NULL;
	pthread_mutex_unlock(&nvs_virtual_lock);
	if (!kept) {
		nvs_tokens_discard(token);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = token->value;
	return CUDA_SUCCESS;
}

/* Without a context on the device nothing could be copied: such memory stays the driver's. */
NVS_EXPORT CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	NVS_PASS_INSIDE(cuMemCreate, (handle, n, prop, flags));
	nvs_inside++;
	bool ours = handle != NULL && prop != NULL && flags == 0 && nvs_is_managed(prop->location.id) &&
		    nvs_context_on(prop->location.id) != NULL && nvs_backing_takes(prop, n);
	size_t granularity = ours ? prove(prop) : 0;
	bool fits = granularity > 0 && n % granularity == 0 && nvs_chunk_bytes % granularity == 0;
	CUresult result =
		fits ? create_token(handle, n, prop, granularity) : nvs_counted_create(handle, n, prop, flags);
	nvs_inside--;
	return result;
}

static CUresult release_token(CUmemGenericAllocationHandle handle)
{
	struct nvs_token *done = NULL;
	pthread_mutex_lock(&nvs_virtual_lock);
	struct nvs_token *token = nvs_token_find(handle);
	if (token != NULL) {
		token->references--;
		nvs_token_put_aside(token, &done);
	}
	pthread_mutex_unlock(&nvs_virtual_lock);
	nvs_tokens_discard(done);
	return token != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

NVS_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	NVS_PASS_INSIDE(cuMemRelease, (handle));
	nvs_inside++;
	CUresult result = nvs_is_token(handle) ? release_token(handle) : nvs_counted_release(handle);
	nvs_inside--;
	return result;
}

NVS_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	NVS_PASS_INSIDE(cuMemGetAllocationPropertiesFromHandle, (prop, handle));
	if (!nvs_is_token(handle))
		return nvs_real.cuMemGetAllocationPropertiesFromHandle(prop, handle);
	pthread_mutex_lock(&nvs_virtual_lock);
	const struct nvs_token *token = nvs_token_find(handle);
	bool known = token != NULL && prop != NULL;
	if (known)
		*prop = token->backing->prop;
	pthread_mutex_unlock(&nvs_virtual_lock);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

NVS_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *p)
{
	NVS_PASS_INSIDE(cuMemRetainAllocationHandle, (handle, p));
	pthread_mutex_lock(&nvs_virtual_lock);
	const struct nvs_mapping *mapping = nvs_mappings_at((CUdeviceptr)(uintptr_t)p);
	bool ours = mapping != NULL && mapping->token != NULL && handle != NULL;
	if (ours) {
		mapping->token->references++;
		*handle = mapping->token->value;
	}
	pthread_mutex_unlock(&nvs_virtual_lock);
	if (ours)
		return CUDA_SUCCESS;
	bool kept = nvs_memory_keep((CUdeviceptr)(uintptr_t)p, 1);
	CUresult result = nvs_real.cuMemRetainAllocationHandle(handle, p);
	if (kept)
		nvs_gate_leave();
	return result;
}

/* ---- what takes the memory itself: from then on it stays on the card ---- */

/* The driver's handle in the place of a token. Followed by nvs_gate_leave, whatever the answer. */
static CUresult lend(CUmemGenericAllocationHandle *handle)
{
	static _Atomic bool said;
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUdevice device = -1;
	nvs_gate_enter_unmeasured();
	pthread_mutex_lock(&nvs_virtual_lock);
	const struct nvs_token *token = nvs_token_find(*handle);
	if (token != NULL && token->backing->chunk_count > 1) {
		result = CUDA_ERROR_NOT_SUPPORTED;
	} else if (token != NULL && nvs_backing_is_present(token->backing)) {
		device = token->backing->device;
		nvs_residency_hold(device, token->backing->base, token->backing->size);
		*handle = token->backing->chunks[0].handle;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&nvs_virtual_lock);
	if (result == CUDA_SUCCESS)
		nvs_link_moved(device);
	else if (result == CUDA_ERROR_NOT_SUPPORTED && !atomic_exchange(&said, true))
		NVS_WARN("memory from cuMemCreate of more than %llu MiB cannot be exported or bound to a multicast "
			 "group while it can be moved; NVSHARE_DISABLE_SWAP=1 makes it possible",
			(unsigned long long)nvs_chunk_bytes >> 20);
	return result;
}

#define LENDS(name, params, args, handle)                                                                              \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, args);                                                                           \
		if (!nvs_is_token(handle))                                                                             \
			return nvs_bar_after(nvs_real.name args, NVS_BAR_IPC);                                         \
		CUresult result = lend(&handle);                                                                       \
		if (result == CUDA_SUCCESS)                                                                            \
			result = nvs_real.name args;                                                                   \
		nvs_gate_leave();                                                                                      \
		return nvs_bar_after(result, NVS_BAR_IPC);                                                             \
	}

LENDS(cuMemExportToShareableHandle,
	(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags),
	(shareable, handle, type, flags), handle)
LENDS(cuMulticastBindMem,
	(CUmemGenericAllocationHandle group, size_t at, CUmemGenericAllocationHandle handle, size_t offset, size_t size,
		unsigned long long flags),
	(group, at, handle, offset, size, flags), handle)
LENDS(cuMulticastBindMem_v2,
	(CUmemGenericAllocationHandle group, CUdevice device, size_t at, CUmemGenericAllocationHandle handle,
		size_t offset, size_t size, unsigned long long flags),
	(group, device, at, handle, offset, size, flags), handle)
LENDS(cuLogicalEndpointBindMem,
	(cuuint32_t endpoint, CUdevice device, cuuint64_t at, CUmemGenericAllocationHandle handle, cuuint64_t offset,
		cuuint64_t size, unsigned long long flags),
	(endpoint, device, at, handle, offset, size, flags), handle)

/* A sparse array takes memory that was made for tiles, and that is never a token. */
static bool has_token(const CUarrayMapInfo *list, unsigned count)
{
	for (unsigned i = 0; list != NULL && i < count; i++)
		if (nvs_is_token(list[i].memHandle))
			return true;
	return false;
}

#define MAP_ARRAY(name, submitted_to)                                                                                  \
	NVS_EXPORT CUresult name(CUarrayMapInfo *list, unsigned count, CUstream stream)                                \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, (list, count, stream));                                                          \
		if (has_token(list, count))                                                                            \
			return CUDA_ERROR_INVALID_VALUE;                                                               \
		nvs_gate_enter(submitted_to);                                                                          \
		CUresult result = nvs_real.name(list, count, stream);                                                  \
		nvs_gate_leave();                                                                                      \
		return result;                                                                                         \
	}

MAP_ARRAY(cuMemMapArrayAsync, stream)
MAP_ARRAY(cuMemMapArrayAsync_ptsz, NVS_PER_THREAD(stream))

void nvs_virtual_after_fork(void)
{
	pthread_mutex_init(&nvs_virtual_lock, NULL);
	nvs_token_tree = NULL;
	nvs_mappings_after_fork();
}
