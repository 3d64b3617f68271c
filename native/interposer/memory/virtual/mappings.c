#include "memory/virtual/mappings.h"

#include <search.h>
#include <stdlib.h>

#include "memory/virtual/state.h"

void *nvs_mapping_tree, *nvs_reserved_tree;

static void *find_range(void *const *tree, CUdeviceptr p, size_t n)
{
	struct nvs_range key = {.base = p, .size = n};
	void **node = tfind(&key, tree, nvs_compare_ranges);
	return node != NULL ? *node : NULL;
}

bool nvs_mappings_add(struct nvs_mapping *mapping)
{
	struct nvs_mapping **node = tsearch(mapping, &nvs_mapping_tree, nvs_compare_ranges);
	return node != NULL && *node == mapping;
}

void nvs_mappings_remove(struct nvs_mapping *mapping)
{
	tdelete(mapping, &nvs_mapping_tree, nvs_compare_ranges);
}

struct nvs_mapping *nvs_mappings_at(CUdeviceptr p)
{
	return find_range(&nvs_mapping_tree, p, 1);
}

bool nvs_mappings_any(CUdeviceptr p, size_t n)
{
	return find_range(&nvs_mapping_tree, p, n) != NULL;
}

struct nvs_mapping *nvs_mappings_first(CUdeviceptr p, CUdeviceptr end)
{
	struct nvs_mapping *first = NULL;
	while (p < end) {
		struct nvs_mapping *before = find_range(&nvs_mapping_tree, p, end - p);
		if (before == NULL)
			break;
		first = before;
		end = first->view.at.base;
	}
	return first;
}

enum nvs_row nvs_mappings_row(CUdeviceptr p, size_t n)
{
	bool ours = false, whole = true;
	CUdeviceptr at = p, end = p + n;
	const struct nvs_mapping *mapping;
	while ((mapping = nvs_mappings_first(at, end)) != NULL) {
		ours = ours || mapping->token != NULL;
		whole = whole && mapping->view.at.base == at;
		at = mapping->view.at.base + mapping->view.at.size;
	}
	if (!ours)
		return NVS_ROW_OF_DRIVER;
	return whole && at == end ? NVS_ROW_WITH_OURS : NVS_ROW_BROKEN;
}

void nvs_reserved_add(CUdeviceptr p, size_t n)
{
	struct nvs_range *range = malloc(sizeof(*range));
	if (range == NULL)
		return;
	*range = (struct nvs_range){.base = p, .size = n};
	struct nvs_range **node = tsearch(range, &nvs_reserved_tree, nvs_compare_ranges);
	if (node == NULL || *node != range)
		free(range);
}

bool nvs_reserved_remove(CUdeviceptr p, size_t n)
{
	struct nvs_range *range = find_range(&nvs_reserved_tree, p, 1);
	if (range == NULL || range->base != p || range->size != n)
		return false;
	tdelete(range, &nvs_reserved_tree, nvs_compare_ranges);
	free(range);
	return true;
}

bool nvs_reserved_holds(CUdeviceptr p, size_t n)
{
	const struct nvs_range *range = find_range(&nvs_reserved_tree, p, 1);
	return range != NULL && n <= range->base + range->size - p;
}

/* What the parent's threads were changing at the fork cannot be walked; it is left behind. */
void nvs_mappings_after_fork(void)
{
	nvs_mapping_tree = nvs_reserved_tree = NULL;
}
