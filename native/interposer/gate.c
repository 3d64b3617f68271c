#include "gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "link.h"
#include "meter.h"
#include "streams.h"

#define FIRST_NS (100 * NVS_NS_PER_MS) /* a drain takes less, as a rule */
#define NEXT_NS (2 * NVS_NS_PER_MS)
#define PASS_NS (2 * NVS_NS_PER_MS) /* for one who waits to wake up */
#define PATIENCE 4                  /* usual lengths of a submission, per submission that is let through */
#define BURST 16                    /* then twice as long between them */
#define DOUBLINGS 10

_Atomic uint32_t nvs_gate;
__thread struct nvs_thread *nvs_self;

static _Atomic(struct nvs_thread *) threads;
static pthread_key_t exit_key;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;

/* ---- threads ---- */

static void thread_ended(void *slot)
{
	struct nvs_thread *self = slot;
	nvs_self = NULL;
	atomic_store(&self->in_call, 0);
	atomic_store(&self->taken, 0);
}

static void make_exit_key(void)
{
	pthread_key_create(&exit_key, thread_ended);
}

static struct nvs_thread *reuse_slot(void)
{
	for (struct nvs_thread *slot = atomic_load(&threads); slot != NULL; slot = slot->next) {
		uint32_t free = 0;
		if (atomic_load_explicit(&slot->taken, memory_order_relaxed) == 0 &&
			atomic_compare_exchange_strong(&slot->taken, &free, 1))
			return slot;
	}
	return NULL;
}

static struct nvs_thread *new_slot(void)
{
	struct nvs_thread *slot;
	/* Without these two cache lines no submission can be made safely; a process that cannot get them waits for
	 * memory. */
	while ((slot = aligned_alloc(_Alignof(struct nvs_thread), sizeof(*slot))) == NULL)
		nvs_sleep_ns(NVS_NS_PER_MS);
	*slot = (struct nvs_thread){.taken = 1, .device = -1};
	slot->next = atomic_load(&threads);
	while (!atomic_compare_exchange_weak(&threads, &slot->next, slot))
		;
	return slot;
}

static struct nvs_thread *join_thread(void)
{
	pthread_once(&exit_key_once, make_exit_key);
	struct nvs_thread *self = reuse_slot();
	if (self == NULL)
		self = new_slot();
	self->next_sample = atomic_load(&self->submissions);
	self->random = (uint32_t)(uintptr_t)self ^ (uint32_t)nvs_now_ns() ^ 0x9e3779b9u;
	self->sampled_at = nvs_now_ns();
	self->sample = NULL;
	nvs_self = self;
	pthread_setspecific(exit_key, self);
	return self;
}

/* ---- in and out ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static _Atomic uint32_t waiting; /* threads at the shut gate */
static _Atomic uint32_t passes;  /* how many of them may go through while the closer waits */
static _Atomic uint32_t unpaced; /* in this turn work was seen that waits for what comes after it */

static void wait_while_shut(void)
{
	static const struct timespec ask_again = {.tv_sec = 1};
	atomic_fetch_add(&waiting, 1);
	while (atomic_load(&nvs_gate) == NVS_GATE_SHUT && atomic_load(&passes) == 0) {
		nvs_link_want();
		futex(&nvs_gate, FUTEX_WAIT, NVS_GATE_SHUT, &ask_again);
	}
	atomic_fetch_sub(&waiting, 1);
}

/* With the flag raised: a closer that takes the passes back sees whoever took one. */
static bool take_pass(void)
{
	uint32_t left = atomic_load(&passes);
	while (left != 0)
		if (atomic_compare_exchange_weak(&passes, &left, left - 1))
			return true;
	return false;
}

/* What goes into a capturing stream is recorded, not run, and the capture must be able to end: a drain waits for that.
 */
static bool passes_shut_gate(CUstream stream)
{
	return atomic_load(&nvs_captures) != 0 && nvs_stream_capturing(stream);
}

