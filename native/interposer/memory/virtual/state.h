/* What the files of this folder share, and what tests look into. */
#ifndef NVS_VIRTUAL_STATE_H
#define NVS_VIRTUAL_STATE_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda_abi.h"
#include "memory/swap/backing.h"

/* Neither an address on any machine nor a small number: no handle of the driver's. */
#define NVS_TOKEN_TAG 0x6e76ull
#define NVS_TOKEN_SHIFT 48

struct nvs_token {
	CUmemGenericAllocationHandle value;
	unsigned references; /* handles that the application holds */
	struct nvs_backing *backing;
	size_t granularity;
	struct nvs_token *next; /* of those that are done with */
};

static inline bool nvs_is_token(CUmemGenericAllocationHandle handle)
{
	return handle >> NVS_TOKEN_SHIFT == NVS_TOKEN_TAG;
}

/* One change of tokens and views at a time: held across the driver calls that make it. Neither the mover nor the link
 * nor a submission takes it, and who holds it waits for a chunk on its way at most. */
extern pthread_mutex_t nvs_virtual_lock __attribute__((visibility("hidden")));

/* Balanced trees (tsearch), guarded by that lock: of struct nvs_token (virtual.c), and of struct nvs_mapping and struct
 * nvs_range (mappings.c). */
extern void *nvs_token_tree __attribute__((visibility("hidden")));
extern void *nvs_mapping_tree __attribute__((visibility("hidden")));
extern void *nvs_reserved_tree __attribute__((visibility("hidden")));

/* The lock is held. NULL: the application has released it, or never had it. */
struct nvs_token *nvs_token_find(CUmemGenericAllocationHandle handle);
/* The lock is held: when nobody has it or shows it any more, put it aside. False: somebody does. */
bool nvs_token_put_aside(struct nvs_token *token, struct nvs_token **done);
/* Free those that were put aside, with their memory. The lock is not held. */
void nvs_tokens_discard(struct nvs_token *done);

/* All of it is on the card. */
bool nvs_backing_is_present(const struct nvs_backing *backing);

#endif
