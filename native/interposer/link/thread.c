/* The link thread: connects, listens, and tells the scheduler what was used. */
#include "link/state.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "compute_constants.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "link/link.h"
#include "link/shell.h"
#include "link/sleep.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "resolve/resolve.h"

#define RETRY_FIRST_NS (100 * NVS_NS_PER_MS)
#define RETRY_LAST_NS NVS_NS_PER_S
#define RETRY_BUSY_NS (10 * NVS_NS_PER_MS) /* the scheduler is there, but has many to let in */
#define REGISTER_WAIT_NS (2 * NVS_NS_PER_S)
#define RETRY_SILENT_NS (5 * NVS_NS_PER_S) /* it listens, but hangs */
#define RETRY_REFUSED_NS (30 * NVS_NS_PER_S)
#define STEADY_NS NVS_NS_PER_S /* a connection that lived this long was a good one */
#define MEMORY_DELAY_NS NVS_NS_PER_MS
#define USAGE_EVERY_NS (250 * NVS_NS_PER_MS)

/* What only this thread knows. */
static struct {
	bool was_lost, refusal_told;
	uint64_t connected_at;
	uint64_t retry_at, retry_wait;
	bool never_retry;
	uint32_t core_limit;
	uint64_t meter_wait;
	uint64_t meter_submissions;
	uint64_t usage_at;
	struct nvs_frames frames;
} thread;

/* ---- messages from the scheduler ---- */

static void on_registered(uint64_t client_id, bool scheduled)
{
	uint64_t before = nvs_link.client_id;
	if (before == 0)
		NVS_INFO("Successfully initialized nvshare GPU");
	if (before != client_id)
		NVS_INFO("Client ID = %016llx", (unsigned long long)client_id);
	if (before == 0)
		NVS_INFO("Pending Kernel Window is %u", NVS_WINDOW_MAX);
	if (thread.was_lost)
		NVS_INFO("the scheduler at %s is back", nvs_env()->socket_path);
	thread.was_lost = false;
	if (thread.retry_wait > RETRY_LAST_NS)
		thread.retry_wait = RETRY_LAST_NS;
	nvs_shell_control(scheduled);
	pthread_mutex_lock(&nvs_link.lock);
	nvs_link.client_id = client_id;
	nvs_link.phase = NVS_LINK_REGISTERED;
	pthread_cond_broadcast(&nvs_link.changed);
	pthread_mutex_unlock(&nvs_link.lock);
}

static void on_update_limit(struct nvs_gpu *gpu, const struct nvs_update_limit *message)
{
	pthread_mutex_lock(&nvs_link.lock);
	gpu->mem_limit = message->mem_limit;
	gpu->card = message->card;
	gpu->limit_known = true;
	pthread_cond_broadcast(&nvs_link.changed);
	pthread_mutex_unlock(&nvs_link.lock);
}

/* Told back at once: from here on this process keeps to it. */
static void on_residency(struct nvs_gpu *gpu, const struct nvs_residency *message)
{
	NVS_DEBUG("device %d: target %llu is %llu MiB", gpu->device, (unsigned long long)message->number,
		(unsigned long long)(message->target >> 20));
	nvs_residency_set(gpu->device, message->target, message->number);
	nvs_link_moved(gpu->device);
	nvs_mover_kick();
}

static void on_prepare(struct nvs_gpu *gpu, const struct nvs_prepare_swap_out *message)
{
	nvs_residency_prepare(gpu->device, message->bytes);
	nvs_mover_kick();
}

static void on_core_limit(uint32_t percent)
{
	uint32_t before = thread.core_limit != 0 ? thread.core_limit : 100;
	if (percent == 0 || percent == before)
		return;
	thread.core_limit = percent;
	NVS_INFO("Core limit = %u%%", percent);
}

static void on_memory_answer(uint32_t request, uint32_t denied)
{
	pthread_mutex_lock(&nvs_link.lock);
	nvs_link_answer(request, denied);
	pthread_mutex_unlock(&nvs_link.lock);
}

static void on_refused(const struct nvs_refused *message)
{
	if (!thread.refusal_told)
		NVS_WARN("the scheduler refused this process: %.*s; running without sharing",
			(int)sizeof(message->reason), message->reason);
	thread.refusal_told = true;
	thread.was_lost = nvs_link.client_id != 0;
	thread.never_retry = message->code == NVS_REFUSAL_VERSION;
	thread.retry_wait = RETRY_REFUSED_NS;
	pthread_mutex_lock(&nvs_link.lock);
	nvs_link.phase = NVS_LINK_REFUSED;
	nvs_link.broken = true;
	pthread_mutex_unlock(&nvs_link.lock);
}

