/* Slices: below the grants, tasks that fit together take slices of some ten milliseconds. Memory stays where it
 * is. The GPUs of a process form a gang here too: its submissions need a slice on each GPU whose terms say so, and the
 * slices end together. */
#include "link/state.h"

#include "base/clock.h"
#include "base/log.h"
#include "gate/streams.h"

#define IDLE_NS NVS_NS_PER_MS      /* a gap this long is not used time; in a slice with a length it ends the slice */
#define STUCK_NS NVS_NS_PER_S      /* after that the end of work is not waited for any more */
#define TELL_EVERY_NS NVS_NS_PER_S /* while it runs on */
#define OVERRUN_NS (5 * NVS_NS_PER_MS)
#define FLAGS_SPIN_NS (20 * NVS_NS_PER_US)
#define SOON_NS (50 * NVS_NS_PER_US)
#define QUIET_FIRST_NS (100 * NVS_NS_PER_US)
#define FOLLOW_NS (500 * NVS_NS_PER_US)
#define LATER_NS NVS_NS_PER_MS
#define CLOSER_EVERY_NS (2 * NVS_NS_PER_MS)
#define RARELY_NS (8 * NVS_NS_PER_MS) /* where more than that may be in flight */
#define LAG_NS (4 * NVS_NS_PER_MS)    /* used time that may turn out to be a gap is not told yet */

static enum { NONE, RUNNING, CLOSING } phase;
static bool leftover;   /* work from before the next slice may still run in it */
static bool stuck_told; /* once is enough */

static struct {
	uint64_t used;       /* in earlier stretches of this slice, ns */
	uint64_t accounted;  /* of its used time the meter knows, ns */
	bool joined;         /* work from before it ran on in it */
	bool watching;       /* nothing runs: the next submission wakes this thread */
	uint64_t begun_with; /* submissions */
	uint64_t submissions;
	uint64_t pause;       /* until the next look, while nothing is submitted, ns */
	uint64_t closer_at;   /* when it was last asked for a marker, ns */
	uint64_t closer_from; /* submissions, then */
	/* closing */
	uint64_t idle_since; /* unless more than `submissions` went through; 0: it was not idle */
	enum nvs_turn_reason reason;
	uint64_t shut_at;
	bool recorded; /* events behind all that is in flight */
	bool told;
	uint64_t told_at; /* that its work runs on, ns */
} slice;

/* The GPUs on which work needs a slice, one after the other; NULL before the first and after the last. */
static struct nvs_gpu *needed_after(struct nvs_gpu *gpu)
{
	struct nvs_gpu *end = nvs_link.gpus + nvs_link.gpu_count;
	for (gpu = gpu == NULL ? nvs_link.gpus : gpu + 1; gpu < end; gpu++)
		if (gpu->compute.needed)
			return gpu;
	return NULL;
}

#define FOR_EACH_NEEDED(gpu) for (struct nvs_gpu *gpu = needed_after(NULL); gpu != NULL; gpu = needed_after(gpu))

static bool any_needed(void)
{
	return needed_after(NULL) != NULL;
}

static bool runs_on(void)
{
	FOR_EACH_NEEDED (gpu)
		if (gpu->compute.overrun != 0)
			return true;
	return false;
}

static bool all_given(void)
{
	FOR_EACH_NEEDED (gpu)
		if (gpu->compute.number == 0)
			return false;
	return true;
}

static uint64_t between(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : value > high ? high : value;
}

static bool someone_waits(void)
{
	return atomic_load(&nvs_link.wanted) || nvs_pace_waiting() != 0;
}

enum nvs_gate_state nvs_slice_gate(void)
{
	if (!any_needed())
		return NVS_GATE_OPEN;
	return phase == RUNNING ? NVS_GATE_PACED : NVS_GATE_REST;
}

uint64_t nvs_slice_budget(void)
{
	uint64_t least = 0;
	FOR_EACH_NEEDED (gpu)
		least = nvs_earlier(least, gpu->compute.in_flight);
	return least;
}

