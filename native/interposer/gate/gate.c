#include "gate/gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "compute_constants.h"
#include "base/clock.h"
#include "gate/entry.h"
#include "gate/meter.h"
#include "gate/state.h"
#include "gate/streams.h"
#include "gate/upcalls.h"

#define BYTES_PER_NS 128 /* every card sets memory at this rate, at least */

_Atomic uint32_t nvs_gate;

/* ---- in and out ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static bool is_open(uint32_t word)
{
	return (word & NVS_GATE_STATE) == NVS_GATE_OPEN || (word & NVS_GATE_STATE) == NVS_GATE_PACED;
}

static _Atomic uint32_t waiting; /* threads at the gate */
static _Atomic uint32_t passes;  /* how many of them may go through a shut gate while the closer waits */
static _Atomic uint32_t unpaced; /* since the gate opened, work was seen that waits for what comes after it */

/* Returns when the gate's word has changed, or there is a pass to be had. */
static void wait_at_gate(uint32_t word)
{
	static const struct timespec ask_again = {.tv_sec = 1};
	atomic_fetch_add(&waiting, 1);
	while (atomic_load(&nvs_gate) == word && atomic_load(&passes) == 0) {
		nvs_link_want();
		futex(&nvs_gate, FUTEX_WAIT, word, &ask_again);
	}
	atomic_fetch_sub(&waiting, 1);
}

/* With the flag raised: a closer that takes the passes back sees whoever took one. */
static bool use_pass(void)
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

/* When the first submission went through, ns; 0: none yet. */
static _Atomic uint64_t used_since;

/* The thread's flag is raised and the gate is open: what it may do from here on, under this word of the gate. */
static void take_pass(struct nvs_thread *self, uint32_t word)
{
	uint64_t none = 0;
	if (self->pass == word)
		return;
	bool paced = (word & NVS_GATE_STATE) == NVS_GATE_PACED;
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	self->pass = word;
	self->next_pace = paced ? 0 : UINT64_MAX;
	/* While PACED not always the very next one: the first after a wait may be unlike those that follow it. */
	if (!paced)
		self->next_sample = count;
	else if (self->next_sample > count + 2 * NVS_ROUND)
		self->next_sample = count + nvs_meter_any(self, NVS_ROUND);
	if (paced && atomic_load(&used_since) == 0 && atomic_compare_exchange_strong(&used_since, &none, nvs_now_ns()))
		nvs_link_wake();
}

/* The thread's flag is raised, and it may go through a gate that is shut: but not where the entry is not open. False:
 * the flag is down, look again, unless *refused is an answer. */
static bool passes_entry(struct nvs_thread *self, CUresult *refused)
{
	if (atomic_load(&nvs_entry) == NVS_ENTRY_OPEN || atomic_load(&self->within) != 0)
		return true;
	atomic_store(&self->in_call, 0);
	*refused = nvs_entry_wait();
	return false;
}

/* A wait for the pace asks the driver, with the flag of a submission down. */
static bool wait_for_pace(struct nvs_pace *crowded)
{
	if (nvs_entry_enter() != CUDA_SUCCESS)
		return true;
	bool paced = nvs_pace_wait(crowded);
	nvs_entry_leave();
	return paced;
}

/* True: admitted, and *duty is what leave has to do. False: the flag is down, look at the gate again, unless *refused
 * is an answer. */
static bool admit(struct nvs_thread *self, CUstream stream, bool goes_by, uint32_t *duty, CUresult *refused)
{
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	uint32_t word = atomic_load(&nvs_gate);
	if (!is_open(word)) {
		if (!passes_entry(self, refused))
			return false;
		if (passes_shut_gate(stream) || (word == NVS_GATE_SHUT && use_pass()))
			return true;
		atomic_store(&self->in_call, 0);
		wait_at_gate(word);
		return false;
	}
	take_pass(self, word);
	if (goes_by || count < self->next_pace || atomic_load(&unpaced))
		return true;
	struct nvs_pace *crowded = nvs_pace_admit(self, stream, duty);
	if (crowded == NULL)
		return true;
	atomic_store(&self->in_call, 0);
	atomic_fetch_or(&unpaced, !wait_for_pace(crowded));
	return false;
}

