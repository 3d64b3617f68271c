#include "memory/ordered/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"

#define WORD 64u
#define FIRST_BUCKETS 256u
/* Looked at in the class of the wanted size before a larger class is preferred. */
#define A_FEW 8u
/* Far from the driver's own buffer ids and from those of table.c. */
#define FIRST_ID (1ull << 49)

/* ---- classes of size ---- */

unsigned nvs_block_class(uint64_t size)
{
	uint64_t units = size / NVS_BLOCK_UNIT;
	if (units < 16)
		return (unsigned)units;
	unsigned power = 63u - (unsigned)__builtin_clzll(units);
	unsigned class = (power - 3) * 16 + (unsigned)((units >> (power - 4)) & 15);
	return class < NVS_BLOCK_CLASSES ? class : NVS_BLOCK_CLASSES - 1;
}

/* The first class from this one on that has a block; NVS_BLOCK_CLASSES when none has. */
static unsigned filled_from(const struct nvs_shelf *shelf, unsigned class)
{
	for (unsigned word = class / WORD; word < NVS_BLOCK_CLASSES / WORD; word++) {
		uint64_t bits = shelf->filled[word];
		if (word == class / WORD)
			bits &= ~0ull << class % WORD;
		if (bits != 0)
			return word * WORD + (unsigned)__builtin_ctzll(bits);
	}
	return NVS_BLOCK_CLASSES;
}

/* ---- shelves ---- */

static void put_on_shelf(struct nvs_shelf *shelf, struct nvs_block *block, uint64_t epoch)
{
	unsigned class = nvs_block_class(block->size);
	struct nvs_block **first = &shelf->first[class];
	block->shelf = shelf;
	block->epoch = epoch;
	block->class = class;
	NVS_LIST_PUSH(*first, block);
	shelf->filled[class / WORD] |= 1ull << class % WORD;
	shelf->bytes += block->size;
}

static void take_from_shelf(struct nvs_block *block)
{
	struct nvs_shelf *shelf = block->shelf;
	if (block->next != NULL)
		block->next->previous = block->previous;
	if (block->previous != NULL) {
		block->previous->next = block->next;
	} else {
		unsigned class = block->class;
		shelf->first[class] = block->next;
		if (block->next == NULL)
			shelf->filled[class / WORD] &= ~(1ull << class % WORD);
	}
	shelf->bytes -= block->size;
	block->shelf = NULL;
}

static struct nvs_block *best_of(struct nvs_block *list, uint64_t size, unsigned count)
{
	struct nvs_block *best = NULL;
	for (; list != NULL && count > 0; list = list->next, count--) {
		if (list->size == size)
			return list;
		if (list->size > size && (best == NULL || list->size < best->size))
			best = list;
	}
	return best;
}

/* Every block of a larger class fits; in the class itself some may be too small. */
static struct nvs_block *find_fit(const struct nvs_shelf *shelf, uint64_t size)
{
	unsigned class = nvs_block_class(size);
	struct nvs_block *found = best_of(shelf->first[class], size, A_FEW);
	if (found != NULL)
		return found;
	unsigned larger = filled_from(shelf, class + 1);
	if (larger < NVS_BLOCK_CLASSES)
		return shelf->first[larger];
	return best_of(shelf->first[class], size, UINT32_MAX);
}

/* ---- live blocks ---- */

static struct nvs_block **live_bucket(const struct nvs_space *space, CUdeviceptr base)
{
	uint64_t mixed = base / NVS_BLOCK_UNIT * 0x9e3779b97f4a7c15ull;
	return &space->buckets[(mixed >> 32) & space->bucket_mask];
}

/* Without host memory the buckets stay as they are, and get longer. False when there are none at all. */
static __attribute__((noinline, cold)) bool make_buckets(struct nvs_space *space)
{
	uint64_t count = space->buckets == NULL ? FIRST_BUCKETS : (space->bucket_mask + 1) * 2;
	struct nvs_block **old = space->buckets, **made = calloc(count, sizeof(struct nvs_block *));
	if (made == NULL)
		return old != NULL;
	uint64_t old_count = old != NULL ? space->bucket_mask + 1 : 0;
	space->buckets = made;
	space->bucket_mask = count - 1;
	for (uint64_t i = 0; i < old_count; i++) {
		for (struct nvs_block *block = old[i], *next; block != NULL; block = next) {
			next = block->next;
			struct nvs_block **bucket = live_bucket(space, block->base);
			block->next = *bucket;
			*bucket = block;
		}
	}
	free(old);
	return true;
}