void nvs_gate_enter_slow(CUstream stream)
{
	struct nvs_thread *self = nvs_self != NULL ? nvs_self : join_thread();
	uint32_t now = atomic_load_explicit(&self->in_call, memory_order_relaxed);
	if (now != 0) {
		atomic_store_explicit(&self->in_call, now + NVS_NESTED, memory_order_relaxed);
		return;
	}
	uint32_t duty = 0;
	for (;;) {
		atomic_store(&self->in_call, NVS_IN_CALL);
		uint32_t state = atomic_load(&nvs_gate);
		if (state == NVS_GATE_OPEN || (state == NVS_GATE_SHUT && (passes_shut_gate(stream) || take_pass())))
			break;
		struct nvs_pace *crowded = NULL;
		if (state == NVS_GATE_PACED &&
			(atomic_load(&unpaced) || (crowded = nvs_pace_admit(self, stream, &duty)) == NULL))
			break;
		atomic_store(&self->in_call, 0);
		if (crowded != NULL)
			atomic_fetch_or(&unpaced, !nvs_pace_wait(crowded));
		else
			wait_while_shut();
	}
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	atomic_store_explicit(&self->submissions, count + 1, memory_order_relaxed);
	if (count >= self->next_sample)
		duty |= nvs_meter_begin(self, stream);
	if (duty == 0)
		return;
	self->stream = stream;
	atomic_store_explicit(&self->in_call, NVS_IN_CALL | duty, memory_order_relaxed);
}

void nvs_gate_enter_unmeasured(void)
{
	struct nvs_thread *self = nvs_self != NULL ? nvs_self : join_thread();
	uint32_t now = atomic_load_explicit(&self->in_call, memory_order_relaxed);
	if (now != 0) {
		atomic_store_explicit(&self->in_call, now + NVS_NESTED, memory_order_relaxed);
		return;
	}
	for (;;) {
		atomic_store(&self->in_call, NVS_IN_CALL);
		/* A capture must be able to end, and while one is under way no memory leaves. */
		if (atomic_load(&nvs_gate) != NVS_GATE_SHUT || atomic_load(&nvs_captures) != 0 || take_pass())
			return;
		atomic_store(&self->in_call, 0);
		wait_while_shut();
	}
}

void nvs_gate_leave_slow(void)
{
	struct nvs_thread *self = nvs_self;
	uint32_t now = atomic_load_explicit(&self->in_call, memory_order_relaxed);
	if (now >= NVS_NESTED) {
		atomic_store_explicit(&self->in_call, now - NVS_NESTED, memory_order_relaxed);
		return;
	}
	if (now & NVS_MEASURED)
		nvs_meter_end(self, self->stream);
	if (now & NVS_MARKER)
		nvs_pace_mark(self, self->stream);
	nvs_gate_lower_flag();
}

/* ---- opening and closing ---- */

/* What the link thread saw when it last asked whether this process is idle. */
static struct {
	bool asked;
	uint64_t submissions;
	bool recorded;       /* events behind all of them */
	uint64_t done_since; /* those events were seen finished, ns; 0: not yet */
} idle;

void nvs_gate_open(enum nvs_gate_state how)
{
	if (atomic_exchange(&nvs_gate, how) != NVS_GATE_SHUT)
		return;
	idle.asked = false; /* those who wait have to wake up first */
	atomic_store(&unpaced, 0);
	futex(&nvs_gate, FUTEX_WAKE, INT_MAX, NULL);
}

void nvs_gate_shut(void)
{
	atomic_store(&nvs_gate, NVS_GATE_SHUT);
}

static bool flags_down(void)
{
	for (struct nvs_thread *thread = atomic_load(&threads); thread != NULL; thread = thread->next)
		if (atomic_load(&thread->in_call) != 0)
			return false;
	return true;
}

/* Ask again and again, with growing pauses, until `done`, the deadline or the end of the process. */
static bool wait_until(bool (*done)(void), uint64_t deadline)
{
	uint64_t pause = 0;
	while (!done()) {
		if (nvs_now_ns() >= deadline || atomic_load(&nvs_exiting))
			return false;
		nvs_sleep_growing(&pause);
	}
	return true;
}

static bool is_passed(void)
{
	return atomic_load(&passes) == 0;
}

/* Let one of those who wait at the gate make one submission. */
static void let_pass(uint64_t deadline)
{
	atomic_store(&passes, 1);
	futex(&nvs_gate, FUTEX_WAKE, 1, NULL);
	wait_until(is_passed, nvs_earlier(deadline, nvs_now_ns() + PASS_NS));
	atomic_store(&passes, 0);
}

/* How long to wait for the end of work, after so many submissions were let through: so long that they prolong other
 * work by a part of it only. A kernel that is just long must not be joined by many more: between passes the time grows,
 * from the first one on where there is nothing to expect a collective of. */
