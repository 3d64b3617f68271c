/* Contexts: where a process becomes a client of the scheduler, and where everything that a context owned ends. */
#include "memory/memory.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/devices.h"
#include "gate/entry.h"
#include "gate/gate.h"
#include "gate/streams.h"
#include "link/link.h"
#include "memory/swap/backing.h"
#include "memory/swap/mover.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

/* Work that still runs this long after its context's end was asked for is left to the driver. */
#define END_WAIT_MS 10000
#define CONTEXT_WAIT_NS (5 * NVS_NS_PER_S)

/* The primary context of a device is shared by all who retain it; only the last release ends it. */
struct primary {
	CUcontext context;
	unsigned retained; /* not changed by a reset: after it the driver starts the context anew when it is used */
	bool announced;
};

static pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct primary primaries[NVS_MAX_DEVICES];

NVS_EXPORT CUresult cuInit(unsigned flags)
{
	NVS_PASS_INSIDE(cuInit, (flags));
	nvs_inside++;
	CUresult result = nvs_real.cuInit(flags);
	nvs_inside--;
	return result;
}

/* ---- creating ---- */

/* The scheduler keeps room for one more context on a card whose memory is short. Where two come at once the second
 * waits until others have made room again. */
#define WHEN_THERE_IS_ROOM(device, call)                                                                               \
	({                                                                                                             \
		uint64_t pause = 0, deadline = nvs_now_ns() + CONTEXT_WAIT_NS;                                         \
		CUresult made = (call);                                                                                \
		while (made == CUDA_ERROR_OUT_OF_MEMORY && nvs_link_is_counted(device) && nvs_now_ns() < deadline) {   \
			nvs_sleep_growing(&pause);                                                                     \
			made = (call);                                                                                 \
		}                                                                                                      \
		made;                                                                                                  \
	})

#define CREATE_CONTEXT(name, params, args)                                                                             \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, args);                                                                           \
		nvs_inside++;                                                                                          \
		CUresult result = nvs_link_attach(device);                                                             \
		if (result == CUDA_SUCCESS)                                                                            \
			result = WHEN_THERE_IS_ROOM(device, nvs_real.name args);                                       \
		if (result == CUDA_SUCCESS)                                                                            \
			nvs_context_created(*ctx, device);                                                             \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}

CREATE_CONTEXT(cuCtxCreate, (CUcontext * ctx, unsigned flags, CUdevice device), (ctx, flags, device))
CREATE_CONTEXT(cuCtxCreate_v2, (CUcontext * ctx, unsigned flags, CUdevice device), (ctx, flags, device))
CREATE_CONTEXT(cuCtxCreate_v3, (CUcontext * ctx, void *affinity, int count, unsigned flags, CUdevice device),
	(ctx, affinity, count, flags, device))
CREATE_CONTEXT(
	cuCtxCreate_v4, (CUcontext * ctx, void *params, unsigned flags, CUdevice device), (ctx, params, flags, device))

CREATE_CONTEXT(cuGLCtxCreate, (CUcontext * ctx, unsigned flags, CUdevice device), (ctx, flags, device))
CREATE_CONTEXT(cuGLCtxCreate_v2, (CUcontext * ctx, unsigned flags, CUdevice device), (ctx, flags, device))
CREATE_CONTEXT(cuVDPAUCtxCreate, (CUcontext * ctx, unsigned flags, CUdevice device, cuuint32_t display, void *get),
	(ctx, flags, device, display, get))
CREATE_CONTEXT(cuVDPAUCtxCreate_v2, (CUcontext * ctx, unsigned flags, CUdevice device, cuuint32_t display, void *get),
	(ctx, flags, device, display, get))

/* A green context is a part of the primary one, which it retains; memory and streams belong to that. */
NVS_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags)
{
	NVS_PASS_INSIDE(cuGreenCtxCreate, (green, resources, device, flags));
	nvs_inside++;
	CUresult result = nvs_link_attach(device);
	if (result == CUDA_SUCCESS)
		result = nvs_real.cuGreenCtxCreate(green, resources, device, flags);
	nvs_inside--;
	return result;
}

/* True when the context is new, or was reset. */
static bool note_retained(CUdevice device, CUcontext context)
{
	if (!nvs_is_managed(device))
		return true;
	pthread_mutex_lock(&primaries_lock);
	struct primary *primary = &primaries[device];
	bool is_new = !primary->announced;
	primary->announced = true;
	primary->context = context;
	primary->retained++;
	pthread_mutex_unlock(&primaries_lock);
	return is_new;
}

