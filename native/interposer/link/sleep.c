#include "link/sleep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bars.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/sleep_table.h"
#include "gate/entry.h"
#include "gate/streams.h"
#include "link/shell.h"
#include "link/sleeper.h"
#include "link/state.h"
#include "memory/swap/residency.h"

#define END_WAIT_NS NVS_ENDS_BY_NS

_Static_assert((int)NVS_CLIENT_ENTRY_OPEN == (int)NVS_ENTRY_OPEN && (int)NVS_CLIENT_ENTRY_HELD == (int)NVS_ENTRY_HELD &&
		       (int)NVS_CLIENT_ENTRY_SHUT == (int)NVS_ENTRY_SHUT &&
		       (int)NVS_CLIENT_ENTRY_BROKEN == (int)NVS_ENTRY_BROKEN,
	"the client and the entry name the same states");

static uint64_t context_bytes; /* of this process on a card, as the last order said */
static uint32_t told;          /* the bar that this scheduler was told */
static _Atomic bool process_ends;

/* ---- can this process sleep? ---- */

/* A tracer stops threads where it likes. */
static bool is_traced(void)
{
	char line[128];
	int tracer = 0;
	FILE *status = fopen("/proc/self/status", "re");
	while (status != NULL && fgets(line, sizeof(line), status) != NULL)
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	if (status != NULL)
		fclose(status);
	return tracer != 0;
}

static bool any_pinned(void)
{
	struct nvs_holding view;
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		nvs_residency_view(nvs_link.gpus[i].device, &view);
		if (view.pinned != 0)
			return true;
	}
	return false;
}

static enum nvs_bar_reason find_bar(void)
{
	if (!nvs_sleeper_supported())
		return NVS_BAR_DRIVER;
	if (nvs_bar() != NVS_BAR_NONE)
		return nvs_bar();
	return any_pinned() ? NVS_BAR_PINNED : NVS_BAR_NONE;
}

static struct nvs_sleepable answer(void)
{
	told = find_bar();
	return (struct nvs_sleepable){
		.bar = told, .context = nvs_client_is_away(&nvs_shell_client) ? context_bytes : 0};
}

void nvs_sleep_registering(void)
{
	struct nvs_sleepable message = answer();
	nvs_link_send_locked(NVS_SLEEPABLE, &message, sizeof(message));
}

/* ---- messages ---- */

void nvs_sleep_ordered(const struct nvs_sleep *message)
{
	enum nvs_bar_reason bar = find_bar();
	if (bar == NVS_BAR_NONE && is_traced())
		bar = NVS_BAR_DEBUGGER;
	context_bytes = message->context;
	nvs_shell_tell_facts();
	nvs_sleep_tell_facts();
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_SLEEP,
		.number = message->order,
		.length = message->lock_ms * NVS_NS_PER_MS,
		.flags = bar});
}

void nvs_sleep_waken(const struct nvs_wake *message)
{
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_WAKE, .number = message->order});
}

/* ---- facts ---- */

static void tell_ended(CUresult error, bool locked)
{
	bool left = nvs_shell_client.sleep.state == NVS_SLEEP_LEAVING;
	if (error != CUDA_SUCCESS)
		NVS_WARN("the driver could not %s this process %s its cards (CUDA error %d)%s", left ? "take" : "bring",
			left ? "off" : "back to", (int)error,
			locked ? ": its CUDA calls fail from now on" : ": it goes on as it was");
	nvs_shell_feed((struct nvs_event){
		.type = left ? NVS_EVENT_LEFT : NVS_EVENT_RETURNED, .number = (uint64_t)error, .flags = locked});
}

void nvs_sleep_tell_facts(void)
{
	CUresult error;
	bool locked;
	if (nvs_sleeper_ended(&error, &locked))
		tell_ended(error, locked);
	if (!nvs_client_is_awake(&nvs_shell_client) && nvs_entry_waiting() != 0)
		nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_CALL});
	if (nvs_link.phase == NVS_LINK_REGISTERED && find_bar() != (enum nvs_bar_reason)told) {
		struct nvs_sleepable message = answer();
		nvs_link_send(NVS_SLEEPABLE, &message, sizeof(message));
	}
}

/* Nobody is inside, and nobody will be; captures pass a gate that is shut. A call that was inside may have brought a
 * bar. */