/* ---- what was used ---- */

static uint64_t used_until(uint64_t end)
{
	uint64_t since = nvs_gate_used_since();
	return slice.used + (since != 0 && end > since ? end - since : 0);
}

static void account_used(uint64_t used)
{
	if (used <= slice.accounted)
		return;
	FOR_EACH_NEEDED (gpu)
		nvs_meter_used(gpu->device, used - slice.accounted);
	slice.accounted = used;
}

/* ---- the end of a slice ---- */

static void send_over(
	struct nvs_gpu *gpu, uint64_t number, enum nvs_turn_reason reason, uint64_t used, uint64_t pending)
{
	struct nvs_compute *compute = &gpu->compute;
	if (number == 0)
		return;
	/* Samples can miss: where long and short kernels alternate they are few, and each speaks for its neighbours.
	 * What was seen in flight at every look is sure, but not everything has a mark to be seen by. */
	uint64_t behind = nvs_pace_behind_us(gpu->device) - compute->behind_at, used_us = used / NVS_NS_PER_US;
	uint64_t busy = nvs_meter_busy_us(gpu->device);
	busy = busy > compute->busy_at ? busy - compute->busy_at : 0;
	busy = busy > behind ? busy : behind;
	if (busy == 0 && nvs_pace_marks(gpu->device) != compute->marks_at)
		busy = 1; /* it was looked at, and is hardly ever at work */
	/* Who waited for the GPU and does not wake up asks when it does. */
	bool waits = reason == NVS_TURN_IDLE ? atomic_load(&nvs_link.wanted) : someone_waits();
	bool wants = number == compute->number && (compute->asked || waits);
	compute->asked = compute->asked || wants;
	struct nvs_turn_over over = {
		.gpu = (uint32_t)(gpu - nvs_link.gpus),
		.reason = reason,
		.number = number,
		.used_us = used_us,
		.busy_us = busy < used_us ? busy : used_us,
		.pending_us = (uint32_t)(pending / NVS_NS_PER_US),
		.wants = wants,
	};
	nvs_link_send(NVS_TURN_OVER, &over, sizeof(over));
}

static void forget_slice(struct nvs_compute *compute)
{
	compute->over = compute->number != 0 ? compute->number : compute->over;
	compute->number = 0;
}

/* The GPU's own clock is more exact at both ends than this thread can be, where it had work from one to the other. */
static uint64_t used_in_all(enum nvs_turn_reason reason, uint64_t end)
{
	uint64_t used = used_until(end);
	bool at_work = phase == CLOSING && slice.recorded && !slice.joined && slice.used == 0;
	uint64_t span = at_work && (reason == NVS_TURN_ENDED || reason == NVS_TURN_TOLD) ? nvs_pace_span() : 0;
	return span != 0 && used > NVS_UNSEEN_NS ? between(span, used - NVS_UNSEEN_NS, used) : used;
}

/* All has ended, at that time; or is not waited for any more. */
static void finish(enum nvs_turn_reason reason, uint64_t end)
{
	uint64_t used = 0;
	if (phase != NONE) {
		used = used_in_all(reason, end);
		account_used(used);
		phase = NONE;
		nvs_turn_refresh();
		nvs_meter_poll();
	}
	FOR_EACH_NEEDED (gpu) {
		send_over(gpu, gpu->compute.number, reason, used, 0);
		forget_slice(&gpu->compute);
	}
}

/* ---- work that runs on after its slice ---- */

/* So much of it was used until now; pending 0: and no more. */
static void tell_overrun(uint64_t now, uint64_t pending)
{
	uint64_t used = used_until(now);
	account_used(used);
	slice.told_at = now;
	FOR_EACH_NEEDED (gpu) {
		send_over(gpu, gpu->compute.overrun, NVS_TURN_STUCK, used, pending);
		gpu->compute.overrun = pending != 0 ? gpu->compute.overrun : 0;
	}
}

