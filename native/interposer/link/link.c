#include "link/link.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bars.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/helper_thread.h"
#include "base/log.h"
#include "base/process.h"
#include "link/state.h"
#include "memory/swap/backing.h"
#include "memory/swap/mover.h"
#include "memory/swap/residency.h"
#include "resolve/resolve.h"

#define ANSWER_WAIT_NS (2 * NVS_NS_PER_S)
#define SILENCE_NS (5 * NVS_NS_PER_S)        /* a scheduler that answers nothing for so long hangs */
#define LIMITS_WAIT_NS (200 * NVS_NS_PER_MS) /* they follow the answer at once */

struct nvs_link nvs_link = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .wake_fd = -1};

/* Devices that need no further attaching, by ordinal. */
static _Atomic uint64_t attached;
static _Atomic bool told_absent, told_denied;

void nvs_link_wake(void)
{
	uint64_t one = 1;
	ssize_t written = write(nvs_link.wake_fd, &one, sizeof(one));
	(void)written; /* fails only when the counter is full, and then the thread is awake */
}

void nvs_link_want(void)
{
	atomic_store(&nvs_link.wanted, true);
	nvs_link_wake();
}

void nvs_link_active(void)
{
	if (atomic_load(&nvs_link.asleep) && atomic_exchange(&nvs_link.asleep, false))
		nvs_link_wake();
}

bool nvs_link_send_locked(uint16_t type, const void *payload, size_t size)
{
	if (nvs_link.fd < 0 || nvs_link.broken)
		return false;
	if (!nvs_socket_send(nvs_link.fd, type, ++nvs_link.frames_sent, payload, size, NULL, 0))
		nvs_link.broken = true;
	return !nvs_link.broken;
}

bool nvs_link_send(uint16_t type, const void *payload, size_t size)
{
	pthread_mutex_lock(&nvs_link.lock);
	bool sent = nvs_link_send_locked(type, payload, size);
	pthread_mutex_unlock(&nvs_link.lock);
	return sent;
}

/* ---- starting ---- */

static bool start_thread(void)
{
	nvs_process_watch();
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&nvs_link.changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	nvs_link.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (nvs_link.wake_fd < 0)
		return false;

	bool started = nvs_helper_start(nvs_link_thread);
	if (!started) {
		close(nvs_link.wake_fd);
		nvs_link.wake_fd = -1;
	}
	return started;
}

/* ---- attaching ---- */

static struct nvs_gpu *find_gpu(CUdevice device)
{
	for (uint32_t i = 0; i < nvs_link.gpu_count; i++)
		if (nvs_link.gpus[i].device == device)
			return &nvs_link.gpus[i];
	return NULL;
}

static bool device_uuid(CUdevice device, char text[48])
{
	CUuuid uuid;
	CUresult found = CUDA_ERROR_NOT_SUPPORTED;
	if (nvs_real.cuDeviceGetUuid_v2 != NULL)
		found = nvs_real.cuDeviceGetUuid_v2(&uuid, device);
	if (found != CUDA_SUCCESS && nvs_real.cuDeviceGetUuid != NULL)
		found = nvs_real.cuDeviceGetUuid(&uuid, device);
	if (found != CUDA_SUCCESS)
		return false;
	int used = snprintf(text, 48, "GPU-");
	for (int i = 0; i < 16; i++)
		used += snprintf(text + used, 48 - (size_t)used,
			i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[i]);
	return true;
}

/* The lock is held. */
static struct nvs_gpu *add_gpu(CUdevice device, const char *uuid, bool can_swap)
{
	struct nvs_gpu *gpu = find_gpu(device);
	if (gpu != NULL || nvs_link.gpu_count == NVS_MAX_GPUS)
		return gpu;
	gpu = &nvs_link.gpus[nvs_link.gpu_count];
	*gpu = (struct nvs_gpu){.device = device, .can_swap = can_swap, .mem_limit = nvs_env()->mem_limit};
	snprintf(gpu->uuid, sizeof(gpu->uuid), "%s", uuid);
	nvs_link.gpu_count++;
	return gpu;
}

