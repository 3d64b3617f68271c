/* Finding functions, naming results. */
#include "procaddr.h"
#include "sim.h"

struct error {
	CUresult code;
	const char *name, *text;
};

#define ERROR(name, text) {name, #name, text}

static const struct error errors[] = {
	ERROR(CUDA_SUCCESS, "no error"),
	ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
	ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
	ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
	ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
	ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
	ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
	ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
	ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
	ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
	ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
	ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
	ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
	ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
	ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
	ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
	ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
	ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
	ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
	ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
	ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
	ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
	ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
	ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
	ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
	ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
	ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
	ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
	ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
	ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
		"operation would make the legacy stream depend on a capturing blocking stream"),
	ERROR(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
	ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const struct error *find(CUresult code)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == code)
			return &errors[i];
	return NULL;
}

NVS_API cuGetErrorName(CUresult error, const char **name)
{
	const struct error *found = find(error);
	*name = found != NULL ? found->name : NULL;
	return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

NVS_API cuGetErrorString(CUresult error, const char **text)
{
	const struct error *found = find(error);
	*text = found != NULL ? found->text : NULL;
	return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

NVS_API cuGetProcAddress_v2(
	const char *name, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	return nvs_proc_address(name, pfn, version, flags, status);
}

NVS_API cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags)
{
	return nvs_proc_address(name, pfn, version, flags, NULL);
}
