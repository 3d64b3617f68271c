/* The shell around the client (native/client): messages become events, actions become messages and calls. It decides
 * nothing. Link thread only. */
#include "link/shell.h"

#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "gate/gate.h"
#include "gate/meter.h"
#include "link/looks.h"
#include "link/sleep.h"
#include "link/state.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"

#define STORY_BYTES 2048

_Static_assert((int)NVS_CLIENT_OPEN == (int)NVS_GATE_OPEN && (int)NVS_CLIENT_PACED == (int)NVS_GATE_PACED &&
		       (int)NVS_CLIENT_SHUT == (int)NVS_GATE_SHUT && (int)NVS_CLIENT_REST == (int)NVS_GATE_REST,
	"the client and the gate name the same states");

struct nvs_client nvs_shell_client;

static uint64_t wake_at;

/* What was seen of each card when its slice began. */
static struct nvs_seen seen_before[NVS_MAX_GPUS];

static struct nvs_seen seen_of(CUdevice device)
{
	return (struct nvs_seen){
		.samples = nvs_meter_busy_us(device) * NVS_NS_PER_US,
		.in_flight = nvs_pace_behind_us(device) * NVS_NS_PER_US,
	};
}

static void begin_slice(uint64_t used_since)
{
	nvs_pace_new_slice();
	for (uint32_t i = 0; i < nvs_shell_client.count; i++)
		seen_before[i] = seen_of(nvs_link.gpus[i].device);
	nvs_gate_watch(used_since);
	nvs_looks_begin();
}

/* ---- actions ---- */

static void watch_idle(void)
{
	if (!nvs_gate_watch_idle())
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_WORK, .at = nvs_gate_used_since()});
}

static void send_over(const struct nvs_action *action)
{
	CUdevice device = nvs_link.gpus[action->card].device;
	const struct nvs_seen *before = &seen_before[action->card];
	nvs_meter_poll();
	struct nvs_seen now = seen_of(device);
	struct nvs_seen seen = {
		.samples = now.samples > before->samples ? now.samples - before->samples : 0,
		.in_flight = now.in_flight - before->in_flight,
		.marked = nvs_looks_marked(device),
	};
	struct nvs_turn_over over = {
		.gpu = action->card,
		.reason = action->reason,
		.number = action->number,
		.used_us = action->used / NVS_NS_PER_US,
		.busy_us = nvs_bill_busy(&seen, action->used) / NVS_NS_PER_US,
		.pending_us = (uint32_t)(action->length / NVS_NS_PER_US),
		.wants = action->wants,
	};
	nvs_link_send(NVS_TURN_OVER, &over, sizeof(over));
}

/* What is pinned by now is known before the turn ends: the next one is planned with it. */
static void tell_memory(void)
{
	pthread_mutex_lock(&nvs_link.lock);
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
		nvs_link_send_memory(&nvs_link.gpus[i]);
	pthread_mutex_unlock(&nvs_link.lock);
}

static void send_released(const struct nvs_action *action)
{
	struct nvs_lock_released released = {.gpu = action->card, .reason = action->reason, .grant = action->number};
	tell_memory();
	if (nvs_link_send(NVS_LOCK_RELEASED, &released, sizeof(released)))
		NVS_INFO("Sent LOCK_RELEASED");
}

/* Nobody waits yet when an open gate closes: who finds it so asks. */
static void set_gate(const struct nvs_action *action)
{
	bool shuts = action->gate == NVS_CLIENT_SHUT || action->gate == NVS_CLIENT_REST;
	bool was_open = nvs_gate_state() == NVS_GATE_OPEN || nvs_gate_state() == NVS_GATE_PACED;
	if (shuts && was_open)
		atomic_store(&nvs_link.wanted, false);
	nvs_pace_set_budget(action->length / NVS_NS_PER_US);
	if (action->gate == NVS_CLIENT_SHUT)
		nvs_gate_shut();
	else
		nvs_gate_open((enum nvs_gate_state)action->gate);
}