/* The payload as its structure, if it is large enough. What a later release appended is ignored, and what the previous
 * release does not send yet is zero. */
#define MESSAGE(type, name)                                                                                            \
	struct type name = {0};                                                                                        \
	if (length < type##_least)                                                                                     \
		return false;                                                                                          \
	memcpy(&name, payload, length < sizeof(name) ? length : sizeof(name))

/* A message of `type` is carried out by `to` for its GPU, or for all; it makes no sense where there is no such GPU. */
#define GPU_MESSAGE(number, type, to)                                                                                  \
	case number: {                                                                                                 \
		MESSAGE(type, message);                                                                                \
		if (message.gpu != NVS_ALL_GPUS && message.gpu >= nvs_link.gpu_count)                                  \
			return false;                                                                                  \
		for (uint32_t i = 0; i < nvs_link.gpu_count; i++)                                                      \
			if (message.gpu == i || message.gpu == NVS_ALL_GPUS)                                           \
				to(&nvs_link.gpus[i], &message);                                                       \
		return true;                                                                                           \
	}

/* False when the message makes no sense. */
static bool handle(uint16_t type, const void *payload, size_t length)
{
	switch (type) {
	case NVS_SCHED_ON:
	case NVS_SCHED_OFF: {
		MESSAGE(nvs_sched_on, sched);
		if (sched.client_id == 0)
			return false;
		on_registered(sched.client_id, type == NVS_SCHED_ON);
		return true;
	}
		GPU_MESSAGE(NVS_LOCK_OK, nvs_lock_ok, nvs_shell_granted)
		GPU_MESSAGE(NVS_DROP_LOCK, nvs_drop_lock, nvs_shell_dropped)
	case NVS_WAIT_FOR_MEM: {
		MESSAGE(nvs_wait_for_mem, hold);
		NVS_DEBUG("Received WAIT_FOR_MEM");
		pthread_mutex_lock(&nvs_link.lock);
		nvs_link_hold(hold.request);
		pthread_mutex_unlock(&nvs_link.lock);
		return true;
	}
	case NVS_MEM_AVAILABLE: {
		MESSAGE(nvs_mem_available, available);
		on_memory_answer(available.request, 0);
		return true;
	}
	case NVS_MEM_DENIED: {
		MESSAGE(nvs_mem_denied, denied);
		on_memory_answer(denied.request, denied.reason != 0 ? denied.reason : NVS_DENY_CARD);
		return true;
	}
		GPU_MESSAGE(NVS_RESIDENCY, nvs_residency, on_residency)
		GPU_MESSAGE(NVS_PREPARE_SWAP_OUT, nvs_prepare_swap_out, on_prepare)
		GPU_MESSAGE(NVS_TERMS, nvs_terms, nvs_shell_terms)
		GPU_MESSAGE(NVS_TURN_OK, nvs_turn_ok, nvs_shell_given)
		GPU_MESSAGE(NVS_END_TURN, nvs_end_turn, nvs_shell_told)
		GPU_MESSAGE(NVS_UPDATE_LIMIT, nvs_update_limit, on_update_limit)
	case NVS_UPDATE_CORE_LIMIT: {
		MESSAGE(nvs_update_core_limit, cores);
		on_core_limit(cores.percent);
		return true;
	}
	case NVS_SLEEP: {
		MESSAGE(nvs_sleep, order);
		nvs_sleep_ordered(&order);
		return true;
	}
	case NVS_WAKE: {
		MESSAGE(nvs_wake, order);
		nvs_sleep_waken(&order);
		return true;
	}
	case NVS_REFUSED: {
		MESSAGE(nvs_refused, refused);
		on_refused(&refused);
		return true;
	}
	default:
		return true;
	}
}

/* ---- the connection ---- */

static void fill_entry(struct nvs_gpu_entry *entry, struct nvs_gpu *gpu)
{
	memset(entry, 0, sizeof(*entry));
	memcpy(entry->uuid, gpu->uuid, sizeof(entry->uuid));
	struct nvs_holding view;
	nvs_residency_view(gpu->device, &view);
	entry->allocated = gpu->allocated;
	entry->resident = view.resident;
	entry->grant = nvs_shell_client.cards[gpu - nvs_link.gpus].grant;
	gpu->announced = true;
	gpu->released = 0;
	gpu->dirty_since = 0;
	gpu->told = (struct nvs_usage_counters){.window = NVS_WINDOW_MAX};
	gpu->told_swapped = 0;
}

/* The lock is held. */
static void send_register(void)
{
	const struct nvs_env *env = nvs_env();
	struct nvs_gpu_entry entries[NVS_MAX_GPUS];
	struct nvs_register hello = {
		.previous_id = nvs_link.client_id,
		.mem_limit = env->mem_limit,
		.core_limit = env->core_limit,
		.priority = env->priority,
		.flags = NVS_FLAG_CAN_SWAP | (env->single_oversub ? NVS_FLAG_OVERSIZE : 0) |
			 (nvs_client_is_away(&nvs_shell_client) ? NVS_FLAG_ASLEEP : 0) |
			 env->core_floor << NVS_FLOOR_SHIFT,
		.gpu_count = nvs_link.gpu_count,
		.library = NVS_RELEASE,
	};
	snprintf(hello.name, sizeof(hello.name), "%s", program_invocation_short_name);
	memcpy(hello.pod_name, env->pod_name, sizeof(hello.pod_name));
	memcpy(hello.pod_namespace, env->pod_namespace, sizeof(hello.pod_namespace));
	nvs_residency_registering();
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		fill_entry(&entries[i], &nvs_link.gpus[i]);
		struct nvs_holding view;
		nvs_residency_view(nvs_link.gpus[i].device, &view);
		if (!nvs_link.gpus[i].can_swap)
			hello.flags &= ~(NVS_FLAG_CAN_SWAP | NVS_FLAG_OVERSIZE);
		else if (!view.unified)
			hello.flags &= ~NVS_FLAG_OVERSIZE;
	}
	if (!nvs_socket_send(nvs_link.fd, NVS_REGISTER, ++nvs_link.frames_sent, &hello, sizeof(hello), entries,
		    nvs_link.gpu_count * sizeof(entries[0])))
		nvs_link.broken = true;
	nvs_sleep_registering();
}

