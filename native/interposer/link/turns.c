/* Grants and the gate. The GPUs of a process form a gang: the gate is open when all of them are granted, and a turn
 * ends on all of them. */
#include "link/state.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "link/patience.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"

#define DRAIN_DEADLINE_MS 10000u
#define CONTROL_DRAIN_MS 2000u
#define IDLE_ASK_NS (5 * NVS_NS_PER_MS)
#define QUIET_ASK_NS (50 * NVS_NS_PER_MS)
#define DRAIN_ASK_NS (5 * NVS_NS_PER_MS)
#define ALONE_NS (10 * NVS_NS_PER_S) /* without a scheduler, before memory comes back by itself */

static bool scheduled; /* submissions need a grant */
static bool opening;   /* the gate would be open, but for memory that is not there yet */
static bool draining;  /* the gate is shut, but work that went through before may still run */
static struct nvs_patience pauses;
static uint64_t alone_since; /* memory is missing and there is no scheduler to give it, ns; 0: no */

static bool all_granted(void)
{
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
		if (nvs_link.gpus[i].grant == 0)
			return false;
	return true;
}

static bool any_flag(uint32_t flag)
{
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
		if (nvs_link.gpus[i].grant_flags & flag)
			return true;
	return false;
}

/* Nobody waits yet when an open gate goes to rest: who finds it so asks. */
static void set_gate(void)
{
	enum nvs_gate_state how = scheduled ? nvs_slice_gate() : NVS_GATE_OPEN;
	bool was_open = nvs_gate_state() == NVS_GATE_OPEN || nvs_gate_state() == NVS_GATE_PACED;
	if (how == NVS_GATE_REST && was_open)
		atomic_store(&nvs_link.wanted, false);
	nvs_pace_set_budget(how == NVS_GATE_PACED ? nvs_slice_budget() : 0);
	if (how == NVS_GATE_OPEN && scheduled && any_flag(NVS_FLAG_EXCLUSIVE))
		how = NVS_GATE_PACED;
	nvs_gate_open(how);
}

/* The mover brings what is missing, and then wakes this thread. */
static void open_if_granted(void)
{
	if (scheduled && !all_granted())
		return;
	opening = !nvs_residency_open();
	if (opening) {
		nvs_mover_kick();
		return;
	}
	draining = false;
	alone_since = 0;
	set_gate();
}

void nvs_turn_refresh(void)
{
	if (!opening && nvs_gate_state() != NVS_GATE_SHUT)
		set_gate();
}

/* Work that went through before is not waited for. */
static void shut_for_now(void)
{
	nvs_gate_shut();
	opening = false;
	draining = true;
}

/* The gate is shut and nothing runs any more: memory may leave. */
static void shut_down(void)
{
	opening = draining = false;
	nvs_residency_shut();
	nvs_mover_kick();
}

static void forget_grant(struct nvs_gpu *gpu)
{
	gpu->grant = 0;
	gpu->grant_flags = 0;
	gpu->quantum = 0;
}

static void report_released(struct nvs_gpu *gpu, enum nvs_release_reason reason)
{
	struct nvs_lock_released released = {
		.gpu = (uint32_t)(gpu - nvs_link.gpus),
		.reason = reason,
		.grant = gpu->grant,
	};
	if (nvs_link_send(NVS_LOCK_RELEASED, &released, sizeof(released)))
		NVS_INFO("Sent LOCK_RELEASED");
}

/* What is pinned by now is known before the turn ends: the next one is planned with it. */
static void tell_memory(void)
{
	pthread_mutex_lock(&nvs_link.lock);
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
		nvs_link_send_memory(&nvs_link.gpus[i]);
	pthread_mutex_unlock(&nvs_link.lock);
}

/* Stop, wait for the GPU, give the grants back. When the work does not end in time the gate is open again: the grants
 * are reported as stuck and kept, on no particular terms, until the scheduler grants or drops them anew. */
static void release(enum nvs_release_reason reason, uint32_t deadline_ms)
{
	atomic_store(&nvs_link.wanted, false); /* who finds the gate shut from here on asks again */
	bool drained = nvs_gate_close(deadline_ms, NULL);
	if (drained)
		shut_down();
	nvs_meter_poll();
	nvs_slice_dropped(drained);
	tell_memory();
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		struct nvs_gpu *gpu = &nvs_link.gpus[i];
		uint64_t grant = gpu->grant;
		if (grant == 0)
			continue;
		report_released(gpu, drained ? reason : NVS_RELEASE_STUCK);
		forget_grant(gpu);
		gpu->given_back = drained ? grant : 0;
		if (!drained)
			gpu->grant = grant;
	}
	if (!drained)
		nvs_turn_refresh();
	if (!drained)
		NVS_WARN("work on the GPU did not end within %u ms: it goes on beside the others'", deadline_ms);
}