/* It may be a kernel of seconds, or one that waits for what this process has yet to submit: others go on, this process
 * may ask for another slice, and the work is billed as long as it runs. */
static void let_run_on(uint64_t now)
{
	if (!stuck_told)
		NVS_WARN("work on the GPU did not end within %llu ms after its turn: it goes on beside the others', "
			 "and is billed",
			STUCK_NS / NVS_NS_PER_MS);
	stuck_told = leftover = true;
	uint64_t used = used_until(now);
	account_used(used);
	phase = NONE;
	nvs_turn_refresh();
	slice.told_at = now;
	FOR_EACH_NEEDED (gpu) {
		send_over(gpu, gpu->compute.number, NVS_TURN_STUCK, used, NVS_NS_PER_MS);
		gpu->compute.overrun = gpu->compute.number;
		forget_slice(&gpu->compute);
	}
}

/* Returns when to look again, 0 when it has ended. */
static uint64_t follow_overrun(uint64_t now)
{
	if (!slice.recorded && nvs_gate_quiet())
		slice.recorded = nvs_drain_record();
	if (slice.recorded && nvs_drain_finished()) {
		tell_overrun(nvs_now_ns(), 0);
		leftover = false;
		return 0;
	}
	if (now >= slice.told_at + TELL_EVERY_NS)
		tell_overrun(now, NVS_NS_PER_MS);
	return now + OVERRUN_NS;
}

static uint64_t ended_at(uint64_t now)
{
	bool idle = slice.idle_since != 0 && nvs_gate_submissions() == slice.submissions;
	return idle ? slice.idle_since : now;
}

/* The gate rests: how far is the work that went through before? Returns when to look again, 0 when it is over. */
static uint64_t follow_closing(uint64_t now)
{
	bool stuck = now >= slice.shut_at + STUCK_NS;
	while (!slice.recorded && !nvs_gate_quiet() && nvs_now_ns() < slice.shut_at + FLAGS_SPIN_NS)
		;
	if (!slice.recorded && nvs_gate_quiet())
		slice.recorded = nvs_drain_record_timed();
	else if (!slice.recorded && !stuck)
		return now + between((now - slice.shut_at) / 64, SOON_NS, LATER_NS);
	if (slice.recorded && nvs_drain_finished()) {
		leftover = false;
		finish(slice.reason, ended_at(nvs_now_ns()));
		return 0;
	}
	now = nvs_now_ns();
	if (stuck) {
		let_run_on(now);
		return now + OVERRUN_NS;
	}
	uint32_t ahead;
	uint64_t pending = nvs_pace_pending(&ahead);
	if (!slice.told)
		FOR_EACH_NEEDED (gpu)
			send_over(gpu, gpu->compute.number, slice.reason, used_until(now),
				pending > NVS_NS_PER_US ? pending : NVS_NS_PER_US);
	slice.told = true;
	return now + between(pending / 2 + (now - slice.shut_at) / 64, SOON_NS, LATER_NS);
}

static void close_slice(enum nvs_turn_reason reason)
{
	phase = CLOSING;
	slice.reason = reason;
	slice.recorded = slice.told = false;
	nvs_turn_refresh();
	slice.shut_at = nvs_now_ns();
	follow_closing(slice.shut_at);
}

void nvs_slice_dropped(bool drained)
{
	uint64_t now = nvs_now_ns();
	if (runs_on())
		tell_overrun(now, 0);
	leftover = !drained;
	finish(drained ? NVS_TURN_TOLD : NVS_TURN_STUCK, now);
	FOR_EACH_NEEDED (gpu)
		gpu->compute.asked = false;
}

void nvs_slice_forget(void)
{
	if (phase != NONE || runs_on())
		account_used(used_until(nvs_now_ns()));
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		nvs_meter_by_slices(nvs_link.gpus[i].device, false);
		nvs_link.gpus[i].compute = (struct nvs_compute){0};
	}
	phase = NONE;
}

