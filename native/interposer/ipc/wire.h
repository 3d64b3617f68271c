/* What the two processes tell each other. The handle travels with the application; everything else comes from the
 * exporter itself, over a socket. Pure: no socket, no CUDA call. */
#ifndef NVS_IPC_WIRE_H
#define NVS_IPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define NVS_IPC_SECRET 16
#define NVS_IPC_BATCH 32u            /* descriptors in one answer: the receiver may have few left */
#define NVS_IPC_CHUNKS (1u << 16)    /* of one allocation */
#define NVS_IPC_LARGEST (1ull << 48) /* bytes of one allocation */
#define NVS_IPC_ADDRESS_BYTES 48

/* In the 64 bytes that an application knows as CUipcMemHandle. */
struct nvs_ipc_handle {
	uint8_t magic[8];
	uint8_t name[NVS_IPC_SECRET];   /* of the exporter's socket; everybody on the machine can see it */
	uint8_t secret[NVS_IPC_SECRET]; /* who has a handle has this */
	uint64_t base, id;              /* which allocation of the exporter */
	uint32_t pid;                   /* of the exporter, for people */
	uint32_t version;
};
_Static_assert(sizeof(struct nvs_ipc_handle) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

/* Asks for the chunks of an allocation from number `first` on. */
struct nvs_ipc_ask {
	uint32_t magic, version;
	uint8_t secret[NVS_IPC_SECRET];
	uint64_t base, id;
	uint32_t first, unused;
};

enum nvs_ipc_status {
	NVS_IPC_GIVEN = 0,
	NVS_IPC_UNKNOWN = 1, /* the secret is wrong, or the allocation was freed */
	NVS_IPC_FAILED = 2,  /* the driver did not export it */
};

/* With it come `count` descriptors, one for each of the chunks from `first` on. */
struct nvs_ipc_answer {
	uint32_t magic, status;
	uint64_t whole;        /* bytes of all chunks together */
	uint64_t offset, size; /* where in them the allocation is */
	uint32_t chunk_count;
	uint32_t first, count, unused;
	uint64_t sizes[NVS_IPC_BATCH];
};

struct nvs_ipc_handle nvs_ipc_handle_make(
	const uint8_t name[NVS_IPC_SECRET], const uint8_t secret[NVS_IPC_SECRET], CUdeviceptr base, uint64_t id);
/* False: it is not one of ours (the driver's own, or of a release that does it otherwise). */
bool nvs_ipc_handle_read(const CUipcMemHandle *bytes, struct nvs_ipc_handle *handle);

struct nvs_ipc_ask nvs_ipc_ask_make(const struct nvs_ipc_handle *handle, uint32_t first);
/* Is what came, `length` bytes, a question, and does it know the secret? */
bool nvs_ipc_ask_is_good(const void *bytes, size_t length, const uint8_t secret[NVS_IPC_SECRET]);

struct nvs_ipc_answer nvs_ipc_answer_make(enum nvs_ipc_status status);
/* Is what came, `length` bytes with `descriptors`, an answer to a question for `first`? One that gives something is
 * sound in itself: what it gives lies within the whole. */
bool nvs_ipc_answer_is_sound(const void *bytes, size_t length, uint32_t descriptors, uint32_t first);
/* Do two answers speak of the same allocation? */
bool nvs_ipc_answers_agree(const struct nvs_ipc_answer *a, const struct nvs_ipc_answer *b);

/* The abstract address of a socket of this name, less the empty byte that it begins with. */
void nvs_ipc_address(const uint8_t name[NVS_IPC_SECRET], char text[NVS_IPC_ADDRESS_BYTES]);

#endif
