/* What the files of this folder share, and what tests look into. */
#ifndef NVS_GATE_STATE_H
#define NVS_GATE_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct nvs_marker;
struct nvs_pace;

/* ---- gate.c ---- */

/* No thread is in a call that the gate guards. */
bool nvs_gate_flags_down(void);
/* The gate is shut: wait for all work that went through it. Work that takes much longer than is usual here, while
 * somebody waits at the gate, may be waiting for what that one has to submit: the other half of a collective, or a host
 * that spins. So, if it `may_pass`, submissions are let through one by one. False when the deadline passes. */
bool nvs_gate_drain_shut(uint64_t deadline, bool may_pass);

/* ---- pace.c ---- */

/* A thread that waited for this marker since the gate's opening of that number goes on now: what the work before it
 * took, from the time since the marker before. The pace's lock is held. */
void nvs_pace_learn(struct nvs_pace *pace, const struct nvs_marker *marker, uint32_t opening);
/* What a submission takes, ns, from samples and from markers. The pace's lock is held. */
uint64_t nvs_pace_cost(const struct nvs_pace *pace);

#endif
