/* The gate: may this process submit work to its GPUs now? One gate for the whole process, because its GPUs form a gang.
 *
 * A submitting thread raises its own in-call flag, then looks at the gate; a closer shuts the gate, then waits until
 * every flag is down. Both orders are sequentially consistent, so a submission is either seen by the closer or sees the
 * gate shut. The open path takes no lock and makes no system call. */
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

/* nvs_thread.in_call: 0 outside; inside, the sum of these. */
#define NVS_IN_CALL 1u
#define NVS_MEASURED 2u /* leave records the end of the sample that enter began */
#define NVS_MARKER 4u   /* leave records a marker of the pace */
#define NVS_NESTED 8u   /* once per submission made inside this one */

struct nvs_sample;
struct nvs_pace;

/* One per thread, on its own cache lines, linked for ever into a list and reused after the thread ends. All but
 * in_call, taken and the atomic counters belong to the owning thread alone. */
struct nvs_thread {
	_Atomic uint32_t in_call;
	_Atomic uint32_t taken;
	_Atomic uint64_t submissions; /* cumulative */
	uint64_t next_sample;         /* the value of `submissions` at which a submission is measured */
	_Atomic uint64_t accounted;   /* the value of `submissions` up to which they belong to a sample */
	_Atomic int32_t device;       /* of the last sample: the rest is taken to go there too */
	uint32_t random;
	CUstream stream;     /* where the submission goes, when leave has something to record */
	uint64_t sampled_at; /* when the last sample began, ns */
	struct nvs_sample *sample;
	struct nvs_pace *pace; /* where the marker is due */
	uint32_t marker;       /* which of its markers */
	struct nvs_thread *next;
} __attribute__((aligned(64)));

extern _Atomic uint32_t nvs_gate __attribute__((visibility("hidden"))); /* enum nvs_gate_state */
extern __thread struct nvs_thread *nvs_self __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* The slow ways in and out; see gate.c. `enter` returns with the flag raised. */
void nvs_gate_enter_slow(CUstream stream);
/* For what submits nothing but needs the memory to be there. Followed by nvs_gate_leave. */
void nvs_gate_enter_unmeasured(void);
void nvs_gate_leave_slow(void);

/* True: the flag is raised and the caller may submit one thing that needs no measuring. False: nothing happened, go the
 * slow way. After true, and only then, lowering the flag is all there is to do. */
static inline bool nvs_gate_try_enter(void)
{
	struct nvs_thread *self = nvs_self;
	if (__builtin_expect(self == NULL || atomic_load_explicit(&self->in_call, memory_order_relaxed) != 0, 0))
		return false;
	atomic_store(&self->in_call, NVS_IN_CALL);
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	if (__builtin_expect(atomic_load(&nvs_gate) == NVS_GATE_OPEN && count != self->next_sample, 1)) {
		atomic_store_explicit(&self->submissions, count + 1, memory_order_relaxed);
		return true;
	}
	atomic_store_explicit(&self->in_call, 0, memory_order_release);
	return false;
}

static inline void nvs_gate_lower_flag(void)
{
	atomic_store_explicit(&nvs_self->in_call, 0, memory_order_release);
}

/* Around every real call that submits work; `stream` is where the work goes. Not to be held while waiting for the
 * scheduler or for a lock. Nests: a submission made inside a submission passes. */
static inline void nvs_gate_enter(CUstream stream)
{
	if (!nvs_gate_try_enter())
		nvs_gate_enter_slow(stream);
}

static inline void nvs_gate_leave(void)
{
	if (__builtin_expect(atomic_load_explicit(&nvs_self->in_call, memory_order_relaxed) == NVS_IN_CALL, 1))
		nvs_gate_lower_flag();
	else
		nvs_gate_leave_slow();
}

/* Link thread only. */
void nvs_gate_open(enum nvs_gate_state how); /* OPEN or PACED; wakes all who wait */
void nvs_gate_shut(void);                    /* from now on submitters wait; says nothing about work under way */
/* Shut, wait for flags, wait for all submitted work; if that does not end, also for single submissions of those who
 * wait at the gate, which it may depend on. False when the deadline passes: then the gate is open again, if it was, and
 * the work still runs. Never called while a lock that a submitter may want is held. */
bool nvs_gate_close(uint32_t deadline_ms, uint64_t *drain_us);
/* The gate is shut: has all work ended that went through before? Only asks. */
bool nvs_gate_settled(void);

/* Wait until all work submitted so far is finished, without shutting the gate and legal while other streams capture;
 * used before memory is unmapped. Any thread. False when it could not be established (the deadline, or a capture under
 * way). */
bool nvs_gate_drain(uint32_t deadline_ms);

/* True when nothing was submitted and nothing ran for `idle_ms`. Asked every few milliseconds; link thread only. */
bool nvs_gate_idle(uint32_t idle_ms);

/* Submissions of all threads so far, and of one device (exact only between samples). */
uint64_t nvs_gate_submissions(void);
uint64_t nvs_gate_unaccounted(CUdevice device);

/* After fork, in the child: as in a fresh process. */
void nvs_gate_after_fork(void);

#endif
