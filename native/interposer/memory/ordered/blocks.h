/* Blocks of device memory inside larger segments: which are handed out, which are free, and who may have a free one.
 * Pure: no lock, no driver, no clock; the caller guards it and brings the memory.
 *
 * A segment is cut without gaps into blocks. A block is live, or lies on a shelf. Who uses a shelf decides what being
 * on it means (see ordered.c: one for each stream, one for all). Neighbours on one shelf are merged. Each block on a
 * shelf carries an epoch, a number of the giver's choice; merged ones carry the largest. */
#ifndef NVS_BLOCKS_H
#define NVS_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define NVS_BLOCK_UNIT 512u

/* Classes of size: 16 to each power of two, exact up to 16 units. */
#define NVS_BLOCK_CLASSES 576u

struct nvs_backing;
struct nvs_heap;
struct nvs_segment;
struct nvs_shelf;

struct nvs_block {
	CUdeviceptr base;
	uint64_t size; /* a multiple of the unit */
	struct nvs_segment *segment;
	struct nvs_shelf *shelf;           /* NULL: live */
	struct nvs_block *before, *after;  /* its neighbours in the segment */
	struct nvs_block *next, *previous; /* on its shelf; `next` also for a live one, in its bucket */
	uint64_t asked;                    /* live: the size that was asked for */
	uint64_t id;                       /* live: unique for the life of the process */
	uint64_t epoch;                    /* on a shelf */
	unsigned class;                    /* on a shelf: of its size */
};

/* The class of a size. */
unsigned nvs_block_class(uint64_t size);

/* Free blocks by class of size. All zero: empty. */
struct nvs_shelf {
	uint64_t bytes;
	uint64_t filled[NVS_BLOCK_CLASSES / 64]; /* bit per class that has a block */
	struct nvs_block *first[NVS_BLOCK_CLASSES];
};

struct nvs_segment {
	struct nvs_heap *heap;
	struct nvs_backing *backing; /* the caller's */
	CUdeviceptr base;
	uint64_t size;
	uint64_t touched; /* the heap's period when a block was last taken from it */
	uint64_t live;    /* blocks */
	struct nvs_block *first;
	struct nvs_segment *next;
	uint64_t *starts;  /* bit per unit: a live block begins here */
	uint64_t *summary; /* bit per word of `starts` that is not zero */
};

/* Every segment and every live block, whichever heap they belong to. All zero: empty. */
struct nvs_space {
	struct nvs_segment **segments; /* by address */
	size_t segment_count, segment_capacity;
	struct nvs_block **buckets; /* of live blocks, by base */
	uint64_t bucket_mask;       /* 0: no bucket yet */
	uint64_t live;
	uint64_t ids;
	struct nvs_block *spare; /* structures for reuse, by `next` */
};

/* The segments of one owner. All zero but `space`: empty. */
struct nvs_heap {
	struct nvs_space *space;
	struct nvs_segment *segments;
	uint64_t reserved, used; /* bytes of segments, of live blocks */
	uint64_t reserved_high, used_high;
	uint64_t period; /* see struct nvs_segment */
};

/* ---- segments ---- */

/* New memory; all of it is one block on `shelf`. NULL without host memory: nothing changed. */
struct nvs_segment *nvs_segment_add(
	struct nvs_heap *heap, struct nvs_backing *backing, CUdeviceptr base, uint64_t size, struct nvs_shelf *shelf);
/* Is all of it one block on that shelf? */
bool nvs_segment_is_free(const struct nvs_segment *segment, const struct nvs_shelf *shelf);
/* It is free. The structure is gone afterwards. */
void nvs_segment_remove(struct nvs_segment *segment);

/* ---- blocks ---- */

/* A block of at least `size` (> 0) bytes from the shelf, live now; what is left of it stays on the shelf. NULL when
 * there is none. Close to the best fit: of the size's own class the best of a few, else of the next class that has one.
 */
struct nvs_block *nvs_block_take(struct nvs_heap *heap, struct nvs_shelf *shelf, uint64_t size);
/* The same from neighbours that lie on either shelf, together; what is left goes on the first. Looks at every block of
 * the heap. */
struct nvs_block *nvs_block_gather(
	struct nvs_heap *heap, struct nvs_shelf *shelf, struct nvs_shelf *other, uint64_t size);
/* Put a live block on a shelf. */
void nvs_block_give(struct nvs_block *block, struct nvs_shelf *shelf, uint64_t epoch);
/* Move all blocks of an epoch up to this one to the other shelf, where they carry the epoch `as`. */
void nvs_shelf_pour(struct nvs_shelf *from, struct nvs_shelf *to, uint64_t epoch, uint64_t as);

/* The live block that begins at `p`, or the one that holds `p`; NULL when there is none. */
struct nvs_block *nvs_block_at(const struct nvs_space *space, CUdeviceptr p);
struct nvs_block *nvs_block_around(const struct nvs_space *space, CUdeviceptr p);
/* The segment that holds `p`, NULL when there is none. */
struct nvs_segment *nvs_segment_around(const struct nvs_space *space, CUdeviceptr p);

#endif