static uint64_t patience(uint64_t passed)
{
	uint64_t typical = nvs_meter_typical_ns(), usual = PATIENCE * typical;
	bool in_bursts = passed > 0 && typical != 0 && nvs_context_count(NVS_ANY_DEVICE) > 1;
	uint64_t least = in_bursts ? NEXT_NS : FIRST_NS, doublings = in_bursts ? passed / BURST : passed;
	return (usual > least ? usual : least) << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
}

/* Wait for all work that went through the gate. Work that takes much longer than is usual here, while somebody waits at
 * the gate, may be waiting for what that one has to submit: the other half of a collective, or a host that spins. So
 * submissions are let through one by one. */
static bool drain(uint64_t deadline, bool may_pass)
{
	for (uint64_t passed = 0;; passed++) {
		if (!wait_until(flags_down, deadline) || !wait_until(nvs_drain_record, deadline))
			return false;
		do
			if (wait_until(nvs_drain_finished, nvs_earlier(deadline, nvs_now_ns() + patience(passed))))
				return true;
		while ((!may_pass || atomic_load(&waiting) == 0) && nvs_now_ns() < deadline &&
			!atomic_load(&nvs_exiting));
		if (nvs_now_ns() >= deadline || atomic_load(&nvs_exiting))
			return false;
		let_pass(deadline);
	}
}

bool nvs_gate_close(uint32_t deadline_ms, uint64_t *drain_us)
{
	uint64_t start = nvs_now_ns();
	uint64_t deadline = start + deadline_ms * NVS_NS_PER_MS;
	bool was_shut = atomic_exchange(&nvs_gate, NVS_GATE_SHUT) == NVS_GATE_SHUT;
	bool drained = drain(deadline, !was_shut); /* behind a gate that was shut before, memory may be away */
	if (drain_us != NULL)
		*drain_us = (nvs_now_ns() - start) / NVS_NS_PER_US;
	if (!drained && !was_shut)
		nvs_gate_open(NVS_GATE_OPEN);
	return drained;
}

bool nvs_gate_settled(void)
{
	return flags_down() && nvs_drain_record() && nvs_drain_finished();
}

bool nvs_gate_drain(uint32_t deadline_ms)
{
	return nvs_drain_record() && wait_until(nvs_drain_finished, nvs_now_ns() + deadline_ms * NVS_NS_PER_MS);
}

/* ---- idleness ---- */

uint64_t nvs_gate_submissions(void)
{
	uint64_t total = 0;
	for (struct nvs_thread *thread = atomic_load(&threads); thread != NULL; thread = thread->next)
		total += atomic_load_explicit(&thread->submissions, memory_order_relaxed);
	return total;
}

uint64_t nvs_gate_unaccounted(CUdevice device)
{
	uint64_t total = 0;
	for (struct nvs_thread *thread = atomic_load(&threads); thread != NULL; thread = thread->next) {
		uint64_t accounted = atomic_load(&thread->accounted);
		uint64_t made = atomic_load_explicit(&thread->submissions, memory_order_relaxed);
		if (atomic_load(&thread->device) == device && made > accounted)
			total += made - accounted;
	}
	return total;
}

bool nvs_gate_idle(uint32_t idle_ms)
{
	uint64_t now = nvs_now_ns();
	uint64_t submissions = nvs_gate_submissions();
	if (!idle.asked || submissions != idle.submissions || !flags_down()) {
		idle = (typeof(idle)){.asked = true, .submissions = submissions};
		return false;
	}
	if (!idle.recorded && !(idle.recorded = nvs_drain_record()))
		return false;
	if (!nvs_drain_finished())
		return false;
	if (idle.done_since == 0)
		idle.done_since = now;
	return now - idle.done_since >= idle_ms * NVS_NS_PER_MS;
}

void nvs_gate_after_fork(void)
{
	for (struct nvs_thread *thread = atomic_load(&threads); thread != NULL; thread = thread->next) {
		atomic_store(&thread->in_call, 0);
		atomic_store(&thread->submissions, 0);
		atomic_store(&thread->accounted, 0);
		atomic_store(&thread->device, -1);
		thread->next_sample = 0;
		thread->sample = NULL;
		if (thread != nvs_self)
			atomic_store(&thread->taken, 0);
	}
	atomic_store(&nvs_gate, NVS_GATE_OPEN);
	atomic_store(&waiting, 0);
	atomic_store(&passes, 0);
	atomic_store(&unpaced, 0);
	idle.asked = false;
	nvs_streams_after_fork();
	nvs_meter_after_fork();
}
