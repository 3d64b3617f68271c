#include "mappings.h"

#include <search.h>
#include <stdlib.h>

/* Balanced trees (tsearch). */
static void *mappings; /* of struct nvs_mapping */
static void *reserved; /* of struct nvs_range */

static void *find_range(void *const *tree, CUdeviceptr p, size_t n)
{
	struct nvs_range key = {.base = p, .size = n};
	void **node = tfind(&key, tree, nvs_compare_ranges);
	return node != NULL ? *node : NULL;
}

bool nvs_mappings_add(struct nvs_mapping *mapping)
{
	struct nvs_mapping **node = tsearch(mapping, &mappings, nvs_compare_ranges);
	return node != NULL && *node == mapping;
}

void nvs_mappings_remove(struct nvs_mapping *mapping)
{
	tdelete(mapping, &mappings, nvs_compare_ranges);
}

struct nvs_mapping *nvs_mappings_at(CUdeviceptr p)
{
	return find_range(&mappings, p, 1);
}

bool nvs_mappings_any(CUdeviceptr p, size_t n)
{
	return find_range(&mappings, p, n) != NULL;
}

enum nvs_row nvs_mappings_row(CUdeviceptr p, size_t n)
{
	bool ours = false;
	CUdeviceptr at = p, end = p + n;
	if (end <= p || !nvs_mappings_any(p, n))
		return NVS_ROW_OF_DRIVER;
	while (at < end) {
		const struct nvs_mapping *mapping = nvs_mappings_at(at);
		if (mapping == NULL || mapping->view.at.base != at)
			return NVS_ROW_BROKEN;
		ours = ours || mapping->token != NULL;
		at += mapping->view.at.size;
	}
	if (at > end)
		return NVS_ROW_BROKEN;
	return ours ? NVS_ROW_WITH_OURS : NVS_ROW_OF_DRIVER;
}

void nvs_reserved_add(CUdeviceptr p, size_t n)
{
	struct nvs_range *range = malloc(sizeof(*range));
	if (range == NULL)
		return;
	*range = (struct nvs_range){.base = p, .size = n};
	struct nvs_range **node = tsearch(range, &reserved, nvs_compare_ranges);
	if (node == NULL || *node != range)
		free(range);
}

bool nvs_reserved_remove(CUdeviceptr p, size_t n)
{
	struct nvs_range *range = find_range(&reserved, p, 1);
	if (range == NULL || range->base != p || range->size != n)
		return false;
	tdelete(range, &reserved, nvs_compare_ranges);
	free(range);
	return true;
}

bool nvs_reserved_holds(CUdeviceptr p, size_t n)
{
	const struct nvs_range *range = find_range(&reserved, p, 1);
	return range != NULL && n <= range->base + range->size - p;
}

/* What the parent's threads were changing at the fork cannot be walked; it is left behind. */
void nvs_mappings_after_fork(void)
{
	mappings = reserved = NULL;
}