/* GPUs that the process took up after it registered. */
static void announce_new(void)
{
	uint32_t first = nvs_link.gpu_count, end = 0;
	pthread_mutex_lock(&nvs_link.lock);
	for (uint32_t i = 0; i < nvs_link.gpu_count && nvs_link.fd >= 0; i++) {
		struct nvs_gpu *gpu = &nvs_link.gpus[i];
		struct {
			struct nvs_attach attach;
			struct nvs_gpu_entry entry;
		} message = {.attach = {.gpu_count = 1}};
		if (gpu->announced)
			continue;
		fill_entry(&message.entry, gpu);
		nvs_link_send_locked(NVS_ATTACH, &message, sizeof(message));
		first = i < first ? i : first;
		end = i + 1;
	}
	if (end != 0)
		pthread_cond_broadcast(&nvs_link.changed);
	pthread_mutex_unlock(&nvs_link.lock);
	for (uint32_t i = first; i < end; i++) /* they are the last ones */
		nvs_shell_announced(i);
}

static void connect_scheduler(uint64_t now)
{
	int fd = -1;
	uint32_t told = 0;
	int error = nvs_socket_connect(nvs_env()->socket_path, &fd);
	pthread_mutex_lock(&nvs_link.lock);
	if (error == 0) {
		nvs_link.fd = fd;
		nvs_link.broken = false;
		nvs_link.frames_sent = 0;
		nvs_link.phase = NVS_LINK_REGISTERING;
		send_register();
		told = nvs_link.gpu_count;
	} else if (error != EAGAIN) {
		nvs_link.phase = NVS_LINK_ABSENT;
		pthread_cond_broadcast(&nvs_link.changed);
	}
	pthread_mutex_unlock(&nvs_link.lock);
	for (uint32_t i = 0; i < told; i++)
		nvs_shell_announced(i);
	thread.connected_at = now;
	thread.frames.used = thread.frames.taken = 0;
	thread.frames.expected = 0;
	if (error == EAGAIN) {
		thread.retry_at = now + RETRY_BUSY_NS;
	} else if (error != 0) {
		thread.retry_wait = thread.retry_wait == 0 ? RETRY_FIRST_NS : thread.retry_wait * 2;
		if (thread.retry_wait > RETRY_LAST_NS)
			thread.retry_wait = RETRY_LAST_NS;
		thread.retry_at = now + thread.retry_wait;
	}
}

