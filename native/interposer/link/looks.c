#include "link/looks.h"

#include "base/clock.h"
#include "gate/gate.h"
#include "gate/meter.h"
#include "gate/streams.h"
#include "link/shell.h"
#include "link/state.h"

static struct {
	uint64_t at;          /* the next look at a slice; 0: when something happens */
	uint64_t looked_at;   /* the last one */
	uint64_t pause;       /* before it */
	uint64_t submissions; /* at the last look */
	uint64_t begun_with;  /* submissions */
	uint64_t marked_from; /* submissions, when a marker was last asked for */
	uint64_t marked_at;
	uint64_t marks[NVS_MAX_GPUS]; /* when the slice began */
	uint64_t turn_at;             /* the next look for the end of a turn */
	/* closing */
	uint64_t shut_at;
	uint64_t idle_submissions; /* how many there were when the slice was closed as idle */
	bool recorded;             /* events behind all that is in flight */
} looks;

static uint64_t between(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : value > high ? high : value;
}

void nvs_looks_begin(void)
{
	uint64_t turn_at = looks.turn_at;
	looks = (typeof(looks)){.turn_at = turn_at, .at = 1};
	looks.begun_with = looks.submissions = nvs_gate_submissions();
	for (uint32_t i = 0; i < nvs_shell_client.count; i++)
		looks.marks[i] = nvs_pace_marks(nvs_link.gpus[i].device);
}

bool nvs_looks_submitted(void)
{
	return nvs_gate_submissions() != looks.begun_with;
}

bool nvs_looks_marked(CUdevice device)
{
	for (uint32_t i = 0; i < nvs_shell_client.count; i++)
		if (nvs_link.gpus[i].device == device)
			return nvs_pace_marks(device) != looks.marks[i];
	return false;
}

/* ---- the end of a slice ---- */

/* The slice was idle when it was closed, and nothing came between. */
static bool still_idle(void)
{
	return nvs_gate_submissions() == looks.idle_submissions;
}

static void tell_ended(void)
{
	bool idle = still_idle();
	nvs_shell_tell_facts();
	nvs_shell_feed((struct nvs_event){
		.type = NVS_EVENT_ENDED,
		.at = idle ? nvs_shell_client.idle_since : nvs_now_ns(),
		.length = looks.recorded ? nvs_pace_span() : 0,
	});
}

/* The gate rests: how far is the work that went through before? Returns when to look again, 0 when it is over. */
static uint64_t follow_closing(void)
{
	while (!looks.recorded && !nvs_gate_quiet() && nvs_now_ns() < looks.shut_at + NVS_OFTEN_NS / 4)
		;
	bool quiet = nvs_gate_quiet();
	bool over = quiet && still_idle();
	if (!over && quiet && !looks.recorded)
		looks.recorded = nvs_drain_record_timed();
	if (over || (looks.recorded && nvs_drain_finished())) {
		tell_ended();
		return 0;
	}
	uint64_t now = nvs_now_ns(), run = (now - looks.shut_at) / 64, pending = 0;
	if (looks.recorded) {
		uint32_t ahead;
		pending = nvs_pace_pending(&ahead);
		nvs_shell_tell_facts();
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_PENDING, .length = pending});
	}
	return now + between(pending / 2 + run, NVS_OFTEN_NS / 2, NVS_PAUSE_NS);
}

void nvs_looks_close(enum nvs_turn_reason reason)
{
	looks.recorded = false;
	looks.shut_at = nvs_now_ns();
	looks.idle_submissions = reason == NVS_TURN_IDLE ? looks.submissions : UINT64_MAX;
	looks.at = follow_closing();
}

/* Returns when to look again, 0 when it has ended. */
static uint64_t follow_overrun(uint64_t now)
{
	if (!looks.recorded && nvs_gate_quiet())
		looks.recorded = nvs_drain_record();
	if (looks.recorded && nvs_drain_finished()) {
		tell_ended();
		return 0;
	}
	return now + NVS_NEAR_NS;
}

/* ---- idleness ---- */

