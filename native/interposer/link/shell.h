/* Between messages and the client (native/client). Link thread only. */
#ifndef NVS_SHELL_H
#define NVS_SHELL_H

#include "client/client.h"
#include "nvshare_protocol.h"

struct nvs_gpu;

/* Read it; only the client itself changes it. */
extern struct nvs_client nvs_shell_client __attribute__((visibility("hidden")));

/* Tell the client, and carry out what it says. Fills in the time and what comes with every event. */
void nvs_shell_feed(struct nvs_event event);
/* What submitters left for this thread to see: somebody waits, work has begun. Before anything that depends on it. */
void nvs_shell_tell_facts(void);

/* Messages. */
void nvs_shell_granted(struct nvs_gpu *gpu, const struct nvs_lock_ok *message);
void nvs_shell_dropped(struct nvs_gpu *gpu, const struct nvs_drop_lock *message);
void nvs_shell_terms(struct nvs_gpu *gpu, const struct nvs_terms *message);
void nvs_shell_given(struct nvs_gpu *gpu, const struct nvs_turn_ok *message);
void nvs_shell_told(struct nvs_gpu *gpu, const struct nvs_end_turn *message);
/* Registered: submissions need a grant (SCHED_ON), or nothing (SCHED_OFF). */
void nvs_shell_control(bool scheduled);
/* There is no scheduler any more. What was granted stays granted: it is told at the next registration. */
void nvs_shell_lost(void);
/* The scheduler was told of this GPU. */
void nvs_shell_announced(uint32_t gpu);

/* Look at the gate and the GPU where that is due, and let time pass. Returns when to come again, 0 for not at all. */
uint64_t nvs_shell_round(void);

void nvs_shell_after_fork(void);

#endif
