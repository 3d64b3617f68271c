/* Addresses of one process: reserved ranges, and what is mapped into them. */
#ifndef NVS_SIM_VSPACE_H
#define NVS_SIM_VSPACE_H

#include "contents.h"
#include "pagemap.h"
#include "sim.h"

enum nvs_mapping_kind { NVS_ALLOCATED, NVS_MAPPED, NVS_POOLED, NVS_MANAGED, NVS_PINNED, NVS_REGISTERED };

/* Physical memory. It lives while it is mapped or has a handle. */
struct nvs_physical {
	struct nvs_contents contents;
	unsigned gpu;
	int slot;                    /* that is charged, -1: none */
	uint64_t charged;            /* bytes of the card */
	uint64_t pinned;             /* bytes of the host */
	struct nvs_managed *managed; /* where its parts are, NULL: not managed */
	uint64_t handles, mappings;
	CUmemAllocationProp prop;  /* of what cuMemCreate made */
	uint64_t handle;           /* number the application knows it by, 0: none */
	struct nvs_kept_file file; /* that holds the contents, shared with other processes; not open: it is not */
	struct nvs_physical *next;
};

struct nvs_mapping {
	uint64_t start, size;
	enum nvs_mapping_kind kind;
	struct nvs_physical *physical;
	uint64_t offset;
	uint64_t access; /* bit set: this GPU may use it */
	uint64_t id;
	CUcontext ctx; /* that owns it, NULL: none */
	CUmemoryPool pool;
	struct nvs_block *block; /* NULL: has its memory to itself */
};

/* Reserve n bytes (multiple of 2 MiB) of addresses at a multiple of `align`, at `hint` if that is free. 0: none left.
 */
uint64_t nvs_reserve(uint64_t n, uint64_t align, uint64_t hint);
/* Give back exactly what was reserved; false when it was not, or when something is mapped in it. */
bool nvs_unreserve(uint64_t start, uint64_t n);
bool nvs_is_reserved(uint64_t start, uint64_t n);
/* In the part of the address space that only the device uses? */
bool nvs_is_device_address(uint64_t address);

/* The mapping that contains an address, or NULL. Valid until the next change. */
struct nvs_mapping *nvs_mapping_at(uint64_t address);
/* The first mapping that ends after address, or NULL. */
struct nvs_mapping *nvs_mapping_from(uint64_t address);
bool nvs_mapping_overlaps(uint64_t start, uint64_t n);
/* Add; the physical memory gets one more mapping. False: no memory of the host. */
bool nvs_mapping_add(const struct nvs_mapping *mapping);
/* Remove; frees the physical memory when that was its last use. */
void nvs_mapping_remove(struct nvs_mapping *mapping);
/* Remove one that `matches`, as often as there is one. */
struct nvs_mapping *nvs_mapping_find_context(CUcontext ctx);

/* Physical memory of `charge` bytes on a GPU, charged to the slot; raw: the host memory that holds the contents. */
CUresult nvs_physical_new(unsigned gpu, int slot, uint64_t size, uint64_t charge, void *raw, struct nvs_physical **out);
/* After a use was dropped. */
void nvs_physical_put(struct nvs_physical *physical);
struct nvs_physical *nvs_physical_of(CUmemGenericAllocationHandle handle);
void nvs_physical_give_handle(struct nvs_physical *physical);

/* shareable.c: this process no longer uses it. Others may. */
void nvs_physical_unshare(struct nvs_physical *physical);

/* memory.c: free what cuMemAlloc and its kin made, at once. */
void nvs_memory_free(struct nvs_mapping *mapping);
/* hostmem.c: anonymous memory of the host, known to the driver as `kind`. */
CUresult nvs_host_allocate(enum nvs_mapping_kind kind, CUcontext ctx, size_t n, struct nvs_physical **out);

/* managed.c: bring managed memory to the GPU before work uses it; ns that takes. */
double nvs_managed_fault(CUcontext ctx, uint64_t address, uint64_t n);
void nvs_managed_free(struct nvs_managed *managed);

#endif
