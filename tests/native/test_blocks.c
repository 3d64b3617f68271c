/* Blocks inside segments, against a plain map of their units. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/ordered/blocks.h"

#define KIB 1024ull
#define SEGMENTS 4
#define SEGMENT_UNITS 512u
#define SEGMENT_BYTES (SEGMENT_UNITS * NVS_BLOCK_UNIT)
#define SHELVES 4 /* the first is everybody's */
#define HELD 400

static uint32_t state = 4711;

static uint32_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

/* What a unit is: live (0), or free on a shelf (1 + its number) since an epoch; -1: in no segment. */
struct unit {
	int where;
	uint64_t epoch;
};

static struct nvs_space space;
static struct nvs_heap heap;
static struct nvs_shelf shelves[SHELVES];
static struct nvs_segment *segments[SEGMENTS];
static struct unit units[SEGMENTS][SEGMENT_UNITS];
static struct nvs_block *held[HELD];
static uint64_t epoch;

static void begin(void)
{
	memset(&space, 0, sizeof(space));
	heap = (struct nvs_heap){.space = &space};
	memset(shelves, 0, sizeof(shelves));
	memset(segments, 0, sizeof(segments));
	memset(held, 0, sizeof(held));
	epoch = 1;
	for (int i = 0; i < SEGMENTS; i++)
		for (unsigned k = 0; k < SEGMENT_UNITS; k++)
			units[i][k] = (struct unit){.where = -1};
}

static CUdeviceptr base_of(int segment)
{
	return 0x700000000000ull + (unsigned)segment * 2 * SEGMENT_BYTES;
}

static struct unit *units_of(CUdeviceptr p)
{
	int segment = (int)((p - base_of(0)) / (2 * SEGMENT_BYTES));
	return &units[segment][(p - base_of(segment)) / NVS_BLOCK_UNIT];
}

static void add_segment(int i)
{
	segments[i] = nvs_segment_add(&heap, NULL, base_of(i), SEGMENT_BYTES, &shelves[0]);
	assert(segments[i] != NULL);
	for (unsigned k = 0; k < SEGMENT_UNITS; k++)
		units[i][k] = (struct unit){.where = 1};
}

static void end(void)
{
	for (int i = 0; i < SEGMENTS; i++) {
		if (segments[i] == NULL)
			continue;
		assert(nvs_segment_is_free(segments[i], &shelves[0]));
		nvs_segment_remove(segments[i]);
	}
	assert(space.live == 0 && space.segment_count == 0 && heap.reserved == 0 && heap.used == 0);
	while (space.spare != NULL) {
		struct nvs_block *next = space.spare->next;
		free(space.spare);
		space.spare = next;
	}
	free(space.segments);
	free(space.buckets);
}

/* Is there a run of units of this length, all on one of the two shelves? */
static bool fits(int shelf, int other, uint64_t count)
{
	for (int i = 0; i < SEGMENTS; i++) {
		uint64_t run = 0;
		for (unsigned k = 0; k < SEGMENT_UNITS; k++) {
			bool usable = units[i][k].where == 1 + shelf || units[i][k].where == 1 + other;
			run = usable ? run + 1 : 0;
			if (run == count)
				return true;
		}
	}
	return false;
}

static void expect_taken_from(const struct nvs_block *block, int shelf, int other)
{
	struct unit *unit = units_of(block->base);
	assert(block->base % NVS_BLOCK_UNIT == 0);
	for (uint64_t i = 0; i < block->size / NVS_BLOCK_UNIT; i++) {
		assert(unit[i].where == 1 + shelf || unit[i].where == 1 + other);
		unit[i].where = 0;
	}
}

/* What gathering left over, if anything, is on the taker's shelf. */
static void expect_rest_on(const struct nvs_block *rest, int shelf)
{
	if (rest == NULL || rest->shelf != &shelves[shelf])
		return;
	struct unit *unit = units_of(rest->base);
	for (uint64_t i = 0; i < rest->size / NVS_BLOCK_UNIT; i++) {
		assert(unit[i].where == 1 + shelf || unit[i].where == 1);
		unit[i] = (struct unit){.where = 1 + shelf, .epoch = rest->epoch};
	}
}

static void hold(struct nvs_block *block)
{
	for (int i = 0; i < HELD; i++)
		if (held[i] == NULL) {
			held[i] = block;
			return;
		}
	assert(!"room to hold a block");
}

static uint64_t random_size(void)
{
	uint32_t kind = next_random() % 8;
	return 1 + next_random() % (kind < 5 ? 4 * KIB : kind < 7 ? 32 * KIB : 200 * KIB);
}

