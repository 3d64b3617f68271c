/* Host memory for what is not on the card: page-locked buffers, one per chunk, made of populated huge pages. Making one
 * costs more than the copy it serves, so it is done in steps and ahead of need; it is then kept as long as its chunk
 * lives. */
#ifndef NVS_HOSTMEM_H
#define NVS_HOSTMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct nvs_host_buffer {
	void *base;
	size_t size;
	size_t populated;        /* bytes from the start that have their pages */
	bool failed;             /* the host had no pages for it after all: of no use */
	CUcontext registered_in; /* NULL: not page-locked */
	struct nvs_host_buffer *next, *previous;
};

/* Set aside host memory for that much, to be taken later. False: neither the host nor the container has room. */
bool nvs_host_promise(uint64_t bytes);
void nvs_host_forgive(uint64_t bytes);

/* A buffer without pages yet, or NULL when there is no room. `promised`: its bytes were set aside before, and are taken
 * out of that. */
struct nvs_host_buffer *nvs_host_begin(size_t size, bool promised);
/* Do a part of what is left: some ten milliseconds. True when it is ready, or has failed. A context must be current. */
bool nvs_host_step(struct nvs_host_buffer *buffer);
/* No copy may use it any more. */
void nvs_host_free(struct nvs_host_buffer *buffer);

/* Page locks end with the context they were made in. No copy is under way; the context is current. */
void nvs_host_context_ends(CUcontext context);

void nvs_host_after_fork(void);

/* ---- hostroom.c ---- */

/* Bytes that this process may still take without pushing the host or its container (cgroup, v1 or v2) to their limits.
 */
uint64_t nvs_host_room(void);

#endif
