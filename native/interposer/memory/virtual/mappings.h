/* The addresses that the application manages itself: what it has reserved, and what it has mapped there. One thread at
 * a time is in here; the caller (virtual.c) sees to that. */
#ifndef NVS_MAPPINGS_H
#define NVS_MAPPINGS_H

#include <stdbool.h>

#include "memory/swap/backing.h"
#include "memory/table.h"

struct nvs_token;

struct nvs_mapping {
	struct nvs_view view;        /* first: begins with its range */
	struct nvs_token *token;     /* whose memory it shows; NULL: the driver's own */
	struct nvs_allocation shown; /* in the table, if it has a token */
};

/* False when something is mapped there, or host memory is short. */
bool nvs_mappings_add(struct nvs_mapping *mapping);
/* The caller frees the structure. */
void nvs_mappings_remove(struct nvs_mapping *mapping);

/* The one that holds this address, or NULL. */
struct nvs_mapping *nvs_mappings_at(CUdeviceptr p);
/* The first one that reaches into the addresses from `p` to `end`, or NULL. */
struct nvs_mapping *nvs_mappings_first(CUdeviceptr p, CUdeviceptr end);
/* Is anything mapped in the range? */
bool nvs_mappings_any(CUdeviceptr p, size_t n);

/* What a range is to a call that takes whole mappings only. */
enum nvs_row {
	NVS_ROW_OF_DRIVER, /* nothing of ours is in it: the driver knows */
	NVS_ROW_WITH_OURS, /* whole mappings, one behind the other, some of them ours */
	NVS_ROW_BROKEN,    /* a part of one, or a gap between some */
};
enum nvs_row nvs_mappings_row(CUdeviceptr p, size_t n);

/* The mapping behind this one in a row that ends at `end`; NULL: there is none. */
static inline struct nvs_mapping *nvs_mappings_next(const struct nvs_mapping *mapping, CUdeviceptr end)
{
	CUdeviceptr at = mapping->view.at.base + mapping->view.at.size;
	return at < end ? nvs_mappings_at(at) : NULL;
}

/* What was reserved. One that host memory was too short to remember is unknown, no more. */
void nvs_reserved_add(CUdeviceptr p, size_t n);
/* False when it is unknown. */
bool nvs_reserved_remove(CUdeviceptr p, size_t n);
/* Does it lie in one that is known? */
bool nvs_reserved_holds(CUdeviceptr p, size_t n);

void nvs_mappings_after_fork(void);

#endif