/* Run on without it. What was granted stays granted: it is told at the next registration. */
static void disconnect(const char *why)
{
	uint64_t now = nvs_now_ns();
	pthread_mutex_lock(&nvs_link.lock);
	bool registered = nvs_link.phase == NVS_LINK_REGISTERED;
	close(nvs_link.fd);
	nvs_link.fd = -1;
	nvs_link.broken = false;
	if (nvs_link.phase != NVS_LINK_REFUSED)
		nvs_link.phase = NVS_LINK_ABSENT;
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
		nvs_link.gpus[i].announced = false;
	nvs_link_answer_all();
	pthread_cond_broadcast(&nvs_link.changed);
	pthread_mutex_unlock(&nvs_link.lock);
	nvs_shell_lost();
	if (registered) {
		NVS_WARN("lost the scheduler at %s (%s): running without sharing until it is back",
			nvs_env()->socket_path, why);
		thread.was_lost = true;
	}
	if (now - thread.connected_at > STEADY_NS && thread.retry_wait <= RETRY_LAST_NS)
		thread.retry_wait = 0;
	if (thread.retry_wait < RETRY_FIRST_NS)
		thread.retry_wait = RETRY_FIRST_NS;
	else if (thread.retry_wait < RETRY_LAST_NS)
		thread.retry_wait = thread.retry_wait * 2 < RETRY_LAST_NS ? thread.retry_wait * 2 : RETRY_LAST_NS;
	thread.retry_at = now + thread.retry_wait;
}

static void listen_scheduler(void)
{
	struct nvs_header header;
	const void *payload;
	bool alive = nvs_socket_receive(nvs_link.fd, &thread.frames);
	enum nvs_frame_result next;
	while ((next = nvs_frames_next(&thread.frames, &header, &payload)) == NVS_FRAME_READY)
		if (!handle(header.type, payload, header.length)) {
			next = NVS_FRAME_BAD;
			break;
		}
	if (next == NVS_FRAME_BAD)
		disconnect("it sent something that is not the protocol");
	else if (!alive)
		disconnect("it hung up");
}

/* ---- what is told without being asked ---- */

void nvs_link_send_memory(struct nvs_gpu *gpu)
{
	if (gpu->dirty_since == 0 || !gpu->announced)
		return;
	struct nvs_holding view;
	nvs_residency_view(gpu->device, &view);
	struct nvs_mem_update update = {
		.gpu = (uint32_t)(gpu - nvs_link.gpus),
		.released = gpu->released,
		.resident = view.resident,
		.host = view.host,
		.pinned = view.pinned < view.resident ? view.pinned : view.resident,
		.applied = view.number,
	};
	gpu->dirty_since = 0;
	nvs_link_send_locked(NVS_MEM_UPDATE, &update, sizeof(update));
}

/* Returns when the next one is due; 0: nothing to tell. */
static uint64_t send_due_memory(uint64_t now)
{
	uint64_t due = 0;
	pthread_mutex_lock(&nvs_link.lock);
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		struct nvs_gpu *gpu = &nvs_link.gpus[i];
		if (gpu->dirty_since == 0 || !gpu->announced)
			continue;
		if (now >= gpu->dirty_since + MEMORY_DELAY_NS)
			nvs_link_send_memory(gpu);
		else
			due = nvs_earlier(due, gpu->dirty_since + MEMORY_DELAY_NS);
	}
	pthread_mutex_unlock(&nvs_link.lock);
	return due;
}

static void send_usage(uint64_t now)
{
	thread.usage_at = now;
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++) {
		struct nvs_gpu *gpu = &nvs_link.gpus[i];
		struct nvs_usage_counters counters;
		struct nvs_holding view;
		nvs_meter_usage(gpu->device, &counters);
		nvs_residency_view(gpu->device, &view);
		struct nvs_usage usage = {
			.gpu = i,
			.window = counters.window,
			.occupied_us = counters.occupied_us,
			.submissions = counters.submissions,
			.swapped_out = view.swapped_out,
			.swapped_in = view.swapped_in,
		};
		bool changed = counters.occupied_us != gpu->told.occupied_us ||
			       counters.submissions != gpu->told.submissions || counters.window != gpu->told.window ||
			       view.swapped_out + view.swapped_in != gpu->told_swapped;
		if (changed && gpu->announced && nvs_link_send(NVS_USAGE, &usage, sizeof(usage))) {
			gpu->told = counters;
			gpu->told_swapped = view.swapped_out + view.swapped_in;
		}
	}
}

/* What comes next wakes this thread, for the gate has a new word: all go the slow way once. What came under the old one
 * since `submissions` were counted does so here. */