static void drain_turn(uint64_t deadline)
{
	atomic_store(&nvs_link.wanted, false);
	bool drained = nvs_gate_close((uint32_t)(deadline / NVS_NS_PER_MS), NULL);
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_DRAINED, .flags = drained});
}

/* The mover brings what is missing, and then wakes this thread. */
static void open_memory(void)
{
	bool in_place = nvs_residency_open();
	if (!in_place)
		nvs_mover_kick();
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_PLACE, .flags = in_place});
}

static void warn_stuck(const struct nvs_action *action)
{
	static bool told; /* of slices: once is enough */
	unsigned long long ms = action->length / NVS_NS_PER_MS;
	if (!action->wants)
		NVS_WARN("work on the GPU did not end within %llu ms: it goes on beside the others'", ms);
	else if (!told)
		NVS_WARN("work on the GPU did not end within %llu ms after its turn: it goes on beside the others', "
			 "and is billed",
			ms);
	told = told || action->wants;
}

static void report(const struct nvs_action *action)
{
	static bool told; /* the first one is the one that matters */
	char story[STORY_BYTES];
	nvs_client_story(&nvs_shell_client, story, sizeof(story));
	if (!told)
		NVS_WARN("a fault of nvshare: a slice of device %d, or its sleep, cannot change so; please report "
			 "this: %s",
			nvs_link.gpus[action->card].device, story);
	told = true;
}

static void carry_out(const struct nvs_action *action)
{
	const struct nvs_gpu *gpu = &nvs_link.gpus[action->card];
	switch ((enum nvs_action_type)action->type) {
	case NVS_DO_SET_GATE:
		return set_gate(action);
	case NVS_DO_SEND_REQ_LOCK: {
		struct nvs_req_lock request = {.gpu = action->card};
		nvs_link_send(NVS_REQ_LOCK, &request, sizeof(request));
		return;
	}
	case NVS_DO_SEND_RELEASED:
		return send_released(action);
	case NVS_DO_SEND_REQ_TURN: {
		struct nvs_req_turn request = {.gpu = action->card};
		nvs_link_send(NVS_REQ_TURN, &request, sizeof(request));
		return;
	}
	case NVS_DO_SEND_TURN_OVER:
		return send_over(action);
	case NVS_DO_BEGIN_SLICE:
		return begin_slice(action->at);
	case NVS_DO_WATCH_IDLE:
		return watch_idle();
	case NVS_DO_CLOSE_SLICE:
		return nvs_looks_close((enum nvs_turn_reason)action->reason);
	case NVS_DO_COUNT_USED:
		return nvs_meter_used(gpu->device, action->used);
	case NVS_DO_COUNT_BY:
		NVS_DEBUG("device %d: work %s", gpu->device, action->wants ? "takes turns" : "runs freely");
		return nvs_meter_by_slices(gpu->device, action->wants);
	case NVS_DO_TAKE_GRANT:
		if (action->wants)
			NVS_INFO("Received LOCK_OK");
		else
			NVS_DEBUG("Received LOCK_OK with new terms");
		return nvs_residency_granted(gpu->device);
	case NVS_DO_DRAIN_TURN:
		return drain_turn(action->length);
	case NVS_DO_LOOK_DRAINED:
		return nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_DRAINED, .flags = nvs_gate_drained()});
	case NVS_DO_OPEN_MEMORY:
		return open_memory();
	case NVS_DO_SHUT_MEMORY:
		nvs_residency_shut();
		return nvs_mover_kick();
	case NVS_DO_FREE_MEMORY:
		if (action->wants)
			NVS_INFO("no scheduler for %llu s: bringing memory back to the card",
				NVS_ENDS_BY_NS / NVS_NS_PER_S);
		nvs_residency_free_all();
		return nvs_mover_kick();
	case NVS_DO_TELL_STUCK:
		return warn_stuck(action);
	case NVS_DO_REPORT:
		return report(action);
	case NVS_DO_SET_ENTRY:
	case NVS_DO_LOOK_HELD:
	case NVS_DO_LEAVE_CARDS:
	case NVS_DO_RETURN_TO_CARDS:
	case NVS_DO_LOOK_ROOM:
	case NVS_DO_SEND_SLEPT:
	case NVS_DO_SEND_REQ_WAKE:
	case NVS_DO_SEND_AWAKE:
		return nvs_sleep_carry_out(action);
	}
}