/* Wait for a change, at most until the deadline. The lock is held. False when the deadline passed. */
static bool wait_change(uint64_t deadline)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline / NVS_NS_PER_S), .tv_nsec = (long)(deadline % NVS_NS_PER_S)};
	return pthread_cond_timedwait(&nvs_link.changed, &nvs_link.lock, &until) != ETIMEDOUT;
}

/* The lock is held. True when a scheduler knows the GPU. */
static bool wait_announced(const struct nvs_gpu *gpu)
{
	uint64_t deadline = nvs_now_ns() + ANSWER_WAIT_NS;
	for (;;) {
		bool decided = nvs_link.phase == NVS_LINK_ABSENT || nvs_link.phase == NVS_LINK_REFUSED;
		if (nvs_link.phase == NVS_LINK_REGISTERED && gpu->announced)
			break;
		if (decided || !wait_change(deadline))
			return false;
	}
	deadline = nvs_now_ns() + LIMITS_WAIT_NS;
	while (!gpu->limit_known && nvs_link.phase == NVS_LINK_REGISTERED && wait_change(deadline))
		;
	return true;
}

/* The lock is held. True when a scheduler answered. */
static bool attach(CUdevice device, const char *uuid, bool can_swap)
{
	if (!nvs_link.running && !(nvs_link.running = start_thread()))
		return false;
	struct nvs_gpu *gpu = add_gpu(device, uuid, can_swap);
	if (gpu == NULL)
		return false; /* more GPUs than the protocol knows: this one runs natively */
	if (nvs_link.phase == NVS_LINK_ABSENT && nvs_env()->require)
		nvs_link.phase = NVS_LINK_CONNECTING; /* try now, not when it is time again */
	nvs_link_wake();
	return wait_announced(gpu);
}

CUresult nvs_link_attach(CUdevice device)
{
	uint64_t bit = device >= 0 && device < 64 ? 1ull << device : 0;
	if (atomic_load_explicit(&attached, memory_order_acquire) & bit)
		return CUDA_SUCCESS;
	char uuid[48];
	if (bit == 0 || !nvs_resolve_driver() || !device_uuid(device, uuid))
		return CUDA_SUCCESS; /* the driver will say itself what is wrong with this device */
	const struct nvs_env *env = nvs_env();
	int shared = 0;
	if (nvs_real.cuDeviceGetAttribute != NULL &&
		nvs_real.cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) == CUDA_SUCCESS &&
		shared)
		nvs_bar_raise(NVS_BAR_MPS);
	bool can_swap = !env->swap_off && nvs_backing_supported(device);
	pthread_mutex_lock(&nvs_link.lock);
	bool answered = attach(device, uuid, can_swap);
	bool refused = nvs_link.phase == NVS_LINK_REFUSED;
	pthread_mutex_unlock(&nvs_link.lock);
	if (!answered && env->require) {
		if (!refused)
			NVS_WARN("no scheduler at %s, and NVSHARE_REQUIRE is set: start nvshare-scheduler, or unset it",
				env->socket_path);
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	if (!answered && !refused && !atomic_exchange(&told_absent, true))
		NVS_WARN("no scheduler at %s: running without sharing", env->socket_path);
	atomic_fetch_or_explicit(&attached, bit, memory_order_release);
	return CUDA_SUCCESS;
}

/* ---- memory ---- */

/* The lock is held. The thread sends it a little later, together with what follows. */
static void memory_changed(struct nvs_gpu *gpu)
{
	if (gpu->dirty_since != 0)
		return;
	gpu->dirty_since = nvs_now_ns();
	nvs_link_wake();
}

static bool within_limit(const struct nvs_gpu *gpu, uint64_t bytes)
{
	return gpu->mem_limit == 0 || (bytes <= gpu->mem_limit && gpu->allocated <= gpu->mem_limit - bytes);
}

