#include "vspace.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct range {
	uint64_t start, end;
};

static struct range space; /* addresses of the device */
static struct range *reserved;
static size_t reserved_count, reserved_room;
static uint64_t cursor; /* addresses are not reused at once, so that stale pointers are found out */

static struct nvs_mapping *mappings;
static size_t mapping_count, mapping_room;
static uint64_t next_id = 1, next_handle = 1;
static struct nvs_physical *with_handles;

/* Taken from the host's address space without access: a device pointer can be confused with nothing else, and using it
 * on the host faults, as it does with a real card. */
static bool open_space(void)
{
	for (uint64_t size = (uint64_t)16 << 40; space.start == 0 && size >= (uint64_t)1 << 30; size /= 2) {
		void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			continue;
		space.start = nvs_round_up((uint64_t)p, NVS_GRANULARITY);
		space.end = (uint64_t)p + size;
		cursor = space.start;
	}
	return space.start != 0;
}

bool nvs_is_device_address(uint64_t address)
{
	return address >= space.start && address < space.end;
}

/* Index of the first reserved range that ends after address. */
static size_t reserved_from(uint64_t address)
{
	size_t low = 0, high = reserved_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (reserved[middle].end > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static uint64_t search(uint64_t from, uint64_t n, uint64_t align)
{
	uint64_t start = nvs_round_up(from, align);
	for (size_t i = reserved_from(start); i < reserved_count; i++) {
		if (start + n <= reserved[i].start)
			break;
		start = nvs_round_up(reserved[i].end, align);
	}
	return start + n <= space.end ? start : 0;
}

uint64_t nvs_reserve(uint64_t n, uint64_t align, uint64_t hint)
{
	if (!open_space() || n > space.end - space.start)
		return 0;
	if (reserved_count == reserved_room) {
		size_t room = reserved_room * 2 + 64;
		struct range *grown = realloc(reserved, room * sizeof(*grown));
		if (grown == NULL)
			return 0;
		reserved = grown;
		reserved_room = room;
	}
	align = align < NVS_GRANULARITY ? NVS_GRANULARITY : align;
	uint64_t start = 0;
	if (hint >= space.start && hint % align == 0 && search(hint, n, align) == hint)
		start = hint;
	if (start == 0)
		start = search(cursor, n, align);
	if (start == 0)
		start = search(space.start, n, align);
	if (start == 0)
		return 0;
	cursor = start + n;
	size_t at = reserved_from(start);
	memmove(&reserved[at + 1], &reserved[at], (reserved_count - at) * sizeof(*reserved));
	reserved[at] = (struct range){start, start + n};
	reserved_count++;
	return start;
}

bool nvs_unreserve(uint64_t start, uint64_t n)
{
	size_t at = reserved_from(start);
	if (at == reserved_count || reserved[at].start != start || reserved[at].end != start + n)
		return false;
	if (nvs_mapping_overlaps(start, n))
		return false;
	reserved_count--;
	memmove(&reserved[at], &reserved[at + 1], (reserved_count - at) * sizeof(*reserved));
	return true;
}

bool nvs_is_reserved(uint64_t start, uint64_t n)
{
	size_t at = reserved_from(start);
	return at < reserved_count && reserved[at].start <= start && start + n <= reserved[at].end;
}

static size_t mapping_index(uint64_t address)
{
	size_t low = 0, high = mapping_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (mappings[middle].start + mappings[middle].size > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

struct nvs_mapping *nvs_mapping_from(uint64_t address)
{
	size_t at = mapping_index(address);
	return at < mapping_count ? &mappings[at] : NULL;
}

struct nvs_mapping *nvs_mapping_at(uint64_t address)
{
	struct nvs_mapping *mapping = nvs_mapping_from(address);
	return mapping != NULL && mapping->start <= address ? mapping : NULL;
}

bool nvs_mapping_overlaps(uint64_t start, uint64_t n)
{
	struct nvs_mapping *mapping = nvs_mapping_from(start);
	return mapping != NULL && mapping->start < start + n;
}

bool nvs_mapping_add(const struct nvs_mapping *mapping)
{
	if (mapping_count == mapping_room) {
		size_t room = mapping_room * 2 + 64;
		struct nvs_mapping *grown = realloc(mappings, room * sizeof(*grown));
		if (grown == NULL)
			return false;
		mappings = grown;
		mapping_room = room;
	}
	size_t at = mapping_index(mapping->start);
	memmove(&mappings[at + 1], &mappings[at], (mapping_count - at) * sizeof(*mappings));
	mappings[at] = *mapping;
	mappings[at].id = next_id++;
	mappings[at].physical->mappings++;
	mapping_count++;
	return true;
}

void nvs_mapping_remove(struct nvs_mapping *mapping)
{
	struct nvs_physical *physical = mapping->physical;
	size_t at = (size_t)(mapping - mappings);
	mapping_count--;
	memmove(&mappings[at], &mappings[at + 1], (mapping_count - at) * sizeof(*mappings));
	physical->mappings--;
	nvs_physical_put(physical);
}

struct nvs_mapping *nvs_mapping_find_context(CUcontext ctx)
{
	for (size_t i = 0; i < mapping_count; i++)
		if (mappings[i].ctx == ctx)
			return &mappings[i];
	return NULL;
}

CUresult nvs_physical_new(unsigned gpu, int slot, uint64_t size, uint64_t charge, void *raw, struct nvs_physical **out)
{
	struct nvs_physical *physical = calloc(1, sizeof(*physical));
	if (physical == NULL || !nvs_contents_init(&physical->contents, size, raw)) {
		free(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->gpu = gpu;
	physical->slot = slot;
	if (slot >= 0 && charge > 0) {
		uint64_t evicted = 0;
		nvs_node_lock(nvs_process.node);
		bool fits = nvs_slot_charge(nvs_process.node, slot, charge, &evicted);
		nvs_node_unlock(nvs_process.node);
		if (evicted > 0)
			nvs_takes(1e9 * (double)evicted / nvs_process.node->profile.fault_bandwidth);
		if (!fits) {
			nvs_contents_free(&physical->contents);
			free(physical);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		physical->charged = charge;
	}
	*out = physical;
	return CUDA_SUCCESS;
}

void nvs_physical_put(struct nvs_physical *physical)
{
	if (physical->mappings > 0 || physical->handles > 0)
		return;
	struct nvs_physical **link = &with_handles;
	while (*link != NULL && *link != physical)
		link = &(*link)->next;
	if (*link != NULL)
		*link = physical->next;
	if (physical->charged > 0 || physical->pinned > 0) {
		nvs_node_lock(nvs_process.node);
		nvs_slot_refund(nvs_process.node, physical->slot, physical->charged);
		nvs_process.node->slots[physical->slot].pinned -= physical->pinned;
		nvs_node_unlock(nvs_process.node);
	}
	nvs_managed_free(physical->managed);
	nvs_physical_unshare(physical);
	nvs_contents_free(&physical->contents);
	free(physical);
}

void nvs_physical_give_handle(struct nvs_physical *physical)
{
	physical->handles++;
	if (physical->handle != 0)
		return;
	physical->handle = next_handle++;
	physical->next = with_handles;
	with_handles = physical;
}

struct nvs_physical *nvs_physical_of(CUmemGenericAllocationHandle handle)
{
	struct nvs_physical *physical = with_handles;
	while (physical != NULL && (physical->handle != handle || physical->handles == 0))
		physical = physical->next;
	return physical;
}