static void look_at_idleness(void)
{
	nvs_shell_tell_facts();
	uint64_t known = nvs_shell_client.idle_since, idle = nvs_gate_idle_since(), since = nvs_gate_used_since();
	if (idle == 0 && known != 0)
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_WORK, .at = since != 0 ? since : nvs_now_ns()});
	if (idle != 0 && idle != known)
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_IDLE, .at = idle});
}

/* Returns when to look again for the end of a turn, 0 for not at all. Where nobody waits for it, idleness is known
 * before somebody comes all the same. */
static uint64_t look_for_turn(uint64_t now)
{
	uint32_t flags = 0;
	for (uint32_t i = 0; i < nvs_shell_client.count; i++)
		flags |= nvs_shell_client.cards[i].grant_flags;
	if (!nvs_shell_client.scheduled || !(flags & (NVS_FLAG_EXCLUSIVE | NVS_FLAG_CONTENDED)))
		return 0;
	uint64_t pause = flags & NVS_FLAG_CONTENDED ? NVS_NEAR_NS : NVS_RARELY_NS;
	if (looks.turn_at != 0 && now < looks.turn_at)
		return nvs_earlier(looks.turn_at, now + pause);
	look_at_idleness();
	return now + pause;
}

/* ---- in a slice ---- */

/* Submissions without a marker may be long. The next one gets a marker where there is none behind it, or only one: what
 * comes when that one is reached would be too late. */
static void mark_next(uint32_t ahead, uint64_t now)
{
	if (ahead > 1 || looks.submissions == looks.marked_from || now < looks.marked_at + NVS_GRAIN_NS)
		return;
	looks.marked_from = looks.submissions;
	looks.marked_at = now;
	nvs_gate_look_closer();
}

/* How long until the next look. Work that is foreseen to end is looked at half-way; where nothing is foreseen, often if
 * a pause would end the slice. Else it is known in time for the bill. */
static uint64_t next_pause(uint64_t pending, bool more)
{
	if (nvs_client_may_end(&nvs_shell_client))
		return between(pending / 2, NVS_OFTEN_NS, NVS_PAUSE_NS);
	if (more || pending != 0)
		return between(2 * looks.pause, NVS_PAUSE_NS, NVS_RARELY_NS);
	return looks.pause > NVS_PAUSE_NS ? NVS_OFTEN_NS : between(2 * looks.pause, NVS_OFTEN_NS, NVS_PAUSE_NS);
}

/* Closely while the end may be near, for the end of what is used is told to the fraction of a millisecond. */
static uint64_t look_at_slice(uint64_t now)
{
	if (nvs_gate_state() != NVS_GATE_PACED)
		return now + NVS_PAUSE_NS; /* memory is still arriving */
	uint64_t submissions = nvs_gate_submissions();
	bool more = submissions != looks.submissions;
	looks.submissions = submissions;
	nvs_meter_poll();
	uint32_t ahead;
	uint64_t pending = nvs_pace_pending(&ahead);
	mark_next(ahead, now);
	look_at_idleness();
	looks.pause = next_pause(pending, more);
	return now + looks.pause;
}

/* An idle slice without a length: the next submission wakes this thread. */
static bool watches(void)
{
	return nvs_shell_client.used_since == 0 && !nvs_client_may_end(&nvs_shell_client);
}

void nvs_look(uint64_t now)
{
	looks.turn_at = look_for_turn(now);
	bool is_due = now >= looks.at || nvs_gate_waited_at() > looks.looked_at;
	if (nvs_shell_client.phase == NVS_STATE_CLOSING)
		looks.at = is_due ? follow_closing() : looks.at;
	else if (nvs_client_follows(&nvs_shell_client))
		looks.at = is_due ? follow_overrun(now) : looks.at;
	else if (nvs_shell_client.phase != NVS_STATE_HELD || watches())
		looks.at = 0;
	else if (is_due)
		looks.at = look_at_slice(now);
	looks.looked_at = now;
	if (nvs_shell_client.idle_since != 0) /* the client acts on it when time has passed: it must still be so */
		look_at_idleness();
}

uint64_t nvs_look_due(void)
{
	atomic_store(&nvs_gate_next_look, nvs_client_may_end(&nvs_shell_client) ? looks.at : 0);
	return nvs_earlier(looks.turn_at, looks.at);
}

void nvs_looks_after_fork(void)
{
	looks = (typeof(looks)){0};
}
