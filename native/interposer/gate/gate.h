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
#include "gate/threads.h"

enum nvs_gate_state {
	NVS_GATE_OPEN = 0,  /* submit */
	NVS_GATE_PACED = 1, /* submit, but keep little work in flight */
	NVS_GATE_SHUT = 2,  /* wait: memory may be away */
	NVS_GATE_REST = 3,  /* wait for a slice: memory is in its place */
};

/* The word is a state and, while PACED, above it a number that is new each time: what a thread was allowed before does
 * not count any more. */
#define NVS_GATE_STATE 3u
#define NVS_GATE_EPOCH 4u

extern _Atomic uint32_t nvs_gate __attribute__((visibility("hidden")));

static inline enum nvs_gate_state nvs_gate_state(void)
{
	return (enum nvs_gate_state)(atomic_load(&nvs_gate) & NVS_GATE_STATE);
}

/* The slow ways in and out; see gate.c. `enter` returns with the flag raised. All return CUDA_SUCCESS, or the answer to
 * give because the driver cannot be called (see entry.h): a thread that is inside the entry already is never refused.
 */
CUresult nvs_gate_enter_slow(CUstream stream);
/* For what submits nothing but needs the memory to be there; it needs no slice. Followed by nvs_gate_leave. */
CUresult nvs_gate_enter_unmeasured(void);
/* For a submission whose length is known to follow from so many bytes. A short one waits for the gate as all do, but
 * goes by beside those that are paced and measured: cuBLAS sets a few bytes before each matmul, and what one of them
 * costs says nothing about the other. */
CUresult nvs_gate_enter_sized(CUstream stream, uint64_t bytes);
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
	if (__builtin_expect(atomic_load(&nvs_gate) == self->pass && count != self->next_stop, 1)) {
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
static inline CUresult nvs_gate_enter(CUstream stream)
{
	return nvs_gate_try_enter() ? CUDA_SUCCESS : nvs_gate_enter_slow(stream);
}

static inline void nvs_gate_leave(void)
{
	if (__builtin_expect(atomic_load_explicit(&nvs_self->in_call, memory_order_relaxed) == NVS_IN_CALL, 1))
		nvs_gate_lower_flag();
	else
		nvs_gate_leave_slow();
}

/* Link thread only. */
void nvs_gate_open(enum nvs_gate_state how); /* any but SHUT; wakes all who wait */
/* How often that was said. While the number is the same, work that waited went on without a pause. */
uint32_t nvs_gate_openings(void);
/* Let every thread measure one of its next submissions, and mark the next one where they are paced: how often it does
 * follows from what earlier ones took, and those that come now may take a thousand times as long. */
void nvs_gate_look_closer(void);
void nvs_gate_shut(void); /* from now on submitters wait; says nothing about work under way */
/* Shut, wait for flags, wait for all submitted work; if that does not end, also for single submissions of those who
 * wait at the gate, which it may depend on. False when the deadline passes: then the gate is open again, if it was, and
 * the work still runs. Never called while a lock that a submitter may want is held. */
bool nvs_gate_close(uint32_t deadline_ms, uint64_t *drain_us);
/* The gate is shut: has all work ended that went through before? Only asks. */
bool nvs_gate_drained(void);
/* The gate rests: nobody is between gate and GPU. */
bool nvs_gate_quiet(void);
/* A call is under way that submits nothing, but needs its memory to stay; or the gate is open, and a thread that waited
 * at it has yet to wake up. */
bool nvs_gate_names(void);

/* Wait until all work submitted so far is finished, without shutting the gate and legal while other streams capture;
 * used before memory is unmapped. Any thread. False when it could not be established (the deadline, or a capture under
 * way). */
bool nvs_gate_drain(uint32_t deadline_ms);

/* Since when nothing was submitted and nothing ran, ns, as well as those who ask can know; 0 when that is not so. Asked
 * again and again; link thread only. */
uint64_t nvs_gate_idle_since(void);

/* When the first submission since the gate was PACED, or since it was watched for, went through, ns; 0: none yet. */
uint64_t nvs_gate_used_since(void);
/* The next submission is the first: of a gate about to open (0, or the time from which it counts as used), or of one
 * that is PACED and idle. False when it is not idle after all. */
void nvs_gate_watch(uint64_t used_since);
bool nvs_gate_watch_idle(void);

/* ---- the end of a burst ---- */

/* When the link thread looks next, ns, while the end of a burst matters; else 0. */
extern _Atomic uint64_t nvs_gate_next_look __attribute__((visibility("hidden")));

void nvs_gate_waited_slow(void);

/* A thread has waited for the GPU, and goes on: this may be the end of a burst. Costs one load where that matters to
 * nobody. */
static inline void nvs_gate_waited(void)
{
	if (__builtin_expect(atomic_load_explicit(&nvs_gate_next_look, memory_order_relaxed) != 0, 0))
		nvs_gate_waited_slow();
}

/* When that last happened while it mattered, ns. */
uint64_t nvs_gate_waited_at(void);

/* Submissions of all threads so far, and of one device (exact only between samples). */
uint64_t nvs_gate_submissions(void);
uint64_t nvs_gate_unaccounted(CUdevice device);

/* After fork, in the child: as in a fresh process. */
void nvs_gate_after_fork(void);

#endif