static void try_take(void)
{
	int shelf = (int)(next_random() % SHELVES), count = 0;
	for (int i = 0; i < HELD; i++)
		count += held[i] != NULL;
	if (count == HELD)
		return;
	uint64_t size = random_size(), needed = (size + NVS_BLOCK_UNIT - 1) / NVS_BLOCK_UNIT;
	struct nvs_block *block = nvs_block_take(&heap, &shelves[shelf], size);
	assert((block != NULL) == fits(shelf, shelf, needed));
	int other = shelf;
	if (block == NULL) {
		other = 0;
		block = nvs_block_gather(&heap, &shelves[shelf], &shelves[0], size);
		assert((block != NULL) == fits(shelf, 0, needed));
	}
	if (block == NULL)
		return;
	assert(block->asked == size && block->size == needed * NVS_BLOCK_UNIT);
	expect_taken_from(block, shelf, other);
	if (other != shelf)
		expect_rest_on(block->after, shelf);
	hold(block);
}

static void try_give(void)
{
	struct nvs_block **slot = &held[next_random() % HELD];
	if (*slot == NULL)
		return;
	int shelf = (int)(next_random() % SHELVES);
	CUdeviceptr base = (*slot)->base;
	uint64_t count = (*slot)->size / NVS_BLOCK_UNIT;
	nvs_block_give(*slot, &shelves[shelf], shelf == 0 ? 0 : epoch);
	*slot = NULL;
	for (uint64_t i = 0; i < count; i++)
		units_of(base)[i] = (struct unit){.where = 1 + shelf, .epoch = shelf == 0 ? 0 : epoch};
}

/* An event passed: nothing that was freed after it may be among what becomes everybody's. */
static void try_pour(void)
{
	int shelf = 1 + (int)(next_random() % (SHELVES - 1));
	uint64_t up_to = epoch - next_random() % (epoch < 4 ? 1 : 4);
	nvs_shelf_pour(&shelves[shelf], &shelves[0], up_to, 0);
	for (int i = 0; i < SEGMENTS; i++) {
		for (struct nvs_block *block = segments[i] != NULL ? segments[i]->first : NULL; block != NULL;
			block = block->after) {
			struct unit *unit = units_of(block->base);
			for (uint64_t k = 0; k < block->size / NVS_BLOCK_UNIT; k++) {
				if (unit[k].where != 1 + shelf)
					continue;
				if (block->shelf == &shelves[0]) {
					assert(unit[k].epoch <= up_to);
					unit[k] = (struct unit){.where = 1};
				} else {
					assert(block->shelf == &shelves[shelf] && block->epoch > up_to);
				}
			}
		}
	}
	epoch++;
}

static void try_segment(void)
{
	int i = (int)(next_random() % SEGMENTS);
	if (segments[i] == NULL) {
		add_segment(i);
	} else if (nvs_segment_is_free(segments[i], &shelves[0])) {
		nvs_segment_remove(segments[i]);
		segments[i] = NULL;
		for (unsigned k = 0; k < SEGMENT_UNITS; k++)
			units[i][k] = (struct unit){.where = -1};
	}
}

/* Every block is where the map says, of an epoch no older than any of its units, and no two neighbours could be one. */
static void check(void)
{
	uint64_t bytes[SHELVES] = {0}, used = 0, live = 0;
	for (int i = 0; i < SEGMENTS; i++) {
		uint64_t at = 0, in_segment = 0;
		if (segments[i] == NULL)
			continue;
		for (struct nvs_block *block = segments[i]->first; block != NULL; block = block->after) {
			struct unit *unit = units_of(block->base);
			int where = block->shelf != NULL ? 1 + (int)(block->shelf - shelves) : 0;
			assert(block->base == base_of(i) + at && block->size > 0);
			assert(block->after == NULL || block->after->before == block);
			assert(where == 0 || block->after == NULL || block->after->shelf != block->shelf);
			for (uint64_t k = 0; k < block->size / NVS_BLOCK_UNIT; k++)
				assert(unit[k].where == where && (where <= 1 || unit[k].epoch <= block->epoch));
			at += block->size;
			in_segment += where == 0;
			if (where > 0)
				bytes[where - 1] += block->size;
			else
				used += block->size;
		}
		assert(at == SEGMENT_BYTES && in_segment == segments[i]->live);
		live += in_segment;
	}
	for (int i = 0; i < SHELVES; i++)
		assert(shelves[i].bytes == bytes[i]);
	assert(heap.used == used && space.live == live && heap.used_high >= used);
}

