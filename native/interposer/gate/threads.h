/* The threads of this process that have called the driver. */
#ifndef NVS_THREADS_H
#define NVS_THREADS_H

#include <stdatomic.h>
#include <stdint.h>

#include "cuda_abi.h"

/* nvs_thread.in_call: 0 outside; inside, the sum of these. */
#define NVS_IN_CALL 1u
#define NVS_MEASURED 2u /* leave records the end of the sample that enter began */
#define NVS_MARKER 4u   /* leave records a marker of the pace */
#define NVS_NAMES 8u    /* submits nothing, but needs its memory to stay */
#define NVS_NESTED 16u  /* once per submission made inside this one */

struct nvs_sample;
struct nvs_pace;

/* One per thread, on its own cache lines, linked for ever into a list and reused after the thread ends. All but
 * in_call, within, taken and the atomic counters belong to the owning thread alone. */
struct nvs_thread {
	_Atomic uint32_t in_call;
	_Atomic uint32_t taken;
	_Atomic uint64_t submissions; /* cumulative */
	uint64_t next_stop;           /* the value of `submissions` at which the next one goes the slow way */
	uint32_t pass;                /* the gate's word under which the others need not */
	uint32_t random;
	uint64_t next_sample;       /* the value of `submissions` at which a submission is measured */
	uint64_t next_pace;         /* and at which the pace is asked */
	_Atomic uint64_t accounted; /* the value of `submissions` up to which they belong to a sample */
	_Atomic int32_t device;     /* of the last sample: the rest is taken to go there too */
	_Atomic uint32_t within;    /* calls of the driver that this thread is in, one inside the other; see entry.h */
	CUstream stream;            /* where the submission goes, when leave has something to record */
	uint64_t sampled_at;        /* when the last sample began, ns */
	struct nvs_sample *sample;
	struct nvs_pace *pace; /* where the marker is due */
	uint32_t marker;       /* which of its markers */
	uint64_t went_by;      /* the value of `submissions` after the last one that did */
	struct nvs_thread *next;
} __attribute__((aligned(64)));

extern __thread struct nvs_thread *nvs_self __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* This thread's own; made or reused when there is none. Never NULL. */
struct nvs_thread *nvs_thread_join(void);
/* All there ever were, from `next` to `next`. */
struct nvs_thread *nvs_threads_first(void);

#endif
