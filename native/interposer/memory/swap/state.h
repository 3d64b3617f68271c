/* What the files of this folder share, and what tests look into. */
#ifndef NVS_SWAP_STATE_H
#define NVS_SWAP_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/devices.h"
#include "memory/swap/backing.h"
#include "memory/swap/residency.h"

/* ---- residency.c, next_chunk.c ---- */

/* A chunk that could not be moved, because the host had no room, is tried again after this long. */
#define NVS_BLOCKED_NS (10 * NVS_NS_PER_S)

struct nvs_holdings {
	pthread_mutex_t lock; /* of everything here, and of the chunks' states */
	pthread_cond_t changed;
	struct nvs_holding devices[NVS_MAX_DEVICES];
	uint64_t blocked_at[NVS_MAX_DEVICES]; /* ns; 0: nothing is */
	struct nvs_backing *backings;         /* the newest first */
	bool is_shut;                         /* the gate, with all work finished */
	bool abandoned;
};

extern struct nvs_holdings nvs_holdings __attribute__((visibility("hidden")));

static inline void nvs_holdings_lock(void)
{
	pthread_mutex_lock(&nvs_holdings.lock);
}

static inline void nvs_holdings_unlock(void)
{
	pthread_mutex_unlock(&nvs_holdings.lock);
}

/* Something that others may wait for. The lock is held. */
static inline void nvs_holdings_changed(void)
{
	pthread_cond_broadcast(&nvs_holdings.changed);
}

static inline uint64_t nvs_holding_room(const struct nvs_holding *device)
{
	return device->target > device->resident ? device->target - device->resident : 0;
}

/* Is there a chunk off the card that is no larger? The lock is held. */
bool nvs_residency_any_fits(CUdevice device, uint64_t room);

static inline bool nvs_chunk_is_moving(const struct nvs_chunk *chunk)
{
	return chunk->state == NVS_CHUNK_OUT || chunk->state == NVS_CHUNK_IN;
}

/* ---- backing.c ---- */

/* The devices of which it is known how their memory is backed, a bit each. */
extern _Atomic uint64_t nvs_kinds_known __attribute__((visibility("hidden")));

/* ---- hostmem.c ---- */

/* Every buffer. */
extern struct nvs_host_buffer *nvs_host_buffers __attribute__((visibility("hidden")));
/* Bytes set aside and not yet populated: the system does not count them as used. */
extern _Atomic uint64_t nvs_host_promised __attribute__((visibility("hidden")));

/* ---- hostroom.c ---- */

/* Where the kernel shows processes and control groups. */
extern const char *nvs_proc_root __attribute__((visibility("hidden")));
extern const char *nvs_group_root __attribute__((visibility("hidden")));

#endif