/* The lock is held. Decided with the answer, because what the scheduler says next already takes it into account. */
static bool count(struct nvs_gpu *gpu, uint64_t bytes, bool keeps)
{
	if (keeps) {
		nvs_residency_pin(gpu->device, (int64_t)bytes);
		return true;
	}
	gpu->allocated += bytes;
	return nvs_residency_claim(gpu->device, bytes);
}

/* The lock is held. */
static uint32_t decide_locally(struct nvs_gpu *gpu, uint64_t bytes, bool keeps, bool *resident)
{
	if (!keeps && !within_limit(gpu, bytes))
		return NVS_DENY_QUOTA;
	*resident = count(gpu, bytes, keeps);
	return 0;
}

static void answer_waiter(struct nvs_waiter **link, uint32_t denied)
{
	struct nvs_waiter *waiter = *link;
	*link = waiter->next;
	waiter->denied = denied;
	waiter->answered = true;
	pthread_cond_broadcast(&nvs_link.changed);
}

void nvs_link_answer_all(void)
{
	for (struct nvs_waiter *waiter; (waiter = nvs_link.waiters) != NULL;)
		answer_waiter(&nvs_link.waiters,
			decide_locally(waiter->gpu, waiter->bytes, waiter->keeps, &waiter->resident));
}

static struct nvs_waiter **find_waiter(uint32_t request)
{
	struct nvs_waiter **link = &nvs_link.waiters;
	while (*link != NULL && (*link)->request != request)
		link = &(*link)->next;
	return link;
}

void nvs_link_hold(uint32_t request)
{
	struct nvs_waiter *waiter = *find_waiter(request);
	if (waiter != NULL)
		waiter->told_to_wait = true;
}

void nvs_link_answer(uint32_t request, uint32_t denied)
{
	struct nvs_waiter **link = find_waiter(request);
	if (*link == NULL)
		return;
	if (denied == 0) {
		(*link)->resident = count((*link)->gpu, (*link)->bytes, (*link)->keeps);
		memory_changed((*link)->gpu);
	}
	answer_waiter(link, denied);
}

/* The lock is held: is there a connection whose books must be kept? From REGISTER on, the scheduler counts. */
static bool counted_by_scheduler(const struct nvs_gpu *gpu)
{
	return nvs_link.fd >= 0 && !nvs_link.broken && gpu->announced;
}

static uint32_t ask_scheduler(struct nvs_gpu *gpu, uint64_t bytes, uint32_t flags, bool *resident)
{
	struct nvs_waiter waiter = {
		.request = ++nvs_link.requests,
		.gpu = gpu,
		.bytes = bytes,
		.keeps = (flags & NVS_FLAG_COUNTED) != 0,
		.next = nvs_link.waiters,
	};
	struct nvs_mem_request ask = {
		.gpu = (uint32_t)(gpu - nvs_link.gpus),
		.request = waiter.request,
		.bytes = bytes,
		.flags = flags,
	};
	nvs_link_send_memory(gpu); /* what was freed before is usable by this request */
	nvs_link.waiters = &waiter;
	if (!nvs_link_send_locked(NVS_MEM_REQUEST, &ask, sizeof(ask)))
		nvs_link_wake(); /* it finds the connection broken and answers all who wait */
	uint64_t deadline = nvs_now_ns() + SILENCE_NS;
	while (!waiter.answered) {
		if (waiter.told_to_wait || nvs_link.broken) {
			pthread_cond_wait(&nvs_link.changed, &nvs_link.lock);
		} else if (!wait_change(deadline) && !waiter.answered && !waiter.told_to_wait) {
			nvs_link.broken = true; /* the link thread hangs up and answers all who wait */
			nvs_link_wake();
		}
	}
	*resident = waiter.resident;
	return waiter.denied;
}

static const char no_room_on_host[] = "host's memory has no more room for what leaves the cards: raise the scheduler's "
				      "NVSHARE_HOST_MEMORY, or this container's memory limit";

