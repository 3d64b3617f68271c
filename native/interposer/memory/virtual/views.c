/* Where the application maps its own virtual memory: views of backings of ours, in its own address ranges, beside what
 * it maps there of the driver's. */
#include <stdlib.h>

#include "gate/gate.h"
#include "gate/entry.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "memory/table.h"
#include "memory/virtual/mappings.h"
#include "memory/virtual/state.h"
#include "resolve/resolve.h"

/* ---- mapping ---- */

/* Some things only the driver can tell, and only of memory that is there. An attempt that says false is made again in
 * the turn, when nothing is away. */
#define IN_TURN_IF_NEEDED(attempt)                                                                                     \
	do {                                                                                                           \
		if (!(attempt)) {                                                                                      \
			nvs_gate_enter_unmeasured();                                                                   \
			(void)(attempt);                                                                               \
			nvs_gate_leave();                                                                              \
		}                                                                                                      \
	} while (0)

/* The lock is held from here on, down to the wrappers; the backing is fixed. The chunks before `count` that are there.
 */
static CUresult hide(const struct nvs_mapping *mapping, size_t count)
{
	const struct nvs_backing *backing = mapping->token->backing;
	CUresult result = CUDA_SUCCESS;
	for (size_t i = 0; i < count; i++) {
		CUresult hidden = nvs_residency_is_mapped(backing, i) ? nvs_mapped_hide(backing, &mapping->view, i)
								      : CUDA_SUCCESS;
		result = result == CUDA_SUCCESS ? hidden : result;
	}
	return result;
}

static CUresult show(const struct nvs_mapping *mapping)
{
	const struct nvs_backing *backing = mapping->token->backing;
	for (size_t i = 0; i < backing->chunk_count; i++) {
		CUresult result = nvs_residency_is_mapped(backing, i) ? nvs_mapped_show(backing, &mapping->view, i)
								      : CUDA_SUCCESS;
		if (result != CUDA_SUCCESS) {
			hide(mapping, i);
			return result;
		}
	}
	return CUDA_SUCCESS;
}

static void forget_mapping(struct nvs_mapping *mapping)
{
	if (mapping->token != NULL)
		nvs_table_remove(&mapping->shown);
	nvs_mappings_remove(mapping);
	free(mapping->view.access);
	free(mapping);
}

/* NULL: something is there already, or host memory is short. */
static struct nvs_mapping *note_mapping(struct nvs_token *token, CUdeviceptr p, size_t n)
{
	struct nvs_mapping *mapping = calloc(1, sizeof(*mapping));
	if (mapping == NULL)
		return NULL;
	mapping->view.at = (struct nvs_range){.base = p, .size = n};
	mapping->token = token;
	if (!nvs_mappings_add(mapping)) {
		free(mapping);
		return NULL;
	}
	if (token == NULL)
		return mapping;
	mapping->shown = (struct nvs_allocation){
		.base = p, .size = n, .device = token->backing->device, .home = token->backing->base, .is_view = true};
	if (nvs_table_insert(&mapping->shown))
		return mapping;
	nvs_mappings_remove(mapping);
	free(mapping);
	return NULL;
}

/* Is it clear that the driver will map it there, once there is something to map? */
static bool is_mappable(const struct nvs_token *token, CUdeviceptr p, size_t n)
{
	return n == token->backing->size && p % token->granularity == 0 && nvs_reserved_holds(p, n);
}

static bool map_token(CUdeviceptr p, size_t n, CUmemGenericAllocationHandle handle, CUresult *result)
{
	bool clear = true;
	*result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&nvs_virtual_lock);
	struct nvs_token *token = nvs_token_find(handle);
	bool sound = token != NULL && n > 0 && n <= token->backing->size && p + n > p;
	struct nvs_mapping *mapping = sound ? note_mapping(token, p, n) : NULL;
	if (mapping != NULL) {
		struct nvs_backing *backing = token->backing;
		nvs_residency_fix(backing);
		clear = is_mappable(token, p, n) || nvs_backing_is_present(backing);
		*result = clear ? show(mapping) : CUDA_ERROR_NOT_READY;
		if (*result == CUDA_SUCCESS) {
			mapping->view.next = backing->views;
			backing->views = &mapping->view;
		} else {
			forget_mapping(mapping);
		}
		nvs_residency_unfix(backing);
	}
	pthread_mutex_unlock(&nvs_virtual_lock);
	nvs_mover_kick();
	return clear;
}

static CUresult map_drivers(
	CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	pthread_mutex_lock(&nvs_virtual_lock);
	CUresult result = n > 0 && nvs_mappings_any(p, n) ? CUDA_ERROR_INVALID_VALUE
							  : nvs_real.cuMemMap(p, n, offset, handle, flags);
	if (result == CUDA_SUCCESS)
		note_mapping(NULL, p, n);
	pthread_mutex_unlock(&nvs_virtual_lock);
	return result;
}

