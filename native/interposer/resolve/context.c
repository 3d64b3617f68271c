#include "resolve/context.h"

#include "resolve/resolve.h"

CUcontext nvs_current_context(void)
{
	CUcontext context = NULL;
	if (nvs_real.cuCtxGetCurrent == NULL || nvs_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return NULL;
	return context;
}

CUresult nvs_context_device(CUcontext context, CUdevice *device)
{
	if (context == nvs_current_context())
		return nvs_real.cuCtxGetDevice(device);
	CUresult result = nvs_real.cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_real.cuCtxGetDevice(device);
	nvs_real.cuCtxPopCurrent_v2(&context);
	return result;
}
