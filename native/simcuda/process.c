/* The driver's state in this process: initialisation, the lock, fork, which cards are visible. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define SHORTEST_SLEEP_NS 100000 /* of wall time */
#define LONGEST_OVERSLEEP_NS 1e6

struct nvs_process nvs_process;
__thread struct nvs_thread_state nvs_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void nvs_lock(void)
{
	pthread_mutex_lock(&lock);
}

void nvs_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

uint64_t nvs_thread_id(void)
{
	return (uint64_t)pthread_self();
}

/* A forked child has none of its parent's driver; it must start another program to use the GPU. */
static void after_fork(void)
{
	nvs_process.forked = true;
}

/* The card with this number, as CUDA counts them. */
static unsigned numbered(const struct nvs_node *node, uint32_t index)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	bool by_bus = node->setup.cuda_reversed == 0 || (order != NULL && strcmp(order, "PCI_BUS_ID") == 0);
	return by_bus ? index : node->gpu_count - 1 - index;
}

/* One entry of CUDA_VISIBLE_DEVICES: an index, or a UUID or its beginning. -1: names no card. */
static int find_gpu(const struct nvs_node *node, const char *entry)
{
	if (strncasecmp(entry, "GPU-", 4) == 0) {
		for (uint32_t i = 0; i < node->gpu_count; i++)
			if (strncasecmp(node->gpus[i].uuid, entry, strlen(entry)) == 0)
				return (int)i;
		return -1;
	}
	char *end = NULL;
	long index = strtol(entry, &end, 10);
	bool known = end != entry && *end == '\0' && index >= 0 && index < (long)node->gpu_count;
	return known ? (int)numbered(node, (uint32_t)index) : -1;
}

/* As the real driver: the list ends at the first entry that names no card, or one named before. */
static void find_devices(const struct nvs_node *node)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char list[1024], *rest = NULL;
	nvs_process.device_count = 0;
	if (node->setup.mig_mode != 0)
		return;
	if (visible == NULL) {
		for (uint32_t i = 0; i < node->gpu_count; i++)
			nvs_process.devices[nvs_process.device_count++] = numbered(node, i);
		return;
	}
	snprintf(list, sizeof(list), "%s", visible);
	for (char *entry = strtok_r(list, ", ", &rest); entry != NULL; entry = strtok_r(NULL, ", ", &rest)) {
		int gpu = find_gpu(node, entry);
		for (int i = 0; i < nvs_process.device_count && gpu >= 0; i++)
			if (nvs_process.devices[i] == (unsigned)gpu)
				gpu = -1;
		if (gpu < 0)
			return;
		nvs_process.devices[nvs_process.device_count++] = (unsigned)gpu;
	}
}

/* A program that replaced itself by exec keeps its pid: what the former one had is gone. */
static void drop_former_self(struct nvs_node *node)
{
	int self = nvs_node_pid();
	nvs_node_lock(node);
	for (int i = (int)node->member_top - 1; i >= 0; i--)
		if (node->members[i].pid == self)
			nvs_member_release(node, &node->members[i]);
	nvs_node_unlock(node);
}

