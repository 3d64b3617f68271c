/* Contents of a piece of physical memory, sparse: extents that are undefined, filled with one 32-bit word, or real
 * bytes. Filling or reading gigabytes of uniform data costs as much as one word. Knows nothing of CUDA. */
#ifndef NVS_SIM_CONTENTS_H
#define NVS_SIM_CONTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostpages.h"

/* What never written memory reads as: not zero, so that a program that relies on zeros is found out. */
#define NVS_UNDEFINED_PATTERN 0xa5c3a5c3u

struct nvs_extent;

struct nvs_contents {
	size_t size;
	uint8_t *raw;      /* memory of the host (managed, pinned): no extents */
	bool exchangeable; /* raw: its pages may be replaced by others with the same bytes */
	struct nvs_extent *extents;
	size_t count, room;
};

bool nvs_contents_init(struct nvs_contents *contents, size_t size, void *raw);
void nvs_contents_free(struct nvs_contents *contents);
/* All of it moves to memory of the host, and is there from now on. */
void nvs_contents_move(struct nvs_contents *contents, void *raw);
/* The longest stretch of one kind at offset, at most `max`. Valid until the next change. */
struct nvs_view nvs_contents_view(const struct nvs_contents *contents, size_t offset, size_t max);
/* False: no host memory for it. */
bool nvs_contents_fill(struct nvs_contents *contents, size_t offset, size_t length, uint32_t pattern);
bool nvs_contents_write(struct nvs_contents *contents, size_t offset, size_t length, const void *from);
/* Write the stretch at `offset` (for the phase of the pattern) to memory. */
void nvs_view_copy(const struct nvs_view *view, size_t offset, void *to, size_t length);

#endif
