/* Host functions in streams. A thread of its own runs them, made by the first one: a program may wait for their effect
 * without calling the driver. */
#include <pthread.h>

#include "sim.h"

static pthread_cond_t expected = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t expected_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t outstanding; /* submitted and not yet run */

/* A function whose turn has come, or else one to wait for. */
static bool find(CUcontext *ctx, uint64_t *seq, bool *ready)
{
	struct nvs_node *node = nvs_process.node;
	bool found = false;
	*ready = false;
	nvs_node_lock(node);
	for (CUcontext at = nvs_process.contexts; at != NULL && !*ready; at = at->next) {
		struct nvs_slot *slot = &node->slots[at->slot];
		for (uint64_t i = slot->retired + 1; i <= slot->tail && !*ready; i++) {
			const struct nvs_op *op = nvs_slot_op(slot, i);
			if (op->engine != NVS_OWNER || at->effects[i % NVS_RING].kind != NVS_EFFECT_HOST ||
				(op->state != NVS_OP_READY && op->state != NVS_OP_QUEUED))
				continue;
			*ready = op->state == NVS_OP_READY;
			if (found && !*ready)
				continue;
			found = true;
			*ctx = at;
			*seq = i;
		}
	}
	nvs_node_unlock(node);
	return found;
}

/* Called and returns without the lock: the function may wait for a thread that is in a call. */
static void call(const struct nvs_effect *effect)
{
	if (effect->host.function != NULL)
		effect->host.function(effect->host.data);
	else
		effect->host.callback(effect->host.stream, CUDA_SUCCESS, effect->host.data);
}

static void run_one(CUcontext ctx, uint64_t seq)
{
	struct nvs_effect effect = ctx->effects[seq % NVS_RING];
	nvs_unlock();
	call(&effect);
	nvs_lock();
	if (ctx->magic != NVS_CONTEXT)
		return;
	nvs_node_lock(nvs_process.node);
	nvs_slot_owner_done(nvs_process.node, ctx->slot, seq);
	nvs_node_unlock(nvs_process.node);
}

static void sleep_until_ready(CUcontext ctx, uint64_t seq)
{
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	double until = nvs_slot_earliest(node, ctx->slot, seq);
	uint32_t seen = node->wake;
	bool queued = nvs_slot_op(&node->slots[ctx->slot], seq)->state == NVS_OP_QUEUED;
	nvs_node_unlock(node);
	if (!queued)
		return;
	nvs_unlock();
	nvs_node_sleep(node, until, seen);
	nvs_lock();
}

static void *host_thread(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&expected_lock);
		while (outstanding == 0)
			pthread_cond_wait(&expected, &expected_lock);
		pthread_mutex_unlock(&expected_lock);
		CUcontext ctx = NULL;
		uint64_t seq = 0;
		bool ready;
		nvs_lock();
		nvs_catch_up();
		bool found = find(&ctx, &seq, &ready);
		if (found && ready)
			run_one(ctx, seq);
		else if (found)
			sleep_until_ready(ctx, seq);
		nvs_unlock();
		if (found && !ready)
			continue;
		pthread_mutex_lock(&expected_lock);
		outstanding = found ? outstanding - 1 : 0; /* none left: their context was destroyed */
		pthread_mutex_unlock(&expected_lock);
	}
	return NULL;
}

static void start_thread(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, host_thread, NULL) == 0)
		pthread_detach(thread);
}

void nvs_host_functions_expect(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, start_thread);
	pthread_mutex_lock(&expected_lock);
	outstanding++;
	pthread_cond_signal(&expected);
	pthread_mutex_unlock(&expected_lock);
}

static CUresult submit(CUstream handle, CUhostFn function, CUstreamCallback callback, void *data)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (function == NULL && callback == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_work work = {
		.engine = NVS_OWNER, .effect = {.kind = NVS_EFFECT_HOST, .host = {function, callback, handle, data}}};
	bool captured = stream->capture != NULL;
	result = nvs_submit(stream, &work, NULL);
	if (result == CUDA_SUCCESS && !captured)
		nvs_host_functions_expect();
	return nvs_end(result);
}

NVS_API cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
	return submit(stream, fn, NULL, data);
}
NVS_PT(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn fn, void *data), (stream, fn, data))

NVS_API cuLaunchHostFunc_v2(CUstream stream, CUhostFn fn, void *data, unsigned mode)
{
	return submit(stream, fn, NULL, data);
}
NVS_PT(cuLaunchHostFunc_v2, _ptsz, (CUstream stream, CUhostFn fn, void *data, unsigned mode), (stream, fn, data, mode))

NVS_API cuStreamAddCallback(CUstream stream, CUstreamCallback fn, void *data, unsigned flags)
{
	return submit(stream, NULL, fn, data);
}
NVS_PT(cuStreamAddCallback, _ptsz, (CUstream stream, CUstreamCallback fn, void *data, unsigned flags),
	(stream, fn, data, flags))
