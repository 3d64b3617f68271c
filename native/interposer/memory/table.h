/* The allocation table: every device pointer that we handed out, and every address at which the application mapped
 * memory of ours, found by any address inside it. One lock of its own, held for lookups only, never across a driver
 * call or a round trip to the scheduler. */
#ifndef NVS_TABLE_H
#define NVS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct nvs_backing;
struct nvs_import;
struct nvs_slab;

struct nvs_allocation {
	CUdeviceptr base;
	size_t size; /* as the application asked */
	CUdevice device;
	CUdeviceptr home;            /* where its backing has this memory; set by nvs_table_insert, but for a view */
	bool is_view;                /* mapped by the application itself (virtual.c): not to be freed by its address */
	CUcontext context;           /* the owner: destroying it frees this; NULL: none, it is a view */
	uint64_t id;                 /* unique for the life of the process, never reused, set by nvs_table_insert */
	struct nvs_backing *backing; /* its own memory, or NULL for a piece of a slab */
	struct nvs_slab *slab;
	struct nvs_import *import; /* memory of another process (ipc/imports.c), which has neither; or NULL */
	bool exported;             /* other processes may ask for it (ipc/exports.c) */
	CUmemoryPool pool;         /* that it came from in stream order (ordered.c), or NULL */
	bool parked;               /* freed by the application, kept until the work that may use it is finished */
	struct nvs_allocation *next, *previous;
	struct nvs_allocation *next_parked;
};

enum nvs_parking {
	NVS_PARKED,     /* it was live and is parked now */
	NVS_NOT_A_BASE, /* inside an allocation of ours, or one that is freed already, a view, or not to be freed so */
	NVS_NOT_OURS,
};

/* False when host memory is short, or something of ours is there already; nothing changed then. The table keeps the
 * pointer until it is removed. */
bool nvs_table_insert(struct nvs_allocation *allocation);

/* Copies the live allocation that holds `p`. False when there is none. */
bool nvs_table_find(CUdeviceptr p, struct nvs_allocation *copy);

/* Other processes may ask for the live allocation that holds `p`, from now on. */
void nvs_table_export(CUdeviceptr p);

/* The application frees `p`: move its allocation to the parked ones. The second one is for memory of another process,
 * and for nothing else. */
enum nvs_parking nvs_table_park(CUdeviceptr p);
enum nvs_parking nvs_table_park_import(CUdeviceptr p);
/* Park all that a context owns. */
void nvs_table_park_context(CUcontext context);

/* How much is parked. */
void nvs_table_parked(size_t *count, size_t *bytes);

/* Take all parked allocations off the parking list, as a list by next_parked; they stay in the table, so that their
 * addresses still answer as freed ones. Then either remove each one, or put the whole list back. */
struct nvs_allocation *nvs_table_take_parked(void);
void nvs_table_put_back_parked(struct nvs_allocation *list);

/* Remove from the table; the caller frees the structure. Before its address is given back to the driver, which may hand
 * it out again at once. */
void nvs_table_remove(struct nvs_allocation *allocation);

void nvs_table_after_fork(void);

#endif