static const char *no_room_on_card(const struct nvs_gpu *gpu, uint64_t bytes)
{
	bool too_large_alone = gpu->card != 0 && (bytes > gpu->card || gpu->allocated > gpu->card - bytes);
	if (too_large_alone && !nvs_env()->single_oversub)
		return "card has no more room for this task alone: NVSHARE_ENABLE_SINGLE_OVERSUB=1 lets it be larger";
	return "card has no more room beside memory that cannot move (no swapping, pinned, or anti-thrash off): "
	       "nvsharectl status shows whose; end one, or ask for less";
}

/* Once: frameworks come here often, free what they cached and try again. */
static void tell_denied(const struct nvs_gpu *gpu, uint32_t reason, uint64_t bytes)
{
	if (atomic_exchange(&told_denied, true))
		return;
	if (reason == NVS_DENY_QUOTA)
		NVS_WARN("%llu MiB denied, %llu MiB are in use here: the memory quota of all that belong together is "
			 "%llu MiB "
			 "(NVSHARE_GPU_MEMORY_LIMIT "
			 "or nvsharectl set --mem)",
			(unsigned long long)(bytes >> 20), (unsigned long long)(gpu->allocated >> 20),
			(unsigned long long)(gpu->mem_limit >> 20));
	else
		NVS_WARN("%llu MiB denied, %llu MiB are in use here: the %s", (unsigned long long)(bytes >> 20),
			(unsigned long long)(gpu->allocated >> 20),
			reason == NVS_DENY_HOST ? no_room_on_host : no_room_on_card(gpu, bytes));
}

/* 0, or an nvs_deny_reason; then `seen` is what the device was like. */
static uint32_t request(CUdevice device, uint64_t bytes, uint32_t flags, bool *resident, struct nvs_gpu *seen)
{
	int cancel; /* a cancelled thread would take its waiter, on its stack, with it */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&nvs_link.lock);
	struct nvs_gpu *gpu = find_gpu(device);
	uint32_t denied = 0;
	if (gpu != NULL) {
		denied = counted_by_scheduler(gpu)
				 ? ask_scheduler(gpu, bytes, flags, resident)
				 : decide_locally(gpu, bytes, (flags & NVS_FLAG_COUNTED) != 0, resident);
		seen->allocated = gpu->allocated;
		seen->mem_limit = gpu->mem_limit;
		seen->card = gpu->card;
	} else if ((flags & NVS_FLAG_COUNTED) != 0) {
		nvs_residency_pin(device, (int64_t)bytes);
	}
	pthread_mutex_unlock(&nvs_link.lock);
	pthread_setcancelstate(cancel, NULL);
	return denied;
}

