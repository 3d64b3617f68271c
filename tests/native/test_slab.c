/* The buddy system inside one slab, against a plain map of its units. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory/slab.h"
#include "memory/swap/backing.h"

/* Slabs of all devices are tested with the allocations (test_memory_alloc.c); here nothing may reach the driver. */
CUresult nvs_backing_create(CUdevice device, size_t size, bool shared, struct nvs_backing **out)
{
	abort();
}

void nvs_backing_destroy(struct nvs_backing *backing)
{
	abort();
}

static uint32_t state = 12345;

static uint32_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

static size_t piece_bytes(size_t size)
{
	return (size_t)NVS_SLAB_UNIT << nvs_buddy_order(size);
}

struct piece {
	uint32_t offset;
	size_t size;
};

#define TOP (NVS_SLAB_ORDERS - 1)
#define UNITS (1u << TOP)

static bool taken[UNITS];

static void mark(struct piece piece, bool value)
{
	for (size_t unit = 0; unit < piece_bytes(piece.size) / NVS_SLAB_UNIT; unit++) {
		assert(taken[piece.offset / NVS_SLAB_UNIT + unit] != value);
		taken[piece.offset / NVS_SLAB_UNIT + unit] = value;
	}
}

/* Is there an aligned run of free units of this size? */
static bool fits(size_t size)
{
	size_t run = piece_bytes(size) / NVS_SLAB_UNIT;
	for (size_t first = 0; first < UNITS; first += run) {
		size_t unit = 0;
		while (unit < run && !taken[first + unit])
			unit++;
		if (unit == run)
			return true;
	}
	return false;
}

/* GIVEN random pieces taken and given back WHEN one is asked for THEN it is aligned to its size, overlaps no other, and
 * is refused only when no room is left; in the end all is one free piece again. */
static void test_random_pieces_never_overlap_and_merge_again(void)
{
	static struct piece pieces[UNITS];
	static struct nvs_buddy buddy;
	size_t count = 0;
	nvs_buddy_init(&buddy);
	for (int step = 0; step < 40000; step++) {
		if (count > 0 && next_random() % 100 < 45) {
			size_t victim = next_random() % count;
			mark(pieces[victim], false);
			nvs_buddy_give(&buddy, pieces[victim].offset, pieces[victim].size);
			pieces[victim] = pieces[--count];
			continue;
		}
		size_t size = 1 + next_random() % ((size_t)NVS_SLAB_UNIT << next_random() % TOP);
		bool room = fits(size);
		int32_t offset = nvs_buddy_take(&buddy, size);
		assert((offset >= 0) == room);
		if (offset < 0)
			continue;
		assert((uint32_t)offset % piece_bytes(size) == 0);
		pieces[count] = (struct piece){(uint32_t)offset, size};
		mark(pieces[count++], true);
	}
	while (count > 0) {
		count--;
		nvs_buddy_give(&buddy, pieces[count].offset, pieces[count].size);
	}
	assert(buddy.largest[1] == TOP + 1);
}

/* GIVEN an empty slab WHEN it is filled with pieces of one size THEN exactly as many fit as there are bytes. */
static void test_every_size_fills_the_slab_exactly(void)
{
	static struct nvs_buddy buddy;
	for (unsigned order = 0; order < TOP; order++) {
		size_t size = (size_t)NVS_SLAB_UNIT << order;
		size_t count = 0;
		nvs_buddy_init(&buddy);
		while (nvs_buddy_take(&buddy, size) >= 0)
			count++;
		assert(count == NVS_SLAB_BYTES / size);
		assert(buddy.largest[1] == 0);
	}
}

static void test_orders_hold_their_sizes(void)
{
	assert(nvs_buddy_order(1) == 0);
	assert(nvs_buddy_order(512) == 0);
	assert(nvs_buddy_order(513) == 1);
	assert(nvs_buddy_order(NVS_SLAB_LARGEST) == TOP - 1);
}

int main(void)
{
	test_orders_hold_their_sizes();
	test_every_size_fills_the_slab_exactly();
	test_random_pieces_never_overlap_and_merge_again();
	puts("PASS");
	return 0;
}