/* ---- messages ---- */

static void begin_slice(void)
{
	uint64_t now = nvs_now_ns();
	if (runs_on()) /* from now on it is part of the new slice */
		tell_overrun(now, 0);
	phase = RUNNING;
	slice = (typeof(slice)){.joined = leftover};
	nvs_pace_new_slice();
	FOR_EACH_NEEDED (gpu) {
		gpu->compute.busy_at = nvs_meter_busy_us(gpu->device);
		gpu->compute.behind_at = nvs_pace_behind_us(gpu->device);
		gpu->compute.marks_at = nvs_pace_marks(gpu->device);
	}
	slice.begun_with = nvs_gate_submissions();
	nvs_gate_watch(leftover || someone_waits() ? now : 0);
	leftover = false;
	nvs_turn_refresh();
}

void nvs_slice_given(struct nvs_gpu *gpu, const struct nvs_turn_ok *message)
{
	struct nvs_compute *compute = &gpu->compute;
	if (!compute->needed || gpu->grant == 0 || message->number == 0 || message->number == compute->over)
		return; /* crossed our own end of it */
	if (message->number == compute->number) {
		compute->length = message->length_us * NVS_NS_PER_US;
		return; /* while it closes, too late */
	}
	if (phase != NONE) { /* its last work may still run: it is part of the new slice from now on */
		leftover = true;
		finish(phase == CLOSING ? slice.reason : NVS_TURN_TOLD, nvs_now_ns());
	}
	compute->asked = false;
	compute->number = message->number;
	compute->since = nvs_now_ns();
	compute->length = message->length_us * NVS_NS_PER_US;
	if (all_given())
		begin_slice();
}

void nvs_slice_told(struct nvs_gpu *gpu, const struct nvs_end_turn *message)
{
	if (message->number == 0 || gpu->compute.number != message->number)
		return; /* crossed our own end of it */
	if (phase == RUNNING)
		close_slice(NVS_TURN_TOLD);
	else if (phase == NONE) /* it waited for the rest of the gang */
		finish(NVS_TURN_TOLD, 0);
}

void nvs_slice_terms(struct nvs_gpu *gpu, const struct nvs_terms *message)
{
	struct nvs_compute *compute = &gpu->compute;
	bool needed = message->flags & NVS_FLAG_TURNS;
	compute->in_flight = message->in_flight_us;
	if (needed != compute->needed) {
		if (phase != NONE || runs_on())
			account_used(used_until(nvs_now_ns()));
		NVS_DEBUG("device %d: work %s", gpu->device, needed ? "takes turns" : "runs freely");
		*compute = (struct nvs_compute){
			.needed = needed, .in_flight = message->in_flight_us, .over = compute->over};
		nvs_meter_by_slices(gpu->device, needed);
		leftover = leftover || needed;
		if (!any_needed())
			phase = NONE;
		else if (phase == RUNNING && needed)
			close_slice(NVS_TURN_ENDED);
		else if (phase == NONE && all_given())
			begin_slice();
	}
	nvs_turn_refresh();
}

void nvs_slice_ask(void)
{
	bool rests = nvs_gate_state() == NVS_GATE_REST; /* so all is granted, and in its place */
	if (!rests || !atomic_load(&nvs_link.wanted) || (phase == CLOSING && !slice.told))
		return;
	FOR_EACH_NEEDED (gpu) {
		struct nvs_compute *compute = &gpu->compute;
		struct nvs_req_turn request = {.gpu = (uint32_t)(gpu - nvs_link.gpus)};
		if (gpu->announced && gpu->grant != 0 && !compute->asked && (compute->number == 0 || phase == CLOSING))
			compute->asked = nvs_link_send_locked(NVS_REQ_TURN, &request, sizeof(request));
	}
}

/* ---- while it lasts ---- */

