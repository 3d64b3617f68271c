/* Flow control by time in flight, while the gate is PACED: every half window a marker event goes into the stream, and
 * the next one waits until the older of the two markers has been reached. So at most about a window is in flight, and
 * while a thread waits the GPU still has half of it. How long a wait took is nobody's business: the window follows from
 * the cost of submissions alone, so that a switch can never make it collapse. In a process with several contexts the
 * wait has an end: work in one may wait for what the same thread has yet to submit in another. Then nothing is paced
 * for the rest of the turn. */
#include "meter.h"

#include "clock.h"
#include "resolve.h"
#include "streams.h"

#define PATIENCE 4 /* usual lengths of a submission */
#define PATIENCE_NS (100 * NVS_NS_PER_MS)

struct nvs_pace *nvs_pace_admit(struct nvs_thread *self, CUstream stream, uint32_t *duty)
{
	struct nvs_context *context = atomic_load(&nvs_captures) == 0 ? nvs_context_of(stream) : NULL;
	*duty = 0;
	if (context == NULL)
		return NULL;
	struct nvs_pace *pace = &context->pace;
	uint32_t half = nvs_meter_window(atomic_load(&context->device)) / 2;
	pthread_mutex_lock(&pace->lock);
	bool crowded = false;
	if (++pace->since >= half) {
		uint32_t older = pace->next;
		crowded = pace->state[older] == NVS_MARKER_RECORDED &&
			  nvs_real.cuEventQuery(pace->marker[older]) == CUDA_ERROR_NOT_READY;
		if (crowded) {
			pace->since--;
		} else if (pace->state[older] != NVS_MARKER_TAKEN) { /* else its thread is between gate and stream */
			pace->state[older] = NVS_MARKER_TAKEN;
			pace->next = older ^ 1;
			pace->since = 0;
			self->pace = pace;
			self->marker = older;
			*duty = NVS_MARKER;
		}
	}
	pthread_mutex_unlock(&pace->lock);
	return crowded ? pace : NULL;
}

static bool is_reached(CUevent marker)
{
	uint64_t usual = PATIENCE * nvs_meter_typical_ns(), pause = 0;
	uint64_t until = nvs_now_ns() + (usual > PATIENCE_NS ? usual : PATIENCE_NS);
	while (nvs_real.cuEventQuery(marker) == CUDA_ERROR_NOT_READY) {
		if (nvs_now_ns() >= until)
			return false;
		nvs_sleep_growing(&pause);
	}
	return true;
}

bool nvs_pace_wait(struct nvs_pace *pace)
{
	pthread_mutex_lock(&pace->lock);
	CUevent older = pace->state[pace->next] == NVS_MARKER_RECORDED ? pace->marker[pace->next] : NULL;
	pthread_mutex_unlock(&pace->lock);
	if (older == NULL)
		return true;
	CUstreamCaptureMode mode = nvs_relax();
	bool reached = true;
	if (nvs_context_count(NVS_ANY_DEVICE) > 1)
		reached = is_reached(older);
	else
		nvs_real.cuEventSynchronize(older);
	nvs_unrelax(mode);
	return reached;
}

/* The marker is this thread's alone until it says what became of it. */
static bool record_marker(struct nvs_pace *pace, CUevent *marker, CUstream stream)
{
	if (atomic_load(&nvs_captures) != 0)
		return false;
	CUstreamCaptureMode mode = nvs_relax();
	CUcontext popped;
	if (*marker == NULL && nvs_real.cuCtxPushCurrent_v2(atomic_load(&pace->context->handle)) == CUDA_SUCCESS) {
		if (nvs_real.cuEventCreate(marker, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)
			*marker = NULL;
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	bool recorded = *marker != NULL && nvs_real.cuEventRecord(*marker, stream) == CUDA_SUCCESS;
	nvs_unrelax(mode);
	return recorded;
}

void nvs_pace_mark(struct nvs_thread *self, CUstream stream)
{
	struct nvs_pace *pace = self->pace;
	bool recorded = record_marker(pace, &pace->marker[self->marker], stream);
	pthread_mutex_lock(&pace->lock);
	pace->state[self->marker] = recorded ? NVS_MARKER_RECORDED : NVS_MARKER_FREE;
	pthread_mutex_unlock(&pace->lock);
}