/* It went by: for what is paced and measured its thread has submitted nothing. */
static void count_out(struct nvs_thread *self)
{
	self->went_by = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	self->next_sample++;
	if (self->next_pace != UINT64_MAX)
		self->next_pace++;
	atomic_fetch_add(&self->accounted, 1);
}

static CUresult enter(CUstream stream, bool goes_by)
{
	struct nvs_thread *self = nvs_self != NULL ? nvs_self : nvs_thread_join();
	uint32_t now = atomic_load_explicit(&self->in_call, memory_order_relaxed);
	if (now != 0) {
		atomic_store_explicit(&self->in_call, now + NVS_NESTED, memory_order_relaxed);
		return CUDA_SUCCESS;
	}
	uint32_t duty = 0;
	CUresult refused = CUDA_SUCCESS;
	do
		atomic_store(&self->in_call, NVS_IN_CALL);
	while (!admit(self, stream, goes_by, &duty, &refused) && refused == CUDA_SUCCESS);
	if (refused != CUDA_SUCCESS) {
		atomic_store(&self->in_call, NVS_IN_CALL);
		return refused;
	}
	nvs_link_active(); /* with the flag raised: a link that falls asleep now sees it */
	uint64_t count = atomic_load_explicit(&self->submissions, memory_order_relaxed);
	atomic_store_explicit(&self->submissions, count + 1, memory_order_relaxed);
	if (goes_by)
		count_out(self);
	else if (count >= self->next_sample)
		duty |= nvs_meter_begin(self, stream);
	uint64_t stop = self->next_sample < self->next_pace ? self->next_sample : self->next_pace;
	self->next_stop = stop > count ? stop : count + 1; /* what was due for one that went by is so for the next */
	if (duty == 0)
		return CUDA_SUCCESS;
	self->stream = stream;
	atomic_store_explicit(&self->in_call, NVS_IN_CALL | duty, memory_order_relaxed);
	return CUDA_SUCCESS;
}

CUresult nvs_gate_enter_slow(CUstream stream)
{
	return enter(stream, false);
}

/* Never two in a row: of a thread that submits nothing else they count. */
CUresult nvs_gate_enter_sized(CUstream stream, uint64_t bytes)
{
	struct nvs_thread *self = nvs_self;
	bool goes_by = bytes / BYTES_PER_NS <= NVS_TINY_NS && self != NULL &&
		       atomic_load_explicit(&self->submissions, memory_order_relaxed) != self->went_by;
	return goes_by || !nvs_gate_try_enter() ? enter(stream, goes_by) : CUDA_SUCCESS;
}

CUresult nvs_gate_enter_unmeasured(void)
{
	struct nvs_thread *self = nvs_self != NULL ? nvs_self : nvs_thread_join();
	uint32_t now = atomic_load_explicit(&self->in_call, memory_order_relaxed);
	if (now != 0) {
		atomic_store_explicit(&self->in_call, now + NVS_NESTED, memory_order_relaxed);
		return CUDA_SUCCESS;
	}
	CUresult refused = CUDA_SUCCESS;
	do {
		atomic_store(&self->in_call, NVS_IN_CALL | NVS_NAMES);
		if (nvs_gate_state() != NVS_GATE_SHUT)
			return CUDA_SUCCESS;
		if (!passes_entry(self, &refused))
			continue;
		/* A capture must be able to end, and while one is under way no memory leaves. */
		if (atomic_load(&nvs_captures) != 0 || use_pass())
			return CUDA_SUCCESS;
		atomic_store(&self->in_call, 0);
		wait_at_gate(NVS_GATE_SHUT);
	} while (refused == CUDA_SUCCESS);
	atomic_store(&self->in_call, NVS_IN_CALL);
	return refused;
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
	uint64_t active_at;  /* work was last seen then, ns */
	bool recorded;       /* events behind all of it */
	uint64_t done_since; /* those events were finished about then, ns; 0: not yet */
} idle;

static uint32_t epoch; /* of the gate's word; link thread only */
static _Atomic uint32_t openings;

uint32_t nvs_gate_openings(void)
{
	return atomic_load(&openings);
}

