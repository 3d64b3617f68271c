#include "memory/slab.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/devices.h"
#include "base/list.h"
#include "memory/swap/backing.h"

#define TOP (NVS_SLAB_ORDERS - 1)
#define UNITS (1u << TOP)
_Static_assert(NVS_SLAB_UNIT << TOP == NVS_SLAB_BYTES, "orders and sizes agree");

/* ---- one slab's pieces ---- */

unsigned nvs_buddy_order(size_t size)
{
	unsigned order = 0;
	while (((size_t)NVS_SLAB_UNIT << order) < size)
		order++;
	return order;
}

/* Node 1 is the root; the children of n are 2n and 2n+1; a node at depth d spans pieces of order TOP - d. */
void nvs_buddy_init(struct nvs_buddy *buddy)
{
	unsigned order = TOP;
	for (uint32_t node = 1; node < 2 * UNITS; node++) {
		if (node == 1u << (TOP - order + 1))
			order--;
		buddy->largest[node] = (uint8_t)(order + 1);
	}
}

/* Two children that are both wholly free are one free piece of the parent's size. */
static void update_ancestors(struct nvs_buddy *buddy, uint32_t node, unsigned order)
{
	while (node > 1) {
		node /= 2;
		order++;
		uint8_t left = buddy->largest[2 * node], right = buddy->largest[2 * node + 1];
		if (left == order && right == order)
			buddy->largest[node] = (uint8_t)(order + 1);
		else
			buddy->largest[node] = left > right ? left : right;
	}
}

int32_t nvs_buddy_take(struct nvs_buddy *buddy, size_t size)
{
	unsigned wanted = nvs_buddy_order(size);
	if (buddy->largest[1] < wanted + 1)
		return -1;
	uint32_t node = 1;
	for (unsigned order = TOP; order > wanted; order--) {
		/* The child with the smaller piece that still fits keeps the large ones whole. */
		uint8_t left = buddy->largest[2 * node], right = buddy->largest[2 * node + 1];
		bool go_right = left < wanted + 1 || (right >= wanted + 1 && right < left);
		node = 2 * node + go_right;
	}
	buddy->largest[node] = 0;
	update_ancestors(buddy, node, wanted);
	uint32_t first = node << wanted; /* the leaf below it, counted from UNITS */
	return (int32_t)((first - UNITS) * NVS_SLAB_UNIT);
}

void nvs_buddy_give(struct nvs_buddy *buddy, uint32_t offset, size_t size)
{
	unsigned order = nvs_buddy_order(size);
	uint32_t node = (offset / NVS_SLAB_UNIT + UNITS) >> order;
	buddy->largest[node] = (uint8_t)(order + 1);
	update_ancestors(buddy, node, order);
}

/* ---- the slabs of all devices ---- */

struct nvs_slab {
	struct nvs_backing *backing;
	struct nvs_slab *next, *previous;
	uint8_t shelf; /* where it is linked */
	struct nvs_buddy buddy;
};

/* [device][1 + order of the largest free piece]: the fullest slab that fits is found without a search. */
static struct nvs_slab *shelves[NVS_MAX_DEVICES][NVS_SLAB_ORDERS + 1];
static pthread_mutex_t slabs_lock = PTHREAD_MUTEX_INITIALIZER;
#define EMPTY NVS_SLAB_ORDERS

static void unlink_slab(struct nvs_slab *slab)
{
	NVS_LIST_TAKE(shelves[slab->backing->device][slab->shelf], slab);
}

static void link_slab(struct nvs_slab *slab)
{
	slab->shelf = slab->buddy.largest[1];
	struct nvs_slab **shelf = &shelves[slab->backing->device][slab->shelf];
	NVS_LIST_PUSH(*shelf, slab);
}

static void shelve(struct nvs_slab *slab)
{
	if (slab->shelf == slab->buddy.largest[1])
		return;
	unlink_slab(slab);
	link_slab(slab);
}

bool nvs_slab_take(CUdevice device, size_t size, CUdeviceptr *p, struct nvs_slab **out)
{
	struct nvs_slab *slab = NULL;
	pthread_mutex_lock(&slabs_lock);
	for (unsigned shelf = nvs_buddy_order(size) + 1; shelf <= EMPTY && slab == NULL; shelf++)
		slab = shelves[device][shelf];
	if (slab != NULL) {
		*p = slab->backing->base + (CUdeviceptr)nvs_buddy_take(&slab->buddy, size);
		shelve(slab);
	}
	pthread_mutex_unlock(&slabs_lock);
	*out = slab;
	return slab != NULL;
}

CUresult nvs_slab_grow(CUdevice device, size_t size, CUdeviceptr *p, struct nvs_slab **out)
{
	struct nvs_slab *slab = malloc(sizeof(*slab));
	if (slab == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = nvs_backing_create(device, NVS_SLAB_BYTES, true, &slab->backing);
	if (result != CUDA_SUCCESS) {
		free(slab);
		return result;
	}
	nvs_buddy_init(&slab->buddy);
	*p = slab->backing->base + (CUdeviceptr)nvs_buddy_take(&slab->buddy, size);
	pthread_mutex_lock(&slabs_lock);
	link_slab(slab);
	pthread_mutex_unlock(&slabs_lock);
	*out = slab;
	return CUDA_SUCCESS;
}

static void drop(struct nvs_slab *slab)
{
	nvs_backing_destroy(slab->backing);
	free(slab);
}

void nvs_slab_give(struct nvs_slab *slab, CUdeviceptr p, size_t size)
{
	pthread_mutex_lock(&slabs_lock);
	nvs_buddy_give(&slab->buddy, (uint32_t)(p - slab->backing->base), size);
	bool is_empty = slab->buddy.largest[1] == EMPTY;
	bool surplus = is_empty && shelves[slab->backing->device][EMPTY] != NULL;
	if (surplus)
		unlink_slab(slab);
	else
		shelve(slab);
	pthread_mutex_unlock(&slabs_lock);
	if (surplus)
		drop(slab);
}

bool nvs_slab_trim(CUdevice device)
{
	pthread_mutex_lock(&slabs_lock);
	struct nvs_slab *spare = shelves[device][EMPTY];
	if (spare != NULL)
		unlink_slab(spare);
	pthread_mutex_unlock(&slabs_lock);
	if (spare != NULL)
		drop(spare);
	return spare != NULL;
}

void nvs_slab_after_fork(void)
{
	pthread_mutex_init(&slabs_lock, NULL);
	memset(shelves, 0, sizeof(shelves));
}
