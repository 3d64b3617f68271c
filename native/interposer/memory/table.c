#include "memory/table.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

#include "base/list.h"
#include "base/ranges.h"
#include "memory/state.h"

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
void *nvs_allocation_tree;
struct nvs_allocation *nvs_allocation_list;
static struct nvs_allocation *parked;
static size_t parked_count, parked_bytes;

/* Far from the driver's own buffer ids, which count up from 1. */
static uint64_t next_id = 1ull << 48;

_Static_assert(offsetof(struct nvs_allocation, base) == offsetof(struct nvs_range, base) &&
		       offsetof(struct nvs_allocation, size) == offsetof(struct nvs_range, size),
	"an allocation begins with its range");

static struct nvs_allocation *find_allocation(CUdeviceptr p)
{
	struct nvs_range key = {.base = p, .size = 1};
	struct nvs_allocation **node = tfind(&key, &nvs_allocation_tree, nvs_compare_ranges);
	return node != NULL ? *node : NULL;
}

bool nvs_table_insert(struct nvs_allocation *allocation)
{
	if (!allocation->is_view)
		allocation->home = allocation->base;
	pthread_mutex_lock(&table_lock);
	struct nvs_allocation **node = tsearch(allocation, &nvs_allocation_tree, nvs_compare_ranges);
	bool inserted = node != NULL && *node == allocation;
	if (inserted) {
		allocation->id = next_id++;
		NVS_LIST_PUSH(nvs_allocation_list, allocation);
	}
	pthread_mutex_unlock(&table_lock);
	return inserted;
}

bool nvs_table_find(CUdeviceptr p, struct nvs_allocation *copy)
{
	pthread_mutex_lock(&table_lock);
	struct nvs_allocation *found = find_allocation(p);
	bool live = found != NULL && !found->parked;
	if (live)
		*copy = *found;
	pthread_mutex_unlock(&table_lock);
	return live;
}

void nvs_table_export(CUdeviceptr p)
{
	pthread_mutex_lock(&table_lock);
	struct nvs_allocation *found = find_allocation(p);
	if (found != NULL && !found->parked)
		found->exported = true;
	pthread_mutex_unlock(&table_lock);
}

static void park(struct nvs_allocation *allocation)
{
	allocation->parked = true;
	allocation->next_parked = parked;
	parked = allocation;
	parked_count++;
	parked_bytes += allocation->size;
}

static enum nvs_parking park_base(CUdeviceptr p, bool import)
{
	enum nvs_parking answer = NVS_NOT_OURS;
	pthread_mutex_lock(&table_lock);
	struct nvs_allocation *found = find_allocation(p);
	if (found != NULL) {
		bool fits = !found->is_view && (found->import != NULL) == import;
		answer = found->base == p && !found->parked && fits ? NVS_PARKED : NVS_NOT_A_BASE;
	}
	if (answer == NVS_PARKED)
		park(found);
	pthread_mutex_unlock(&table_lock);
	return answer;
}

enum nvs_parking nvs_table_park(CUdeviceptr p)
{
	return park_base(p, false);
}

enum nvs_parking nvs_table_park_import(CUdeviceptr p)
{
	return park_base(p, true);
}

void nvs_table_park_context(CUcontext context)
{
	pthread_mutex_lock(&table_lock);
	for (struct nvs_allocation *each = nvs_allocation_list; each != NULL; each = each->next)
		if (each->context == context && !each->parked)
			park(each);
	pthread_mutex_unlock(&table_lock);
}

void nvs_table_parked(size_t *count, size_t *bytes)
{
	pthread_mutex_lock(&table_lock);
	*count = parked_count;
	*bytes = parked_bytes;
	pthread_mutex_unlock(&table_lock);
}

struct nvs_allocation *nvs_table_take_parked(void)
{
	pthread_mutex_lock(&table_lock);
	struct nvs_allocation *list = parked;
	parked = NULL;
	parked_count = parked_bytes = 0;
	pthread_mutex_unlock(&table_lock);
	return list;
}

void nvs_table_put_back_parked(struct nvs_allocation *list)
{
	pthread_mutex_lock(&table_lock);
	while (list != NULL) {
		struct nvs_allocation *next = list->next_parked;
		park(list);
		list = next;
	}
	pthread_mutex_unlock(&table_lock);
}

void nvs_table_remove(struct nvs_allocation *allocation)
{
	pthread_mutex_lock(&table_lock);
	tdelete(allocation, &nvs_allocation_tree, nvs_compare_ranges);
	NVS_LIST_TAKE(nvs_allocation_list, allocation);
	pthread_mutex_unlock(&table_lock);
}

/* What the parent's threads were changing at the fork cannot be walked; it is left behind. */
void nvs_table_after_fork(void)
{
	pthread_mutex_init(&table_lock, NULL);
	nvs_allocation_tree = NULL;
	nvs_allocation_list = parked = NULL;
	parked_count = parked_bytes = 0;
}