CUresult nvs_link_request(CUdevice device, uint64_t bytes, bool stays, bool *resident)
{
	struct nvs_gpu seen = {0};
	*resident = true;
	CUresult result = nvs_link_attach(device);
	if (result != CUDA_SUCCESS)
		return result;
	uint32_t denied = request(device, bytes, stays ? NVS_FLAG_STAYS : 0, resident, &seen);
	if (denied == 0)
		return CUDA_SUCCESS;
	tell_denied(&seen, denied, bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult nvs_link_keep(CUdevice device, uint64_t bytes)
{
	static _Atomic bool said;
	struct nvs_gpu seen = {0};
	bool resident;
	if (bytes == 0 || request(device, bytes, NVS_FLAG_STAYS | NVS_FLAG_COUNTED, &resident, &seen) == 0)
		return CUDA_SUCCESS;
	if (!atomic_exchange(&said, true))
		NVS_WARN("%llu MiB cannot be shared with other processes: they would have to stay on the card, and "
			 "another task there could not run any more; share less, or end one (nvsharectl status)",
			(unsigned long long)(bytes >> 20));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void nvs_link_release(CUdevice device, uint64_t bytes, uint64_t resident)
{
	pthread_mutex_lock(&nvs_link.lock);
	struct nvs_gpu *gpu = find_gpu(device);
	if (gpu != NULL) {
		nvs_residency_forget(device, resident, bytes - resident);
		uint64_t known = bytes < gpu->allocated ? bytes : gpu->allocated;
		gpu->allocated -= known;
		gpu->released += known;
		memory_changed(gpu);
		nvs_link_send_memory(gpu); /* at once: when the free returns, a sibling in the same quota may ask */
	}
	pthread_mutex_unlock(&nvs_link.lock);
	nvs_mover_kick(); /* what is away may come into the room */
}

void nvs_link_pinned(CUdevice device, int64_t delta)
{
	pthread_mutex_lock(&nvs_link.lock);
	struct nvs_gpu *gpu = find_gpu(device);
	if (gpu != NULL) {
		nvs_residency_pin(device, delta);
		memory_changed(gpu);
	}
	pthread_mutex_unlock(&nvs_link.lock);
}

bool nvs_link_is_counted(CUdevice device)
{
	pthread_mutex_lock(&nvs_link.lock);
	const struct nvs_gpu *gpu = find_gpu(device);
	bool counted = gpu != NULL && counted_by_scheduler(gpu);
	pthread_mutex_unlock(&nvs_link.lock);
	return counted;
}

void nvs_link_moved(CUdevice device)
{
	pthread_mutex_lock(&nvs_link.lock);
	struct nvs_gpu *gpu = find_gpu(device);
	if (gpu != NULL) {
		memory_changed(gpu);
		nvs_link_send_memory(gpu); /* at once: others wait for the room */
	}
	pthread_mutex_unlock(&nvs_link.lock);
	nvs_link_active(); /* the bytes moved are part of the usage */
}

/* ---- views ---- */

static uint64_t visible_card(const struct nvs_gpu *gpu)
{
	return gpu->mem_limit != 0 ? gpu->mem_limit : gpu->card;
}

uint64_t nvs_link_allocated(CUdevice device)
{
	pthread_mutex_lock(&nvs_link.lock);
	const struct nvs_gpu *gpu = find_gpu(device);
	uint64_t allocated = gpu != NULL ? gpu->allocated : 0;
	pthread_mutex_unlock(&nvs_link.lock);
	return allocated;
}

uint64_t nvs_link_card(CUdevice device)
{
	pthread_mutex_lock(&nvs_link.lock);
	const struct nvs_gpu *gpu = find_gpu(device);
	uint64_t card = gpu != NULL ? visible_card(gpu) : nvs_env()->mem_limit;
	pthread_mutex_unlock(&nvs_link.lock);
	return card;
}

bool nvs_link_view(const char *uuid, uint64_t *card, uint64_t *allocated)
{
	bool found = false;
	pthread_mutex_lock(&nvs_link.lock);
	for (uint32_t i = 0; i < nvs_link.gpu_count && !found; i++) {
		const struct nvs_gpu *gpu = &nvs_link.gpus[i];
		found = strcmp(gpu->uuid, uuid) == 0;
		if (found) {
			*card = visible_card(gpu);
			*allocated = gpu->allocated;
		}
	}
	pthread_mutex_unlock(&nvs_link.lock);
	return found;
}

void nvs_link_uuid(CUdevice device, char *text, size_t size)
{
	pthread_mutex_lock(&nvs_link.lock);
	const struct nvs_gpu *gpu = find_gpu(device);
	snprintf(text, size, "%s", gpu != NULL ? gpu->uuid : "");
	pthread_mutex_unlock(&nvs_link.lock);
}

void nvs_link_after_fork(void)
{
	if (nvs_link.fd >= 0)
		close(nvs_link.fd);
	if (nvs_link.wake_fd >= 0)
		close(nvs_link.wake_fd);
	nvs_link = (struct nvs_link){.fd = -1, .wake_fd = -1};
	pthread_mutex_init(&nvs_link.lock, NULL);
	atomic_store(&attached, 0);
	nvs_link_thread_after_fork();
}