NVS_EXPORT CUresult cuMemMap(
	CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	NVS_PASS_INSIDE(cuMemMap, (p, n, offset, handle, flags));
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	nvs_inside++;
	if (!nvs_is_token(handle))
		result = map_drivers(p, n, offset, handle, flags);
	else if (offset == 0 && flags == 0)
		IN_TURN_IF_NEEDED(map_token(p, n, handle, &result));
	nvs_inside--;
	return result;
}

/* The driver does not wait for work that uses the addresses: neither do we. */
static CUresult unmap_view(struct nvs_mapping *mapping, struct nvs_token **done)
{
	struct nvs_token *token = mapping->token;
	struct nvs_view **link = &token->backing->views;
	nvs_residency_fix(token->backing);
	CUresult result = hide(mapping, token->backing->chunk_count);
	while (*link != &mapping->view)
		link = &(*link)->next;
	*link = mapping->view.next;
	forget_mapping(mapping);
	if (!nvs_token_put_aside(token, done))
		nvs_residency_unfix(token->backing);
	return result;
}

static CUresult unmap_drivers(CUdeviceptr p, size_t n)
{
	CUresult result = nvs_real.cuMemUnmap(p, n);
	struct nvs_mapping *gone;
	while (result == CUDA_SUCCESS && (gone = nvs_mappings_first(p, p + n)) != NULL)
		forget_mapping(gone);
	return result;
}

static CUresult unmap_row(CUdeviceptr p, size_t n, struct nvs_token **done)
{
	CUresult result = CUDA_SUCCESS;
	for (struct nvs_mapping *each = nvs_mappings_at(p), *next; each != NULL && result == CUDA_SUCCESS;
		each = next) {
		next = nvs_mappings_next(each, p + n);
		result = each->token != NULL ? unmap_view(each, done)
					     : unmap_drivers(each->view.at.base, each->view.at.size);
	}
	return result;
}

/* What cuMemAlloc gave is mapped by us, and is not the application's to unmap. */
static bool is_from_cuMemAlloc(CUdeviceptr p)
{
	struct nvs_allocation found;
	return nvs_table_find(p, &found) && !found.is_view;
}

NVS_EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t n)
{
	NVS_PASS_INSIDE(cuMemUnmap, (p, n));
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct nvs_token *done = NULL;
	if (is_from_cuMemAlloc(p))
		return result;
	nvs_inside++;
	pthread_mutex_lock(&nvs_virtual_lock);
	enum nvs_row row = nvs_mappings_row(p, n);
	if (row != NVS_ROW_BROKEN)
		result = row == NVS_ROW_OF_DRIVER ? unmap_drivers(p, n) : unmap_row(p, n, &done);
	pthread_mutex_unlock(&nvs_virtual_lock);
	nvs_tokens_discard(done);
	nvs_mover_kick();
	nvs_inside--;
	return result;
}

/* ---- access ---- */

static bool is_same_location(const CUmemLocation *a, const CUmemLocation *b)
{
	return a->type == b->type && a->id == b->id;
}

static bool make_room_for_access(struct nvs_view *view, size_t count)
{
	CUmemAccessDesc *access = realloc(view->access, (view->access_count + count) * sizeof(*access));
	if (access == NULL)
		return false;
	view->access = access;
	return true;
}

static void note_access(struct nvs_view *view, const CUmemAccessDesc *desc)
{
	size_t i = 0;
	while (i < view->access_count && !is_same_location(&view->access[i].location, &desc->location))
		i++;
	if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
		view->access[i] = *desc;
		view->access_count += i == view->access_count;
	} else if (i < view->access_count) {
		view->access[i] = view->access[--view->access_count];
	}
}

/* A row of mappings is fixed as a whole. True: all of it is there. */
static bool fix_row(CUdeviceptr p, size_t n)
{
	bool present = true;
	for (struct nvs_mapping *each = nvs_mappings_at(p); each != NULL; each = nvs_mappings_next(each, p + n))
		if (each->token != NULL) {
			nvs_residency_fix(each->token->backing);
			present = nvs_backing_is_present(each->token->backing) && present;
		}
	return present;
}

static void unfix_row(CUdeviceptr p, size_t n)
{
	for (struct nvs_mapping *each = nvs_mappings_at(p); each != NULL; each = nvs_mappings_next(each, p + n))
		if (each->token != NULL)
			nvs_residency_unfix(each->token->backing);
}

/* Is it clear that the driver will allow this, once there is something to allow? A card may use its own memory. */
static bool is_allowable(CUdeviceptr p, size_t n, const CUmemAccessDesc *desc, size_t count)
{
	for (struct nvs_mapping *each = nvs_mappings_at(p); each != NULL; each = nvs_mappings_next(each, p + n))
		for (size_t i = 0; each->token != NULL && i < count; i++)
			if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
				desc[i].location.id != each->token->backing->device ||
				(desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
					desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE))
				return false;
	return true;
}