void nvs_link_fall_asleep(uint64_t submissions)
{
	nvs_link.meter_at = 0;
	nvs_gate_look_closer();
	atomic_store(&nvs_link.asleep, true);
	if (!nvs_gate_quiet() || nvs_gate_submissions() != submissions)
		nvs_link_active();
}

/* Follow what is submitted, closely at first, then ten times a second, and not at all when nothing is. */
static void follow(uint64_t now)
{
	if (atomic_load(&nvs_link.asleep))
		return;
	if (nvs_link.meter_at == 0) { /* just woken */
		thread.meter_wait = NVS_PAUSE_NS;
		nvs_link.meter_at = now + thread.meter_wait;
	}
	if (now < nvs_link.meter_at)
		return;
	nvs_meter_poll();
	uint64_t submissions = nvs_gate_submissions();
	bool pending = nvs_meter_pending();
	bool quiet = submissions == thread.meter_submissions && !pending && nvs_gate_quiet();
	bool stays_quiet = quiet && thread.meter_wait >= NVS_NEAR_NS;
	if (!quiet && !pending)
		nvs_gate_look_closer();
	thread.meter_submissions = submissions;
	if (now - thread.usage_at >= USAGE_EVERY_NS || stays_quiet)
		send_usage(now);
	uint64_t longest = nvs_gate_state() == NVS_GATE_PACED ? NVS_RARELY_NS : NVS_LONG_NS;
	thread.meter_wait = thread.meter_wait * 2 < longest ? thread.meter_wait * 2 : longest;
	nvs_link.meter_at = now + thread.meter_wait;
	if (stays_quiet)
		nvs_link_fall_asleep(submissions);
}

/* ---- the loop ---- */

static void wait_for_something(uint64_t until)
{
	struct pollfd watched[] = {
		{.fd = nvs_link.wake_fd, .events = POLLIN},
		{.fd = nvs_link.fd, .events = POLLIN},
	};
	uint64_t now = nvs_now_ns();
	struct timespec left = {0};
	if (until > now) {
		left.tv_sec = (time_t)((until - now) / NVS_NS_PER_S);
		left.tv_nsec = (long)((until - now) % NVS_NS_PER_S);
	}
	ppoll(watched, 2, until != 0 ? &left : NULL, NULL);
	uint64_t count;
	if (watched[0].revents != 0 && read(nvs_link.wake_fd, &count, sizeof(count)) < 0)
		return;
	if (nvs_link.fd >= 0 && watched[1].revents != 0)
		listen_scheduler();
}

/* One round: do what is due; returns when the next thing is, 0 for never. */
static uint64_t do_what_is_due(void)
{
	uint64_t now = nvs_now_ns();
	pthread_mutex_lock(&nvs_link.lock);
	bool broken = nvs_link.broken;
	bool hurry = nvs_link.phase == NVS_LINK_CONNECTING && thread.retry_wait != 0;
	bool registering = nvs_link.phase == NVS_LINK_REGISTERING;
	pthread_mutex_unlock(&nvs_link.lock);
	uint64_t patience = registering ? thread.connected_at + REGISTER_WAIT_NS : 0;
	if (broken) {
		disconnect("it does not answer");
	} else if (registering && now >= patience) {
		thread.retry_wait = RETRY_SILENT_NS;
		disconnect("it does not answer");
	}
	bool settled = nvs_client_is_awake(&nvs_shell_client) || nvs_client_is_away(&nvs_shell_client);
	if (nvs_link.fd < 0 && !thread.never_retry && settled && (now >= thread.retry_at || hurry))
		connect_scheduler(now);
	if (nvs_link.fd >= 0)
		announce_new();
	uint64_t next = nvs_shell_round();
	next = nvs_earlier(next, send_due_memory(now));
	follow(now);
	if (!atomic_load(&nvs_link.asleep))
		next = nvs_earlier(next, nvs_link.meter_at);
	if (nvs_link.fd < 0 && !thread.never_retry && settled)
		next = nvs_earlier(next, thread.retry_at);
	else if (registering)
		next = nvs_earlier(next, patience);
	return next;
}

void *nvs_link_thread(void *unused)
{
	pthread_setname_np(pthread_self(), "nvshare-link");
	nvs_inside++;                  /* what the driver calls on behalf of this thread waits for nothing */
	prctl(PR_SET_TIMERSLACK, 1ul); /* slices end to the microsecond, not to the default of 50 */
	for (;;)
		wait_for_something(do_what_is_due());
	return unused;
}

void nvs_link_thread_after_fork(void)
{
	memset(&thread, 0, sizeof(thread));
	nvs_shell_after_fork();
}