/* When the first of the slices ends; 0 when none does. */
static uint64_t slice_end(void)
{
	uint64_t end = 0;
	FOR_EACH_NEEDED (gpu)
		if (gpu->compute.number != 0 && gpu->compute.length != 0)
			end = nvs_earlier(end, gpu->compute.since + gpu->compute.length);
	return end;
}

/* What it has in flight need not be known to the millisecond: looking costs it more than it tells. */
static bool is_loose(void)
{
	return nvs_slice_budget() * NVS_NS_PER_US > RARELY_NS;
}

/* Submissions without a marker may be long. The next one gets a marker where there is none behind it, or only one: what
 * comes when that one is reached would be too late. */
static void mark_next(uint64_t submissions, uint32_t ahead, uint64_t now)
{
	uint64_t pause = is_loose() ? RARELY_NS : CLOSER_EVERY_NS;
	if (ahead > 1 || submissions == slice.closer_from || now < slice.closer_at + pause)
		return;
	slice.closer_from = submissions;
	slice.closer_at = now;
	nvs_gate_look_closer();
}

/* Closely while the end may be near, for the end of what is used is told to the fraction of a millisecond. */
static uint64_t next_look(uint64_t now)
{
	uint64_t submissions = nvs_gate_submissions();
	bool more = submissions != slice.submissions;
	slice.submissions = submissions;
	nvs_meter_poll();
	uint32_t ahead;
	uint64_t pending = nvs_pace_pending(&ahead);
	mark_next(submissions, ahead, now);
	if (more && is_loose())
		return now + RARELY_NS / 2;
	if (more || pending != 0) {
		slice.pause = 0;
		return now + between(pending / 2, more ? FOLLOW_NS : QUIET_FIRST_NS, LATER_NS);
	}
	slice.pause = slice.pause == 0 ? QUIET_FIRST_NS : slice.pause * 2 < LATER_NS ? slice.pause * 2 : LATER_NS;
	return now + slice.pause;
}

/* Returns when to look again. */
static uint64_t follow_running(uint64_t now, uint64_t end)
{
	if (slice.watching && end == 0 && nvs_gate_used_since() == 0)
		return 0;
	slice.watching = false;
	if (nvs_gate_state() != NVS_GATE_PACED)
		return nvs_earlier(end, now + LATER_NS); /* memory is still arriving */
	uint64_t next = next_look(now), idle = nvs_gate_idle_since();
	/* Who waits for the GPU to catch up is about to wake, and submits more, unless its host hesitates. */
	bool wakes = slice.submissions == slice.begun_with || nvs_pace_waiting() != 0;
	uint64_t patience = wakes ? NVS_WAKE_NS : IDLE_NS;
	if (idle == 0 || now < idle + patience) {
		uint64_t used = used_until(now);
		account_used(used > LAG_NS ? used - LAG_NS : 0);
		return nvs_earlier(end, idle != 0 && now < idle + patience ? idle + patience : next);
	}
	if (end != 0) {
		slice.idle_since = idle;
		close_slice(NVS_TURN_IDLE);
		return now;
	}
	slice.used = used_until(idle);
	account_used(slice.used);
	slice.watching = nvs_gate_watch_idle();
	return slice.watching ? 0 : now + FOLLOW_NS;
}

uint64_t nvs_slice_due(uint64_t now)
{
	if (phase == CLOSING)
		return follow_closing(now);
	uint64_t end = slice_end();
	bool over = end != 0 && now >= end;
	if (phase == NONE) {
		if (over) /* it waited for the rest of the gang in vain */
			finish(NVS_TURN_ENDED, 0);
		return nvs_earlier(over ? 0 : end, runs_on() ? follow_overrun(now) : 0);
	}
	if (!over)
		return follow_running(now, end);
	close_slice(NVS_TURN_ENDED);
	return now;
}

void nvs_slice_after_fork(void)
{
	phase = NONE;
	leftover = false;
}
