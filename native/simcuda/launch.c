/* Launches. */
#include <string.h>

#include "module.h"
#include "sim.h"
#include "vspace.h"

#define LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define LAUNCH_PARAM_END ((void *)0)

/* Arguments one by one, or (the older way) packed in a buffer that `extra` names. */
static bool read_arguments(CUfunction function, void **params, void **extra, uint64_t args[4])
{
	const char *buffer = NULL;
	for (void **at = extra; params == NULL && at != NULL && *at != LAUNCH_PARAM_END; at += 2)
		if (*at == LAUNCH_PARAM_BUFFER_POINTER)
			buffer = at[1];
	if (params == NULL && buffer == NULL)
		return false;
	size_t offset = 0;
	for (size_t i = 0; i < function->parameters; i++) {
		size_t size = function->sizes[i];
		offset = nvs_round_up(offset, size);
		args[i] = 0;
		memcpy(&args[i], params != NULL ? params[i] : buffer + offset, size);
		offset += size;
	}
	return true;
}

/* What the kernel moves and computes; the formula of Profile.kernel_seconds. */
static struct nvs_work kernel_work(CUcontext ctx, enum nvs_function function, const uint64_t args[4])
{
	struct nvs_work work = nvs_work_kernel(0, 0);
	double n = (double)args[3];
	uint64_t bytes = args[3] * sizeof(float);
	switch (function) {
	case NVS_ADD_F32:
		work = nvs_work_kernel(12 * n, n);
		work.gap += nvs_managed_fault(ctx, args[0], bytes) + nvs_managed_fault(ctx, args[1], bytes) +
			    nvs_managed_fault(ctx, args[2], bytes);
		break;
	case NVS_SCALE_F32:
		work = nvs_work_kernel(8 * n, n);
		work.gap += nvs_managed_fault(ctx, args[0], bytes) + nvs_managed_fault(ctx, args[1], bytes);
		break;
	case NVS_SPIN:
		work.work = (double)args[0];
		break;
	case NVS_FUNCTIONS:
		break;
	}
	work.count = NVS_COUNT_LAUNCH;
	work.effect = (struct nvs_effect){.kind = NVS_EFFECT_KERNEL, .kernel = {.function = function}};
	memcpy(work.effect.kernel.args, args, sizeof(work.effect.kernel.args));
	return work;
}

static CUresult launch(CUfunction f, bool shape_is_good, CUstream handle, void **params, void **extra)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	uint64_t args[4] = {0};
	if (!nvs_is_function(f))
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	if (!shape_is_good || !read_arguments(f, params, extra, args))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_work work = kernel_work(stream->ctx, nvs_function_number(f), args);
	return nvs_end(nvs_submit(stream, &work, NULL));
}

static bool good_shape(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
	return gx > 0 && gy > 0 && gz > 0 && bx > 0 && by > 0 && bz > 0 && (uint64_t)bx * by * bz <= 1024;
}

NVS_API cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, CUstream stream, void **params, void **extra)
{
	return launch(f, good_shape(gx, gy, gz, bx, by, bz), stream, params, extra);
}
NVS_PT(cuLaunchKernel, _ptsz,
	(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
		CUstream stream, void **params, void **extra),
	(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra))

NVS_API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (config == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	bool good = good_shape(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
		config->blockDimY, config->blockDimZ);
	return launch(f, good, config->hStream, params, extra);
}
NVS_PT(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
	(config, f, params, extra))

NVS_API cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
	unsigned bz, unsigned shared, CUstream stream, void **params)
{
	return launch(f, good_shape(gx, gy, gz, bx, by, bz), stream, params, NULL);
}
NVS_PT(cuLaunchCooperativeKernel, _ptsz,
	(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
		CUstream stream, void **params),
	(f, gx, gy, gz, bx, by, bz, shared, stream, params))