static CUresult allow_present(const struct nvs_mapping *mapping, const CUmemAccessDesc *desc, size_t count)
{
	const struct nvs_range *at = &mapping->view.at;
	if (mapping->token == NULL)
		return nvs_real.cuMemSetAccess(at->base, at->size, desc, count);
	const struct nvs_backing *backing = mapping->token->backing;
	CUresult result = CUDA_SUCCESS;
	for (size_t i = 0; i < backing->chunk_count && result == CUDA_SUCCESS; i++) {
		size_t part = nvs_view_part(backing, &mapping->view, i);
		if (part > 0 && nvs_residency_is_mapped(backing, i))
			result = nvs_real.cuMemSetAccess(at->base + i * nvs_chunk_bytes, part, desc, count);
	}
	return result;
}

static CUresult allow_row(CUdeviceptr p, size_t n, const CUmemAccessDesc *desc, size_t count, bool present)
{
	CUresult result = CUDA_SUCCESS;
	for (struct nvs_mapping *each = nvs_mappings_at(p); each != NULL; each = nvs_mappings_next(each, p + n))
		if (each->token != NULL && !make_room_for_access(&each->view, count))
			return CUDA_ERROR_OUT_OF_MEMORY;
	if (present)
		result = nvs_real.cuMemSetAccess(p, n, desc, count);
	for (struct nvs_mapping *each = nvs_mappings_at(p); each != NULL && result == CUDA_SUCCESS;
		each = nvs_mappings_next(each, p + n)) {
		if (!present)
			result = allow_present(each, desc, count);
		for (size_t i = 0; each->token != NULL && result == CUDA_SUCCESS && i < count; i++)
			note_access(&each->view, &desc[i]);
	}
	return result;
}

static bool allow(CUdeviceptr p, size_t n, const CUmemAccessDesc *desc, size_t count, CUresult *result)
{
	bool clear = true;
	*result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&nvs_virtual_lock);
	enum nvs_row row = nvs_mappings_row(p, n);
	if (row == NVS_ROW_OF_DRIVER) {
		*result = nvs_real.cuMemSetAccess(p, n, desc, count);
	} else if (row == NVS_ROW_WITH_OURS && desc != NULL && count > 0) {
		bool present = fix_row(p, n);
		clear = present || is_allowable(p, n, desc, count);
		*result = clear ? allow_row(p, n, desc, count, present) : CUDA_ERROR_NOT_READY;
		unfix_row(p, n);
	}
	pthread_mutex_unlock(&nvs_virtual_lock);
	nvs_mover_kick();
	return clear;
}

NVS_EXPORT CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *desc, size_t count)
{
	NVS_PASS_INSIDE(cuMemSetAccess, (p, n, desc, count));
	CUresult result;
	nvs_inside++;
	IN_TURN_IF_NEEDED(allow(p, n, desc, count, &result));
	nvs_inside--;
	return result;
}

NVS_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)
{
	NVS_PASS_INSIDE(cuMemGetAccess, (flags, location, p));
	pthread_mutex_lock(&nvs_virtual_lock);
	const struct nvs_mapping *mapping = nvs_mappings_at(p);
	bool ours = mapping != NULL && mapping->token != NULL && flags != NULL && location != NULL;
	if (ours)
		*flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	for (size_t i = 0; ours && i < mapping->view.access_count; i++)
		if (is_same_location(&mapping->view.access[i].location, location))
			*flags = mapping->view.access[i].flags;
	pthread_mutex_unlock(&nvs_virtual_lock);
	return ours ? CUDA_SUCCESS : nvs_real.cuMemGetAccess(flags, location, p);
}

/* ---- reservations ---- */

NVS_EXPORT CUresult cuMemAddressReserve(
	CUdeviceptr *p, size_t n, size_t align, CUdeviceptr addr, unsigned long long flags)
{
	NVS_PASS_INSIDE(cuMemAddressReserve, (p, n, align, addr, flags));
	CUresult result = nvs_real.cuMemAddressReserve(p, n, align, addr, flags);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&nvs_virtual_lock);
	nvs_reserved_add(*p, n);
	pthread_mutex_unlock(&nvs_virtual_lock);
	return CUDA_SUCCESS;
}

/* Where memory of ours is mapped but away, the driver would let the addresses go. Forgotten before it does, because it
 * may hand them to another thread at once. */
NVS_EXPORT CUresult cuMemAddressFree(CUdeviceptr p, size_t n)
{
	NVS_PASS_INSIDE(cuMemAddressFree, (p, n));
	pthread_mutex_lock(&nvs_virtual_lock);
	bool in_use = n > 0 && nvs_mappings_any(p, n), known = !in_use && nvs_reserved_remove(p, n);
	pthread_mutex_unlock(&nvs_virtual_lock);
	CUresult result = in_use ? CUDA_ERROR_INVALID_VALUE : nvs_real.cuMemAddressFree(p, n);
	if (known && result != CUDA_SUCCESS) {
		pthread_mutex_lock(&nvs_virtual_lock);
		nvs_reserved_add(p, n);
		pthread_mutex_unlock(&nvs_virtual_lock);
	}
	return result;
}