NVS_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	NVS_PASS_INSIDE(cuDevicePrimaryCtxRetain, (ctx, device));
	nvs_inside++;
	CUresult result = nvs_link_attach(device);
	if (result == CUDA_SUCCESS)
		result = WHEN_THERE_IS_ROOM(device, nvs_real.cuDevicePrimaryCtxRetain(ctx, device));
	if (result == CUDA_SUCCESS && note_retained(device, *ctx))
		nvs_context_created(*ctx, device);
	nvs_inside--;
	return result;
}

/* ---- ending ---- */

/* Its work is finished and its streams are forgotten while the driver still knows them. */
static void context_ends(CUcontext context)
{
	nvs_gate_drain(END_WAIT_MS);
	nvs_context_destroyed(context);
	nvs_mover_context_ends(context);
}

#define DESTROY_CONTEXT(name)                                                                                          \
	NVS_EXPORT CUresult name(CUcontext ctx)                                                                        \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, (ctx));                                                                          \
		CUdevice device;                                                                                       \
		if (nvs_context_device(ctx, &device) != CUDA_SUCCESS)                                                  \
			return nvs_real.name(ctx); /* for its error */                                                 \
		nvs_inside++;                                                                                          \
		context_ends(ctx);                                                                                     \
		CUresult result = nvs_real.name(ctx);                                                                  \
		if (result == CUDA_SUCCESS)                                                                            \
			nvs_memory_context_gone(ctx, device);                                                          \
		else                                                                                                   \
			nvs_context_created(ctx, device);                                                              \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}

DESTROY_CONTEXT(cuCtxDestroy)
DESTROY_CONTEXT(cuCtxDestroy_v2)

static struct primary primary_of(CUdevice device)
{
	if (!nvs_is_managed(device))
		return (struct primary){0};
	pthread_mutex_lock(&primaries_lock);
	struct primary copy = primaries[device];
	pthread_mutex_unlock(&primaries_lock);
	return copy;
}

static bool primary_is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return nvs_real.cuDevicePrimaryCtxGetState != NULL &&
	       nvs_real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

static void note_released(CUdevice device, bool reset, bool ended)
{
	pthread_mutex_lock(&primaries_lock);
	struct primary *primary = &primaries[device];
	if (ended)
		primary->announced = false;
	if (ended && !reset)
		primary->retained = 0;
	else if (!reset && primary->retained > 0)
		primary->retained--;
	pthread_mutex_unlock(&primaries_lock);
}

static CUresult release_primary(CUdevice device, bool reset, CUresult (*real)(CUdevice))
{
	struct primary before = primary_of(device);
	if (before.context == NULL)
		return real(device);
	bool expected = reset || before.retained <= 1;
	if (expected)
		context_ends(before.context);
	CUresult result = real(device);
	bool ended = result == CUDA_SUCCESS && (reset || !primary_is_active(device));
	if (result == CUDA_SUCCESS)
		note_released(device, reset, ended);
	if (ended && !expected) {
		nvs_context_destroyed(before.context);
		nvs_mover_context_ends(before.context);
	}
	if (ended)
		nvs_memory_context_gone(before.context, device);
	else if (expected)
		nvs_context_created(before.context, device); /* somebody else holds it */
	return result;
}

#define RELEASE_PRIMARY(name, reset)                                                                                   \
	NVS_EXPORT CUresult name(CUdevice device)                                                                      \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, (device));                                                                       \
		nvs_inside++;                                                                                          \
		CUresult result = release_primary(device, reset, nvs_real.name);                                       \
		nvs_inside--;                                                                                          \
		return result;                                                                                         \
	}

RELEASE_PRIMARY(cuDevicePrimaryCtxRelease, false)
RELEASE_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset, true)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

/* ---- peers ---- */

/* The driver's peer access covers cuMemAlloc memory; memory mapped by us needs to be told for each range, and again for
 * each one made later. Given per device rather than per context, and kept when the application disables it: more than
 * asked for, never less. */
NVS_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	NVS_PASS_INSIDE(cuCtxEnablePeerAccess, (peer, flags));
	CUdevice accessor, owner;
	nvs_inside++;
	CUresult result = nvs_real.cuCtxEnablePeerAccess(peer, flags);
	if (result == CUDA_SUCCESS && nvs_real.cuCtxGetDevice(&accessor) == CUDA_SUCCESS &&
		nvs_context_device(peer, &owner) == CUDA_SUCCESS)
		result = nvs_backing_allow_peer(owner, accessor);
	nvs_inside--;
	return result;
}

void nvs_contexts_after_fork(void)
{
	pthread_mutex_init(&primaries_lock, NULL);
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		primaries[i] = (struct primary){0};
}