/* The number of its first unit in the segment. */
static inline uint64_t start_of(const struct nvs_block *block)
{
	return (block->base - block->segment->base) / NVS_BLOCK_UNIT;
}

static inline void mark_start(const struct nvs_block *block)
{
	struct nvs_segment *segment = block->segment;
	uint64_t unit = start_of(block), word = unit / WORD;
	segment->starts[word] |= 1ull << unit % WORD;
	segment->summary[word / WORD] |= 1ull << word % WORD;
}

static inline void unmark_start(const struct nvs_block *block)
{
	struct nvs_segment *segment = block->segment;
	uint64_t unit = start_of(block), word = unit / WORD;
	segment->starts[word] &= ~(1ull << unit % WORD);
	if (segment->starts[word] == 0)
		segment->summary[word / WORD] &= ~(1ull << word % WORD);
}

static void becomes_live(struct nvs_heap *heap, struct nvs_block *block, uint64_t asked)
{
	struct nvs_space *space = heap->space;
	if (++space->live > space->bucket_mask)
		make_buckets(space);
	struct nvs_block **bucket = live_bucket(space, block->base);
	block->asked = asked;
	block->id = FIRST_ID + space->ids++;
	block->next = *bucket;
	*bucket = block;
	mark_start(block);
	block->segment->touched = heap->period;
	block->segment->live++;
	heap->used += block->size;
	if (heap->used > heap->used_high)
		heap->used_high = heap->used;
}

static void stops_living(struct nvs_block *block)
{
	struct nvs_heap *heap = block->segment->heap;
	struct nvs_block **link = live_bucket(heap->space, block->base);
	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	heap->space->live--;
	block->segment->live--;
	heap->used -= block->size;
	unmark_start(block);
}

/* ---- cutting and merging ---- */

static struct nvs_block *new_block(struct nvs_space *space)
{
	struct nvs_block *block = space->spare;
	if (block == NULL)
		return malloc(sizeof(*block));
	space->spare = block->next;
	return block;
}

static void drop_block(struct nvs_space *space, struct nvs_block *block)
{
	block->next = space->spare;
	space->spare = block;
}

/* Cut a block that is on no shelf; the rest is the answer. NULL: it has just this size, or there is no host memory to
 * remember the rest, and then it stays whole. */
static struct nvs_block *cut(struct nvs_block *block, uint64_t size)
{
	if (block->size == size)
		return NULL;
	struct nvs_block *rest = new_block(block->segment->heap->space);
	if (rest == NULL)
		return NULL;
	rest->base = block->base + size;
	rest->size = block->size - size;
	rest->segment = block->segment;
	rest->before = block;
	rest->after = block->after;
	if (rest->after != NULL)
		rest->after->before = rest;
	block->after = rest;
	block->size = size;
	return rest;
}

/* Both are on no shelf; the first takes the second in. */
static void join(struct nvs_block *block, struct nvs_block *next)
{
	block->size += next->size;
	block->after = next->after;
	if (block->after != NULL)
		block->after->before = block;
	drop_block(block->segment->heap->space, next);
}

/* Put a block that is on none on a shelf, together with neighbours that are there. */
static void merge_onto(struct nvs_shelf *shelf, struct nvs_block *block, uint64_t epoch)
{
	struct nvs_block *before = block->before, *after = block->after;
	if (after != NULL && after->shelf == shelf) {
		epoch = after->epoch > epoch ? after->epoch : epoch;
		take_from_shelf(after);
		join(block, after);
	}
	if (before != NULL && before->shelf == shelf) {
		epoch = before->epoch > epoch ? before->epoch : epoch;
		take_from_shelf(before);
		join(before, block);
		block = before;
	}
	put_on_shelf(shelf, block, epoch);
}

static uint64_t in_units(uint64_t size)
{
	return (size + NVS_BLOCK_UNIT - 1) / NVS_BLOCK_UNIT * NVS_BLOCK_UNIT;
}