void nvs_gate_look_closer(void)
{
	enum nvs_gate_state state = nvs_gate_state();
	if (state == NVS_GATE_OPEN || state == NVS_GATE_PACED)
		atomic_store(&nvs_gate, state | (epoch += NVS_GATE_EPOCH));
}

void nvs_gate_open(enum nvs_gate_state how)
{
	uint32_t word = how == NVS_GATE_PACED ? how | (epoch += NVS_GATE_EPOCH) : how;
	atomic_fetch_add(&openings, 1);
	uint32_t before = atomic_exchange(&nvs_gate, word);
	if (word == NVS_GATE_OPEN && word != before)
		nvs_link_active(); /* threads may have passed under this word before: they do not go the slow way */
	if (is_open(before) || before == word)
		return;
	idle.asked = false; /* those who wait have to wake up first */
	atomic_store(&unpaced, 0);
	futex(&nvs_gate, FUTEX_WAKE, INT_MAX, NULL);
}

void nvs_gate_shut(void)
{
	atomic_store(&nvs_gate, NVS_GATE_SHUT);
}

bool nvs_gate_flags_down(void)
{
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next)
		if (atomic_load(&thread->in_call) != 0)
			return false;
	return true;
}

bool nvs_gate_quiet(void)
{
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next) {
		uint32_t now = atomic_load(&thread->in_call);
		if (now != 0 && !(now & NVS_NAMES))
			return false;
	}
	return true;
}

bool nvs_gate_names(void)
{
	if (is_open(atomic_load(&nvs_gate)) && atomic_load(&waiting) != 0)
		return true;
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next)
		if (atomic_load(&thread->in_call) & NVS_NAMES)
			return true;
	return false;
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
	wait_until(is_passed, nvs_earlier(deadline, nvs_now_ns() + NVS_GRAIN_NS));
	atomic_store(&passes, 0);
}

/* How long to wait for the end of work, after so many submissions were let through: so long that they prolong other
 * work by a part of it only. A kernel that is just long must not be joined by many more: between passes the time grows,
 * from the first one on where there is nothing to expect a collective of. */
static uint64_t patience(uint64_t passed)
{
	uint64_t typical = nvs_meter_typical_ns(), usual = NVS_USUAL * typical;
	bool in_bursts = passed > 0 && typical != 0 && nvs_context_count(NVS_ANY_DEVICE) > 1;
	uint64_t least = in_bursts ? NVS_GRAIN_NS : NVS_LONG_NS, doublings = in_bursts ? passed / NVS_ROUND : passed;
	uint64_t wait = usual > least ? usual : least;
	for (; doublings > 0 && wait < NVS_ENDS_BY_NS; doublings--)
		wait *= 2;
	return wait;
}

bool nvs_gate_drain_shut(uint64_t deadline, bool may_pass)
{
	for (uint64_t passed = 0;; passed++) {
		if (!wait_until(nvs_gate_flags_down, deadline) || !wait_until(nvs_drain_record, deadline))
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
	uint32_t before = atomic_exchange(&nvs_gate, NVS_GATE_SHUT);
	/* A thread that waits for a slice needs the grant first from now on, and asks for it when awake. */
	if (before == NVS_GATE_REST)
		futex(&nvs_gate, FUTEX_WAKE, INT_MAX, NULL);
	/* Behind a gate that was shut before, memory may be away. */
	bool drained = nvs_gate_drain_shut(deadline, before != NVS_GATE_SHUT);
	if (drain_us != NULL)
		*drain_us = (nvs_now_ns() - start) / NVS_NS_PER_US;
	if (!drained && before != NVS_GATE_SHUT)
		nvs_gate_open(before == NVS_GATE_REST ? NVS_GATE_REST : NVS_GATE_OPEN);
	return drained;
}

bool nvs_gate_drained(void)
{
	return nvs_gate_flags_down() && nvs_drain_record() && nvs_drain_finished();
}

bool nvs_gate_drain(uint32_t deadline_ms)
{
	return nvs_drain_record() && wait_until(nvs_drain_finished, nvs_now_ns() + deadline_ms * NVS_NS_PER_MS);
}

/* ---- idleness ---- */

uint64_t nvs_gate_submissions(void)
{
	uint64_t total = 0;
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next)
		total += atomic_load_explicit(&thread->submissions, memory_order_relaxed);
	return total;
}