static void check_lookups(void)
{
	for (int i = 0; i < HELD; i++) {
		if (held[i] == NULL)
			continue;
		CUdeviceptr p = held[i]->base;
		assert(nvs_block_at(&space, p) == held[i]);
		assert(nvs_block_around(&space, p + next_random() % held[i]->asked) == held[i]);
		assert(nvs_block_around(&space, p + held[i]->asked - 1) == held[i]);
		assert(nvs_block_around(&space, p + held[i]->asked) != held[i]);
		assert(held[i]->asked == 1 || nvs_block_at(&space, p + 1) == NULL);
	}
	for (int i = 0; i < SEGMENTS; i++)
		for (unsigned k = 0; k < SEGMENT_UNITS; k++)
			if (units[i][k].where != 0)
				assert(nvs_block_around(&space, base_of(i) + k * NVS_BLOCK_UNIT) == NULL);
}

static void test_random_sequences_match_a_plain_map(void)
{
	begin();
	add_segment(1);
	for (int step = 0; step < 60000; step++) {
		uint32_t what = next_random() % 100;
		if (what < 48)
			try_take();
		else if (what < 95)
			try_give();
		else if (what < 98)
			try_pour();
		else
			try_segment();
		if (step % 16 == 0)
			check();
		if (step % 512 == 0)
			check_lookups();
	}
	for (int i = 0; i < HELD; i++)
		if (held[i] != NULL)
			nvs_block_give(held[i], &shelves[1], epoch);
	for (int i = 1; i < SHELVES; i++)
		nvs_shelf_pour(&shelves[i], &shelves[0], UINT64_MAX, 0);
	end();
}

/* GIVEN a loop that allocates and frees the same sizes THEN it gets the same addresses each time. */
static void test_the_same_sizes_come_back_to_the_same_places(void)
{
	uint64_t sizes[] = {700, 5000, 77777, 512, 30000};
	CUdeviceptr first[5];
	begin();
	add_segment(0);
	for (int round = 0; round < 10; round++) {
		struct nvs_block *blocks[5];
		for (int i = 0; i < 5; i++) {
			blocks[i] = nvs_block_take(&heap, round == 0 ? &shelves[0] : &shelves[1], sizes[i]);
			assert(blocks[i] != NULL);
			if (round == 1)
				first[i] = blocks[i]->base;
			assert(round <= 1 || blocks[i]->base == first[i]);
		}
		for (int i = 0; i < 5; i++)
			nvs_block_give(blocks[i], &shelves[1], 1);
	}
	nvs_shelf_pour(&shelves[1], &shelves[0], 1, 0);
	end();
}

/* GIVEN one block that fits exactly and larger ones THEN the exact one is taken. */
static void test_the_closest_size_is_preferred(void)
{
	struct nvs_block *kept[4], *spaces[4];
	uint64_t sizes[] = {40 * KIB, 21 * KIB, 20 * KIB + 512, 90 * KIB};
	begin();
	add_segment(0);
	for (int i = 0; i < 4; i++) {
		spaces[i] = nvs_block_take(&heap, &shelves[0], sizes[i]);
		kept[i] = nvs_block_take(&heap, &shelves[0], 512);
	}
	CUdeviceptr closest = spaces[2]->base;
	for (int i = 0; i < 4; i++)
		nvs_block_give(spaces[i], &shelves[1], 1);
	struct nvs_block *block = nvs_block_take(&heap, &shelves[1], 20 * KIB + 1);
	assert(block->base == closest);
	nvs_block_give(block, &shelves[1], 1);
	for (int i = 0; i < 4; i++)
		nvs_block_give(kept[i], &shelves[1], 1);
	nvs_shelf_pour(&shelves[1], &shelves[0], 1, 0);
	end();
}

static void test_sizes_beyond_all_bounds_are_not_there(void)
{
	begin();
	add_segment(0);
	assert(nvs_block_take(&heap, &shelves[0], UINT64_MAX) == NULL);
	assert(nvs_block_take(&heap, &shelves[0], SEGMENT_BYTES + 1) == NULL);
	assert(nvs_block_gather(&heap, &shelves[1], &shelves[0], UINT64_MAX) == NULL);
	assert(nvs_block_class(UINT64_MAX / 512 * 512) < NVS_BLOCK_CLASSES);
	end();
}

int main(void)
{
	test_random_sequences_match_a_plain_map();
	test_the_same_sizes_come_back_to_the_same_places();
	test_the_closest_size_is_preferred();
	test_sizes_beyond_all_bounds_are_not_there();
	puts("PASS");
	return 0;
}