/* ---- events ---- */

void nvs_shell_feed(struct nvs_event event)
{
	struct nvs_actions actions;
	event.now = nvs_now_ns();
	event.waits = nvs_pace_waiting() != 0;
	event.names = nvs_gate_names();
	nvs_shell_client.idle_turn = nvs_env()->idle_ms * NVS_NS_PER_MS;
	nvs_client_handle(&nvs_shell_client, &event, &actions);
	wake_at = actions.wake_at;
	for (uint32_t i = 0; i < actions.count; i++)
		carry_out(&actions.list[i]);
}

void nvs_shell_tell_facts(void)
{
	bool shut = nvs_gate_state() == NVS_GATE_SHUT || nvs_gate_state() == NVS_GATE_REST;
	if (shut && atomic_load(&nvs_link.wanted) && atomic_exchange(&nvs_link.wanted, false))
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_WANT, .length = nvs_mover_switch_ns()});
	uint64_t since = nvs_gate_used_since();
	bool begun = nvs_shell_client.used_since == 0 && since != 0;
	bool first = !nvs_shell_client.worked && nvs_looks_submitted();
	if (nvs_shell_client.phase != NVS_STATE_NONE && (begun || first))
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_WORK, .at = since != 0 ? since : nvs_now_ns()});
}

static void tell(const struct nvs_gpu *gpu, struct nvs_event event)
{
	nvs_shell_tell_facts();
	event.card = (uint32_t)(gpu - nvs_link.gpus);
	nvs_shell_feed(event);
}

void nvs_shell_granted(struct nvs_gpu *gpu, const struct nvs_lock_ok *message)
{
	tell(gpu, (struct nvs_event){.type = NVS_EVENT_GRANT,
			  .number = message->grant,
			  .flags = message->flags,
			  .length = message->quantum_ms * NVS_NS_PER_MS});
}

void nvs_shell_dropped(struct nvs_gpu *gpu, const struct nvs_drop_lock *message)
{
	if (message->grant != 0 && nvs_shell_client.cards[gpu - nvs_link.gpus].grant == message->grant)
		NVS_INFO("Received DROP_LOCK");
	tell(gpu, (struct nvs_event){.type = NVS_EVENT_DROP,
			  .number = message->grant,
			  .length = message->deadline_ms * NVS_NS_PER_MS});
}

void nvs_shell_terms(struct nvs_gpu *gpu, const struct nvs_terms *message)
{
	tell(gpu, (struct nvs_event){.type = NVS_EVENT_TERMS,
			  .flags = message->flags,
			  .length = message->in_flight_us * NVS_NS_PER_US});
}

void nvs_shell_given(struct nvs_gpu *gpu, const struct nvs_turn_ok *message)
{
	tell(gpu, (struct nvs_event){.type = NVS_EVENT_GIVE,
			  .number = message->number,
			  .length = message->length_us * NVS_NS_PER_US,
			  .patience = message->patience_us * NVS_NS_PER_US});
}

void nvs_shell_told(struct nvs_gpu *gpu, const struct nvs_end_turn *message)
{
	tell(gpu, (struct nvs_event){.type = NVS_EVENT_END, .number = message->number});
}

void nvs_shell_control(bool scheduled)
{
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_CONTROL, .flags = scheduled});
}

void nvs_shell_lost(void)
{
	nvs_residency_orphaned();
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_LOST});
}

void nvs_shell_announced(uint32_t gpu)
{
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_CARD, .card = gpu});
}

uint64_t nvs_shell_round(void)
{
	nvs_shell_tell_facts();
	nvs_sleep_tell_facts();
	nvs_look(nvs_now_ns());
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_TIME});
	return nvs_earlier(wake_at, nvs_look_due());
}

void nvs_shell_after_fork(void)
{
	memset(&nvs_shell_client, 0, sizeof(nvs_shell_client));
	wake_at = 0;
	nvs_looks_after_fork();
	nvs_sleep_after_fork();
}