uint64_t nvs_gate_unaccounted(CUdevice device)
{
	uint64_t total = 0;
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next) {
		uint64_t accounted = atomic_load(&thread->accounted);
		uint64_t made = atomic_load_explicit(&thread->submissions, memory_order_relaxed);
		if (atomic_load(&thread->device) == device && made > accounted)
			total += made - accounted;
	}
	return total;
}

_Atomic uint64_t nvs_gate_next_look;
static _Atomic uint64_t waited_at;

uint64_t nvs_gate_waited_at(void)
{
	return atomic_load(&waited_at);
}

/* The link thread is woken only if it would not look soon by itself, and once for each look. */
void nvs_gate_waited_slow(void)
{
	uint64_t now = nvs_now_ns(), next = atomic_load(&nvs_gate_next_look);
	atomic_store(&waited_at, now);
	if (next > now + NVS_OFTEN_NS && atomic_compare_exchange_strong(&nvs_gate_next_look, &next, now))
		nvs_link_wake();
}

/* Events that were recorded just now, behind nothing, take the GPU some microseconds. */
static bool finished_soon(void)
{
	uint64_t until = nvs_now_ns() + NVS_SOON_NS;
	bool finished = nvs_drain_finished();
	while (!finished && nvs_now_ns() < until)
		finished = nvs_drain_finished();
	return finished;
}

uint64_t nvs_gate_idle_since(void)
{
	uint64_t now = nvs_now_ns(), waited = atomic_load(&waited_at), before = idle.asked ? idle.active_at : now;
	uint64_t submissions = nvs_gate_submissions();
	bool quiet = nvs_gate_quiet(), more = !idle.asked || submissions != idle.submissions || !quiet;
	if (more)
		idle = (typeof(idle)){.asked = true, .submissions = submissions, .active_at = now};
	/* What was submitted since the last look may have ended: a thread has waited for the GPU. */
	if (more && (!quiet || waited <= before))
		return 0;
	bool fresh = !idle.recorded;
	if (fresh && !(idle.recorded = nvs_drain_record()))
		return 0;
	if (!(fresh ? finished_soon() : nvs_drain_finished())) {
		idle.active_at = now;
		return 0;
	}
	if (idle.done_since == 0) /* somewhere between then and now */
		idle.done_since = waited > before ? waited : before + (now - before) / 2;
	return idle.done_since;
}

uint64_t nvs_gate_used_since(void)
{
	return atomic_load(&used_since);
}

void nvs_gate_watch(uint64_t since)
{
	atomic_store(&used_since, since);
}

bool nvs_gate_watch_idle(void)
{
	atomic_store(&used_since, 0);
	nvs_gate_open(NVS_GATE_PACED); /* a new word: all threads come the slow way once */
	if (nvs_gate_quiet() && nvs_gate_submissions() == idle.submissions)
		return true;
	/* One went through under the old word. */
	uint64_t none = 0;
	atomic_compare_exchange_strong(&used_since, &none, nvs_now_ns());
	return false;
}

void nvs_gate_after_fork(void)
{
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next) {
		atomic_store(&thread->in_call, 0);
		atomic_store(&thread->submissions, 0);
		atomic_store(&thread->accounted, 0);
		atomic_store(&thread->device, -1);
		thread->next_sample = thread->next_stop = 0;
		thread->next_pace = UINT64_MAX;
		thread->pass = NVS_GATE_OPEN;
		thread->sample = NULL;
		if (thread != nvs_self)
			atomic_store(&thread->taken, 0);
	}
	atomic_store(&nvs_gate, NVS_GATE_OPEN);
	nvs_entry_after_fork();
	atomic_store(&used_since, 0);
	atomic_store(&waiting, 0);
	atomic_store(&passes, 0);
	atomic_store(&unpaced, 0);
	atomic_store(&nvs_gate_next_look, 0);
	idle.asked = false;
	nvs_pace_after_fork();
	nvs_streams_after_fork();
	nvs_meter_after_fork();
}
