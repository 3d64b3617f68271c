/* The gate: may this process submit work to its GPUs now? One gate for the whole process, because its GPUs form a gang.
 *
 * A submitting thread raises its own in-call flag, then looks at the gate; a closer shuts the gate, then waits until every
 * flag is down. Both orders are sequentially consistent, so a submission is either seen by the closer or sees the gate shut.
 * The open path takes no lock and makes no system call. */
#ifndef NVS_GATE_H
#define NVS_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

enum nvs_gate_state {
	NVS_GATE_OPEN = 0,  /* submit */
	NVS_GATE_PACED = 1, /* submit, but keep little work in flight */
	NVS_GATE_SHUT = 2,  /* wait */
};

/* One per thread, on its own cache line, linked for ever into a list and reused after the thread ends. */
struct nvs_thread {
	_Atomic uint32_t in_call;
	uint32_t countdown;      /* submissions until the next one that is measured; 0 on a fresh thread */
	uint64_t submissions;    /* total of this thread; read by the meter without synchronisation */
	struct nvs_thread *next;
	_Atomic uint32_t taken;
	uint32_t random;
} __attribute__((aligned(64)));

extern _Atomic uint32_t nvs_gate; /* enum nvs_gate_state */
extern __thread struct nvs_thread *nvs_self __attribute__((tls_model("initial-exec")));

/* The slow ways in and out; see gate.c. `enter` returns with the flag raised. */
void nvs_gate_enter_slow(CUstream stream);
void nvs_gate_leave_slow(CUstream stream);

/* Around every real call that submits work. Not to be held while waiting for anything else. Nests: a submission made by the
 * driver inside a submission (a host callback, an interposed helper) passes. */
static inline void nvs_gate_enter(CUstream stream)
{
	struct nvs_thread *self = nvs_self;
	if (__builtin_expect(self != NULL, 1)) {
		atomic_store(&self->in_call, 1);
		if (__builtin_expect(atomic_load(&nvs_gate) == NVS_GATE_OPEN && self->countdown != 0, 1)) {
			self->countdown--;
			self->submissions++;
			return;
		}
	}
	nvs_gate_enter_slow(stream);
}

static inline void nvs_gate_leave(CUstream stream)
{
	struct nvs_thread *self = nvs_self;
	if (__builtin_expect(self->in_call == 1, 1))
		atomic_store_explicit(&self->in_call, 0, memory_order_release);
	else
		nvs_gate_leave_slow(stream); /* nested, or a measured submission: record its end */
}

/* Link thread only. */
void nvs_gate_open(enum nvs_gate_state how); /* OPEN or PACED; wakes all who wait */
/* Shut, wait for flags, wait for all submitted work. False when the deadline passes: then the gate is open again and the
 * work still runs. Never called while a lock that a submitter may want is held. */
bool nvs_gate_close(uint32_t deadline_ms, uint64_t *drain_us);

/* Wait until all work submitted so far on the device is finished, without shutting the gate and legal while other
 * streams capture; used before memory is unmapped. False when it could not be established (a capture under way). */
bool nvs_gate_drain(uint32_t deadline_ms);

/* True when nothing was submitted and nothing runs since `idle_ms`. */
bool nvs_gate_idle(uint32_t idle_ms);

/* After fork, in the child: as in a fresh process. */
void nvs_gate_after_fork(void);

#endif