void nvs_turn_granted(struct nvs_gpu *gpu, const struct nvs_lock_ok *message)
{
	if (message->grant == 0 || message->grant == gpu->given_back)
		return; /* new terms that crossed our own release */
	if (gpu->grant == message->grant) {
		NVS_DEBUG("Received LOCK_OK with new terms");
	} else {
		NVS_INFO("Received LOCK_OK");
		gpu->granted_at = nvs_now_ns();
	}
	gpu->asked = false;
	gpu->grant = message->grant;
	gpu->grant_flags = message->flags;
	gpu->quantum = message->quantum_ms * NVS_NS_PER_MS;
	nvs_residency_granted(gpu->device);
	open_if_granted();
}

void nvs_turn_dropped(struct nvs_gpu *gpu, const struct nvs_drop_lock *message)
{
	if (gpu->grant == 0 || gpu->grant != message->grant)
		return; /* crossed our own release */
	NVS_INFO("Received DROP_LOCK");
	release(NVS_RELEASE_TOLD, message->deadline_ms != 0 ? message->deadline_ms : DRAIN_DEADLINE_MS);
}

void nvs_turn_control(bool on)
{
	bool was_free = !scheduled;
	scheduled = on;
	if (!on)
		for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
			forget_grant(&nvs_link.gpus[i]);
	if (!on) {
		nvs_slice_forget();
		nvs_residency_free_all();
	}
	alone_since = 0;
	if (!on || all_granted()) {
		open_if_granted();
	} else if (was_free) {
		atomic_store(&nvs_link.wanted, false);
		if (nvs_gate_close(CONTROL_DRAIN_MS, NULL))
			shut_down();
		else
			shut_for_now();
	}
}

void nvs_turn_uncontrolled(void)
{
	scheduled = false;
	nvs_slice_forget();
	nvs_residency_orphaned();
	open_if_granted();
	if (opening && alone_since == 0)
		alone_since = nvs_now_ns();
}

void nvs_turn_extended(void)
{
	if (scheduled)
		shut_for_now();
}

uint64_t nvs_turn_proceed(uint64_t now)
{
	if (alone_since != 0 && now >= alone_since + ALONE_NS) {
		alone_since = 0;
		NVS_INFO("no scheduler for %llu s: bringing memory back to the card", ALONE_NS / NVS_NS_PER_S);
		nvs_residency_free_all();
		nvs_mover_kick();
	}
	if (opening)
		open_if_granted();
	if (draining && nvs_gate_drained())
		shut_down();
	return nvs_earlier(alone_since != 0 ? alone_since + ALONE_NS : 0, draining ? now + DRAIN_ASK_NS : 0);
}

void nvs_turn_ask(void)
{
	if (!scheduled || !atomic_load(&nvs_link.wanted))
		return;
	nvs_patience_back(&pauses, nvs_now_ns(), nvs_mover_switch_ns());
	pthread_mutex_lock(&nvs_link.lock);
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		struct nvs_gpu *gpu = &nvs_link.gpus[i];
		struct nvs_req_lock request = {.gpu = i};
		if (gpu->announced && gpu->grant == 0 && !gpu->asked)
			gpu->asked = nvs_link_send_locked(NVS_REQ_LOCK, &request, sizeof(request));
	}
	nvs_slice_ask();
	pthread_mutex_unlock(&nvs_link.lock);
}

/* When the first of the quanta ends; 0 when none does. A turn that nobody waits for does not end. */
static uint64_t quantum_end(void)
{
	uint64_t end = 0;
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		const struct nvs_gpu *gpu = &nvs_link.gpus[i];
		if (gpu->grant != 0 && gpu->quantum != 0 && (gpu->grant_flags & NVS_FLAG_CONTENDED))
			end = nvs_earlier(end, gpu->granted_at + gpu->quantum);
	}
	return end;
}

uint64_t nvs_turn_end_due(uint64_t now)
{
	if (!scheduled || !any_flag(NVS_FLAG_EXCLUSIVE | NVS_FLAG_CONTENDED))
		return 0;
	uint32_t idle_ms = nvs_env()->idle_ms;
	if (idle_ms == 0)
		idle_ms = (uint32_t)(nvs_patience(&pauses) / NVS_NS_PER_MS);
	if (!any_flag(NVS_FLAG_CONTENDED)) {
		nvs_gate_idle(idle_ms); /* so that one who comes need not wait until idleness is established */
		return now + QUIET_ASK_NS;
	}
	uint64_t end = quantum_end();
	bool over = end != 0 && now >= end;
	/* A submitter that waits for the rest of the gang, for a slice, or for memory that is still arriving, is
	 * no idleness. */
	bool waits = !all_granted() || nvs_gate_state() == NVS_GATE_REST;
	bool used = opening || (waits && atomic_load(&nvs_link.wanted));
	if (over || (!used && nvs_gate_idle(idle_ms))) {
		release(over ? NVS_RELEASE_ENDED : NVS_RELEASE_IDLE, DRAIN_DEADLINE_MS);
		if (!over)
			nvs_patience_gone(&pauses, nvs_now_ns());
		return 0;
	}
	return nvs_earlier(end, now + IDLE_ASK_NS);
}

void nvs_turn_after_fork(void)
{
	scheduled = opening = draining = false;
	pauses = (struct nvs_patience){0};
	alone_since = 0;
	nvs_slice_after_fork();
}