/* Flat, as is the free: with the calls inside them they would cost a sixth more. */
__attribute__((flatten)) struct nvs_block *nvs_block_take(struct nvs_heap *heap, struct nvs_shelf *shelf, uint64_t size)
{
	uint64_t asked = size;
	size = in_units(size);
	if (size > shelf->bytes || size < asked)
		return NULL;
	struct nvs_block *block = find_fit(shelf, size);
	if (block == NULL)
		return NULL;
	take_from_shelf(block);
	struct nvs_block *rest = cut(block, size);
	if (rest != NULL)
		put_on_shelf(shelf, rest, block->epoch);
	becomes_live(heap, block, asked);
	return block;
}

__attribute__((flatten)) void nvs_block_give(struct nvs_block *block, struct nvs_shelf *shelf, uint64_t epoch)
{
	stops_living(block);
	merge_onto(shelf, block, epoch);
}

/* ---- across shelves ---- */

/* A run of neighbours on either shelf, of `bytes` together. */
struct run {
	struct nvs_block *first;
	uint64_t bytes;
};

static bool is_on(const struct nvs_block *block, const struct nvs_shelf *one, const struct nvs_shelf *other)
{
	return block->shelf != NULL && (block->shelf == one || block->shelf == other);
}

static struct run best_run(struct nvs_segment *segment, const struct nvs_shelf *one, const struct nvs_shelf *other,
	uint64_t size, struct run best)
{
	struct run run = {0};
	for (struct nvs_block *block = segment->first; block != NULL; block = block->after) {
		if (!is_on(block, one, other))
			continue;
		if (run.first == NULL || !is_on(block->before, one, other))
			run = (struct run){.first = block};
		run.bytes += block->size;
		bool ends = block->after == NULL || !is_on(block->after, one, other);
		if (ends && run.bytes >= size && (best.first == NULL || run.bytes < best.bytes))
			best = run;
	}
	return best;
}

struct nvs_block *nvs_block_gather(
	struct nvs_heap *heap, struct nvs_shelf *shelf, struct nvs_shelf *other, uint64_t size)
{
	uint64_t asked = size, epoch = 0;
	struct run best = {0};
	size = in_units(size);
	if (size < asked)
		return NULL;
	for (struct nvs_segment *segment = heap->segments; segment != NULL; segment = segment->next)
		best = best_run(segment, shelf, other, size, best);
	struct nvs_block *block = best.first;
	if (block == NULL)
		return NULL;
	epoch = block->shelf == shelf ? block->epoch : 0;
	take_from_shelf(block);
	while (block->size < best.bytes) {
		struct nvs_block *next = block->after;
		if (next->shelf == shelf && next->epoch > epoch)
			epoch = next->epoch;
		take_from_shelf(next);
		join(block, next);
	}
	struct nvs_block *rest = cut(block, size);
	if (rest != NULL)
		put_on_shelf(shelf, rest, epoch);
	becomes_live(heap, block, asked);
	return block;
}

void nvs_shelf_pour(struct nvs_shelf *from, struct nvs_shelf *to, uint64_t epoch, uint64_t as)
{
	for (unsigned class = filled_from(from, 0); class < NVS_BLOCK_CLASSES; class = filled_from(from, class + 1)) {
		for (struct nvs_block *block = from->first[class], *next; block != NULL; block = next) {
			next = block->next;
			if (block->epoch > epoch)
				continue;
			take_from_shelf(block);
			merge_onto(to, block, as);
		}
	}
}

/* ---- segments ---- */