static CUresult initialise(void)
{
	struct nvs_fault faults[NVS_OPERATIONS] = {0};
	struct nvs_node *node = nvs_node_open();
	if (node == NULL)
		return CUDA_ERROR_NO_DEVICE;
	if (!nvs_faults_read(faults))
		return CUDA_ERROR_INVALID_VALUE;
	drop_former_self(node);
	nvs_node_lock(node);
	nvs_process.member = nvs_member_claim(node);
	if (nvs_process.member != NULL)
		memcpy(nvs_process.member->faults, faults, sizeof(faults));
	nvs_node_unlock(node);
	if (nvs_process.member == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < NVS_GPUS; i++)
		nvs_process.memory_slot[i] = -1;
	find_devices(node);
	pthread_atfork(NULL, NULL, after_fork);
	__atomic_store_n(&nvs_process.node, node, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

NVS_API cuInit(unsigned flags)
{
	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (nvs_process.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	nvs_lock();
	CUresult result = nvs_process.node == NULL ? initialise() : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS && nvs_process.device_count == 0)
		result = CUDA_ERROR_NO_DEVICE;
	nvs_unlock();
	return result;
}

CUresult nvs_begin(void)
{
	if (nvs_process.forked || __atomic_load_n(&nvs_process.node, __ATOMIC_ACQUIRE) == NULL)
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = nvs_enter();
	if (result == CUDA_SUCCESS)
		nvs_lock();
	return result;
}

void nvs_takes(double ns)
{
	double now = nvs_node_now(nvs_process.node), saved = nvs_thread.overslept < ns ? nvs_thread.overslept : ns;
	nvs_thread.overslept -= saved;
	nvs_thread.busy_until = (nvs_thread.busy_until > now ? nvs_thread.busy_until : now) + ns - saved;
}

/* Times that a sleep cannot measure add up over calls before they are slept; what a sleep took too much is saved. */
static void let_time_pass(void)
{
	const struct nvs_node *node = nvs_process.node;
	double left = (nvs_thread.busy_until - nvs_node_now(node)) / node->speed;
	if (left < SHORTEST_SLEEP_NS)
		return;
	while (left > 0) {
		struct timespec time = {.tv_sec = (time_t)(left / 1e9), .tv_nsec = (long)fmod(left, 1e9)};
		nanosleep(&time, NULL);
		left = (nvs_thread.busy_until - nvs_node_now(node)) / node->speed;
	}
	nvs_thread.overslept = fmin(-left, LONGEST_OVERSLEEP_NS) * node->speed;
}

CUresult nvs_end(CUresult result)
{
	nvs_unlock();
	if (nvs_thread.busy_until > 0)
		let_time_pass();
	nvs_leave();
	return result;
}

CUresult nvs_pass(CUresult result)
{
	CUresult begun = nvs_begin();
	return begun == CUDA_SUCCESS ? nvs_end(result) : begun;
}

CUcontext nvs_current(void)
{
	return nvs_thread.depth == 0 ? NULL : nvs_thread.stack[nvs_thread.depth - 1];
}

static CUresult check_context(CUcontext ctx)
{
	if (ctx == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (ctx->magic != NVS_CONTEXT)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	nvs_catch_up();
	return ctx->sticky;
}

CUresult nvs_begin_context(CUcontext *ctx)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	*ctx = nvs_current();
	result = check_context(*ctx);
	return result == CUDA_SUCCESS ? result : nvs_end(result);
}

CUresult nvs_begin_stream(CUstream handle, CUstream *stream)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	bool named = handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD;
	if (named && handle->magic != NVS_STREAM)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	CUcontext ctx = named ? handle->ctx : nvs_current();
	result = check_context(ctx);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	*stream = nvs_stream_of(ctx, handle);
	return *stream != NULL ? CUDA_SUCCESS : nvs_end(CUDA_ERROR_OUT_OF_MEMORY);
}

int nvs_gpu_of(CUdevice device)
{
	return device >= 0 && device < nvs_process.device_count ? (int)nvs_process.devices[device] : -1;
}

int nvs_memory_slot(unsigned gpu)
{
	if (nvs_process.memory_slot[gpu] < 0) {
		nvs_node_lock(nvs_process.node);
		nvs_process.memory_slot[gpu] = nvs_slot_claim(nvs_process.node, gpu, false, 0);
		nvs_node_unlock(nvs_process.node);
	}
	return nvs_process.memory_slot[gpu];
}

void nvs_say_limits(const char *what)
{
	static bool said;
	if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
		nvs_sim_say("%s: it runs driver-API programs with built-in kernels only (nvs_add_f32, nvs_scale_f32, "
			    "nvs_spin); "
			    "CUDA runtime programs such as PyTorch need a real card",
			what);
}
