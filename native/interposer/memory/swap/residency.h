/* How many bytes of this process may be on each card, how many are, and where each chunk is. The scheduler sets the
 * target, the mover works towards it, the link reports.
 *
 * Memory leaves the card only while the gate is shut and all work is finished; the gate opens only when everything is
 * usable. Both are decided here, under one lock, so that neither can overtake the other. The lock is held for
 * bookkeeping alone: never across a driver call, a log line or a call to another folder. */
#ifndef NVS_RESIDENCY_H
#define NVS_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct nvs_backing;
struct nvs_chunk;
struct nvs_host_buffer;
struct nvs_range;

#define NVS_UNLIMITED UINT64_MAX

/* Of one device, in bytes. */
struct nvs_holding {
	uint64_t target;                  /* may be on the card; NVS_UNLIMITED: all */
	uint64_t number;                  /* of that target; 0: this scheduler has not set one */
	uint64_t resident;                /* on the card or claimed for it */
	uint64_t absent;                  /* allocated, but not usable: elsewhere or on the way */
	uint64_t host;                    /* contents on the host alone */
	uint64_t pinned;                  /* part of resident that cannot leave */
	uint64_t leaving, arriving;       /* part of resident, and of absent, that is on its way out or in */
	uint64_t buffered, wanted;        /* host buffers that chunks have, and that should be ready */
	uint64_t swapped_out, swapped_in; /* copied so far */
	uint64_t ceiling; /* of unified memory: more than that cannot be on the card, wherever its pages are */
	bool unified;     /* the driver brings what is missing when it is touched */
};

void nvs_residency_view(CUdevice device, struct nvs_holding *view);

/* ---- what is allocated ---- */

/* Count bytes that were just granted. True: they may be on the card now. False: they are absent, and must stay off the
 * card until the mover brings them. */
bool nvs_residency_claim(CUdevice device, uint64_t bytes);
/* The same for memory that cannot come later: waits for room, at most about a second. False: not yet, and nothing is
 * counted. */
bool nvs_residency_claim_at_once(CUdevice device, uint64_t bytes);
/* Freed: so many that were on the card, and so many that were not. */
void nvs_residency_forget(CUdevice device, uint64_t resident, uint64_t absent);
void nvs_residency_pin(CUdevice device, int64_t delta);

/* ---- what the scheduler says ---- */

void nvs_residency_set(CUdevice device, uint64_t target, uint64_t number);
/* So many bytes may have to go soon: let there be buffers for them, and no more made than that. */
void nvs_residency_prepare(CUdevice device, uint64_t bytes);
/* A new connection: what is on the card stays, nothing is fetched until this scheduler says more. */
void nvs_residency_registering(void);
/* It granted the device. One that never set a target means all of it. */
void nvs_residency_granted(CUdevice device);
/* The scheduler is gone: what was allowed may still come, but nothing more leaves. */
void nvs_residency_orphaned(void);
/* No limits any more, on any device. */
void nvs_residency_free_all(void);

/* The device's memory is unified. */
void nvs_residency_unified(CUdevice device);

/* ---- the gate; link thread only ---- */

/* Everything is usable: true, and from now on nothing leaves the card. False: not yet. */
bool nvs_residency_open(void);
/* The gate is shut and all work is finished. */
void nvs_residency_shut(void);

/* ---- backings ---- */

/* Make it known to the mover. Its chunks are GPU or FRESH. */
void nvs_residency_add(struct nvs_backing *backing);
/* Forget it; waits for chunks on their way. Returns the bytes that are on the card. From then on the backing is the
 * caller's alone. */
uint64_t nvs_residency_remove(struct nvs_backing *backing);

/* Keep the mover off a backing, because what is mapped changes: waits for its chunks that are on their way, and lets
 * none begin. Nests. After the last unfix the mover wants to be kicked. */
void nvs_residency_fix(struct nvs_backing *backing);
void nvs_residency_unfix(struct nvs_backing *backing);
/* Is there memory behind this chunk? */
bool nvs_residency_is_mapped(const struct nvs_backing *backing, size_t index);

/* The memory behind these addresses has become known to others, and must stay where it is as long as it lives. */
void nvs_residency_hold(CUdevice device, CUdeviceptr p, size_t size);

/* Bytes that this would add to those that cannot leave. */
uint64_t nvs_residency_loose(CUdevice device, CUdeviceptr p, size_t size);
/* The backing with this address, if all of it is held: it is not freed until it is given back. NULL: there is none. */
struct nvs_backing *nvs_residency_lend(CUdevice device, CUdeviceptr p);
void nvs_residency_unlend(struct nvs_backing *backing);

/* The mapped chunks of a device, in memory for the caller to free. NULL: no host memory. */
struct nvs_range *nvs_residency_mapped(CUdevice device, size_t *count);
/* Is this an address of ours behind which there is no memory now? */
bool nvs_residency_is_away(CUdevice device, CUdeviceptr p);

/* ---- moves; mover only ---- */

struct nvs_move {
	struct nvs_backing *backing;
	size_t index;
	struct nvs_chunk *chunk;
	size_t size;
	bool copy; /* it has contents that must be copied */
};

/* Devices (a bit each) with something to move, or to prepare. */
uint64_t nvs_residency_moves(void);

/* The next chunk that has to leave, as OUT; false when none has to or can. */
bool nvs_residency_next_out(CUdevice device, struct nvs_move *move);
/* The host has its contents. True: take it off the card, then say so. False: it may stay after all. */
bool nvs_residency_copied_out(const struct nvs_move *move);
void nvs_residency_left(const struct nvs_move *move);
/* It cannot be moved: it stays, and counts as pinned. */
void nvs_residency_blocked(const struct nvs_move *move);

/* The next chunk that may come, as IN and claimed; false when none may. */
bool nvs_residency_next_in(CUdevice device, struct nvs_move *move);
void nvs_residency_arrived(const struct nvs_move *move);
/* The card had no room: where it was. */
void nvs_residency_turned_back(const struct nvs_move *move);

/* Size of a chunk that should get a buffer before it is needed; 0: there are enough. */
size_t nvs_residency_unprepared(CUdevice device);
/* Were host bytes set aside for such a chunk? Then they are the caller's from now on. */
bool nvs_residency_take_promise(CUdevice device, size_t size);
/* No more can be had: let there be as many as there are, until more are asked for. */
void nvs_residency_prepared(CUdevice device);
/* Give such a chunk its buffer. False: there is none of this size any more. */
bool nvs_residency_offer(CUdevice device, struct nvs_host_buffer *buffer, size_t size);
/* The chunk of a move has its buffer from now on. */
void nvs_residency_buffered(const struct nvs_move *move, struct nvs_host_buffer *buffer);

/* The mover will never finish what it began: nobody waits for it any more. */
void nvs_residency_abandon(void);
void nvs_residency_after_fork(void);

#endif