/* The place of the first segment that begins after `p`. */
static size_t place_after(const struct nvs_space *space, CUdeviceptr p)
{
	size_t low = 0, high = space->segment_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (space->segments[middle]->base > p)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static bool list_segment(struct nvs_space *space, struct nvs_segment *segment)
{
	if (space->segment_count == space->segment_capacity) {
		size_t capacity = space->segment_capacity == 0 ? 64 : space->segment_capacity * 2;
		struct nvs_segment **larger = realloc(space->segments, capacity * sizeof(struct nvs_segment *));
		if (larger == NULL)
			return false;
		space->segments = larger;
		space->segment_capacity = capacity;
	}
	size_t at = place_after(space, segment->base);
	memmove(&space->segments[at + 1], &space->segments[at],
		(space->segment_count - at) * sizeof(struct nvs_segment *));
	space->segments[at] = segment;
	space->segment_count++;
	return true;
}

static void free_segment(struct nvs_segment *segment)
{
	free(segment->starts);
	free(segment->summary);
	free(segment);
}

static struct nvs_segment *new_segment(CUdeviceptr base, uint64_t size)
{
	struct nvs_segment *segment = calloc(1, sizeof(*segment));
	if (segment == NULL)
		return NULL;
	size_t words = (size / NVS_BLOCK_UNIT + WORD - 1) / WORD;
	segment->base = base;
	segment->size = size;
	segment->starts = calloc(words, sizeof(uint64_t));
	segment->summary = calloc((words + WORD - 1) / WORD, sizeof(uint64_t));
	if (segment->starts != NULL && segment->summary != NULL)
		return segment;
	free_segment(segment);
	return NULL;
}

struct nvs_segment *nvs_segment_add(
	struct nvs_heap *heap, struct nvs_backing *backing, CUdeviceptr base, uint64_t size, struct nvs_shelf *shelf)
{
	struct nvs_space *space = heap->space;
	if (space->buckets == NULL && !make_buckets(space))
		return NULL;
	struct nvs_segment *segment = new_segment(base, size);
	struct nvs_block *block = new_block(space);
	if (segment == NULL || block == NULL || !list_segment(space, segment)) {
		if (segment != NULL)
			free_segment(segment);
		if (block != NULL)
			drop_block(space, block);
		return NULL;
	}
	segment->heap = heap;
	segment->backing = backing;
	segment->touched = heap->period;
	segment->first = block;
	segment->next = heap->segments;
	heap->segments = segment;
	heap->reserved += size;
	if (heap->reserved > heap->reserved_high)
		heap->reserved_high = heap->reserved;
	*block = (struct nvs_block){.base = base, .size = size, .segment = segment};
	put_on_shelf(shelf, block, 0);
	return segment;
}

bool nvs_segment_is_free(const struct nvs_segment *segment, const struct nvs_shelf *shelf)
{
	return segment->first->size == segment->size && segment->first->shelf == shelf;
}

void nvs_segment_remove(struct nvs_segment *segment)
{
	struct nvs_heap *heap = segment->heap;
	struct nvs_space *space = heap->space;
	struct nvs_segment **link = &heap->segments;
	while (*link != segment)
		link = &(*link)->next;
	*link = segment->next;
	size_t at = place_after(space, segment->base) - 1;
	space->segment_count--;
	memmove(&space->segments[at], &space->segments[at + 1],
		(space->segment_count - at) * sizeof(struct nvs_segment *));
	heap->reserved -= segment->size;
	take_from_shelf(segment->first);
	drop_block(space, segment->first);
	free_segment(segment);
}

/* ---- looking up ---- */

struct nvs_block *nvs_block_at(const struct nvs_space *space, CUdeviceptr p)
{
	if (space->buckets == NULL)
		return NULL;
	struct nvs_block *block = *live_bucket(space, p);
	while (block != NULL && block->base != p)
		block = block->next;
	return block;
}

struct nvs_segment *nvs_segment_around(const struct nvs_space *space, CUdeviceptr p)
{
	size_t at = place_after(space, p);
	if (at == 0 || p - space->segments[at - 1]->base >= space->segments[at - 1]->size)
		return NULL;
	return space->segments[at - 1];
}

/* The last set bit at or before `bit`; false when there is none. */
static bool last_bit(const uint64_t *words, uint64_t *bit)
{
	uint64_t word = *bit / WORD, bits = words[word] & ~0ull >> (WORD - 1 - *bit % WORD);
	while (bits == 0 && word > 0)
		bits = words[--word];
	*bit = word * WORD + (bits != 0 ? WORD - 1 - (uint64_t)__builtin_clzll(bits) : 0);
	return bits != 0;
}

struct nvs_block *nvs_block_around(const struct nvs_space *space, CUdeviceptr p)
{
	const struct nvs_segment *segment = nvs_segment_around(space, p);
	if (segment == NULL)
		return NULL;
	uint64_t unit = (p - segment->base) / NVS_BLOCK_UNIT, word = unit / WORD;
	uint64_t near = segment->starts[word] & ~0ull >> (WORD - 1 - unit % WORD);
	if (near == 0) {
		if (word == 0)
			return NULL;
		word--;
		if (!last_bit(segment->summary, &word))
			return NULL;
		near = segment->starts[word];
	}
	unit = word * WORD + WORD - 1 - (uint64_t)__builtin_clzll(near);
	struct nvs_block *block = nvs_block_at(space, segment->base + unit * NVS_BLOCK_UNIT);
	return p - block->base < block->asked ? block : NULL;
}