static void look_held(void)
{
	bool held = nvs_entry_quiet() && atomic_load(&nvs_captures) == 0 && !atomic_load(&process_ends);
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_HELD, .flags = held, .number = find_bar()});
}

static bool has_room(const struct nvs_gpu *gpu)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	return nvs_nvml.nvmlDeviceGetHandleByUUID(gpu->uuid, &device) == NVML_SUCCESS &&
	       nvs_nvml.nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS && memory.free >= context_bytes;
}

/* A restore that finds no room fails for ever. So without NVML, or a known size, this process waits for a scheduler. */
static void look_for_room(void)
{
	int inside = nvs_inside; /* a thread of our own may load a library all the same */
	nvs_inside = 0;
	bool room = context_bytes != 0 && nvs_resolve_nvml() && nvs_nvml.nvmlInit_v2 != NULL &&
		    nvs_nvml.nvmlShutdown != NULL && nvs_nvml.nvmlDeviceGetHandleByUUID != NULL &&
		    nvs_nvml.nvmlDeviceGetMemoryInfo != NULL && nvs_nvml.nvmlInit_v2() == NVML_SUCCESS;
	nvs_inside = inside;
	bool opened = room;
	for (uint32_t i = 0; i < nvs_link.gpu_count && room; i++)
		room = has_room(&nvs_link.gpus[i]);
	if (opened)
		nvs_nvml.nvmlShutdown();
	nvs_shell_feed((struct nvs_event){.type = NVS_EVENT_ROOM, .flags = room});
}

/* ---- actions ---- */

static void leave_cards(uint64_t lock_ns)
{
	nvs_entry_set(NVS_ENTRY_SHUT, CUDA_SUCCESS);
	if (!nvs_sleeper_leave((uint32_t)(lock_ns / NVS_NS_PER_MS)))
		tell_ended(CUDA_ERROR_OPERATING_SYSTEM, false);
}

static void send_slept(const struct nvs_action *action)
{
	struct nvs_slept slept = {.order = action->number,
		.outcome = action->reason,
		.bar = (uint32_t)action->used,
		.error = (uint32_t)action->length};
	if (slept.outcome == NVS_SLEPT_ASLEEP)
		NVS_INFO("this process sleeps: its contexts are off the cards until it calls the driver");
	nvs_link_send(NVS_SLEPT, &slept, sizeof(slept));
}

void nvs_sleep_carry_out(const struct nvs_action *action)
{
	struct nvs_req_wake wanted = {.order = action->number};
	struct nvs_awake awake = {.order = action->number, .error = (uint32_t)action->length};
	switch ((enum nvs_action_type)action->type) {
	case NVS_DO_SET_ENTRY:
		return nvs_entry_set((enum nvs_entry_state)action->gate, (CUresult)action->length);
	case NVS_DO_LOOK_HELD:
		return look_held();
	case NVS_DO_LEAVE_CARDS:
		return leave_cards(action->length);
	case NVS_DO_RETURN_TO_CARDS:
		nvs_entry_set(NVS_ENTRY_SHUT, CUDA_SUCCESS);
		return nvs_sleeper_return();
	case NVS_DO_LOOK_ROOM:
		return look_for_room();
	case NVS_DO_SEND_SLEPT:
		return send_slept(action);
	case NVS_DO_SEND_REQ_WAKE:
		nvs_link_send(NVS_REQ_WAKE, &wanted, sizeof(wanted));
		return;
	case NVS_DO_SEND_AWAKE:
		if (action->length == CUDA_SUCCESS)
			NVS_INFO("this process is awake again");
		nvs_link_send(NVS_AWAKE, &awake, sizeof(awake));
		return;
	default:
		return;
	}
}

/* ---- life ---- */

void nvs_sleep_end(void)
{
	uint64_t deadline = nvs_now_ns() + END_WAIT_NS;
	atomic_store(&process_ends, true);
	while (atomic_load(&nvs_entry) != NVS_ENTRY_OPEN && nvs_now_ns() < deadline)
		if (nvs_entry_wait() != CUDA_SUCCESS)
			return;
}

void nvs_sleep_after_fork(void)
{
	context_bytes = 0;
	told = NVS_BAR_NONE;
	atomic_store(&process_ends, false);
	nvs_sleeper_after_fork();
}
