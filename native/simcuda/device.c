/* Devices and what can be asked about them; pointers and what can be asked about them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "release/release.h"
#include "sim.h"
#include "vspace.h"

NVS_API cuDriverGetVersion(int *version)
{
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = nvs_driver_version;
	return CUDA_SUCCESS;
}

NVS_API cuDeviceGetCount(int *count)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (count == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	*count = nvs_process.device_count;
	return nvs_end(CUDA_SUCCESS);
}

/* Start of a call about a device: its GPU, or an error with nothing locked. */
static CUresult begin_device(CUdevice device, const void *out, unsigned *gpu)
{
	*gpu = 0;
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	if (out == NULL || nvs_gpu_of(device) < 0)
		return nvs_end(out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
	*gpu = (unsigned)nvs_gpu_of(device);
	return CUDA_SUCCESS;
}

NVS_API cuDeviceGet(CUdevice *device, int ordinal)
{
	unsigned gpu;
	CUresult result = begin_device(ordinal, device, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	*device = ordinal;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuDeviceGetName(char *name, int size, CUdevice device)
{
	unsigned gpu;
	CUresult result = begin_device(device, name, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	if (size <= 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	snprintf(name, (size_t)size, "%s", nvs_process.node->profile.display_name);
	return nvs_end(CUDA_SUCCESS);
}

/* "GPU-" and 32 hexadecimal digits with dashes between. */
static void parse_uuid(const char *text, CUuuid *uuid)
{
	size_t digits = 0;
	memset(uuid, 0, sizeof(*uuid));
	for (const char *at = text + 4; *at != '\0' && digits < 32; at++) {
		if (*at == '-')
			continue;
		const char one[2] = {*at, '\0'};
		unsigned value = (unsigned)strtoul(one, NULL, 16);
		uuid->bytes[digits / 2] = (char)((unsigned char)uuid->bytes[digits / 2] << 4 | value);
		digits++;
	}
}

NVS_API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	unsigned gpu;
	CUresult result = begin_device(device, uuid, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	parse_uuid(nvs_process.node->gpus[gpu].uuid, uuid);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	return cuDeviceGetUuid_v2(uuid, device);
}

NVS_API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	unsigned gpu;
	CUresult result = begin_device(device, bytes, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	*bytes = nvs_process.node->profile.memory_bytes;
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	unsigned gpu;
	CUresult result = begin_device(device, id, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	snprintf(id, size > 0 ? (size_t)size : 0, "0000:%02X:00.0", gpu + 1);
	return nvs_end(size >= 13 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

NVS_API cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	for (int i = 0; i < nvs_process.device_count && device != NULL && id != NULL; i++) {
		char own[16];
		if (cuDeviceGetPCIBusId(own, sizeof(own), i) != CUDA_SUCCESS || strcasecmp(own, id) != 0)
			continue;
		*device = i;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

NVS_API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	unsigned gpu;
	CUresult result = begin_device(device, major, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	*major = nvs_process.node->profile.compute_major;
	*minor = nvs_process.node->profile.compute_minor;
	return nvs_end(CUDA_SUCCESS);
}

enum attribute {
	MAX_THREADS_PER_BLOCK = 1,
	MAX_BLOCK_DIM_X,
	MAX_BLOCK_DIM_Y,
	MAX_BLOCK_DIM_Z,
	MAX_GRID_DIM_X,
	MAX_GRID_DIM_Y,
	MAX_GRID_DIM_Z,
	MAX_SHARED_MEMORY_PER_BLOCK,
	WARP_SIZE = 10,
	CLOCK_RATE = 13,
	MULTIPROCESSOR_COUNT = 16,
	CAN_MAP_HOST_MEMORY = 19,
	COMPUTE_MODE = 20,
	CONCURRENT_KERNELS = 31,
	PCI_BUS_ID = 33,
	MAX_THREADS_PER_MULTIPROCESSOR = 39,
	ASYNC_ENGINE_COUNT = 40,
	UNIFIED_ADDRESSING = 41,
	COMPUTE_CAPABILITY_MAJOR = 75,
	COMPUTE_CAPABILITY_MINOR = 76,
	STREAM_PRIORITIES_SUPPORTED = 78,
	MANAGED_MEMORY = 83,
	CONCURRENT_MANAGED_ACCESS = 89,
	COOPERATIVE_LAUNCH = 95,
	HOST_REGISTER_SUPPORTED = 99,
	VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
	MEMORY_POOLS_SUPPORTED = 115,
};

static int attribute_value(const struct nvs_node *node, unsigned gpu, int attribute)
{
	const struct nvs_profile *profile = &node->profile;
	switch ((enum attribute)attribute) {
	case MAX_THREADS_PER_BLOCK:
	case MAX_BLOCK_DIM_X:
	case MAX_BLOCK_DIM_Y:
	case MAX_THREADS_PER_MULTIPROCESSOR:
		return 1024;
	case MAX_BLOCK_DIM_Z:
		return 64;
	case MAX_GRID_DIM_X:
		return 2147483647;
	case MAX_GRID_DIM_Y:
	case MAX_GRID_DIM_Z:
		return 65535;
	case MAX_SHARED_MEMORY_PER_BLOCK:
		return 49152;
	case WARP_SIZE:
		return 32;
	case CLOCK_RATE:
		return 1500000;
	case MULTIPROCESSOR_COUNT:
		return profile->multiprocessors;
	case COMPUTE_MODE:
		return node->setup.compute_mode;
	case PCI_BUS_ID:
		return (int)gpu + 1;
	case ASYNC_ENGINE_COUNT:
		return 2;
	case COMPUTE_CAPABILITY_MAJOR:
		return profile->compute_major;
	case COMPUTE_CAPABILITY_MINOR:
		return profile->compute_minor;
	case CAN_MAP_HOST_MEMORY:
	case CONCURRENT_KERNELS:
	case UNIFIED_ADDRESSING:
	case STREAM_PRIORITIES_SUPPORTED:
	case MANAGED_MEMORY:
	case CONCURRENT_MANAGED_ACCESS:
	case COOPERATIVE_LAUNCH:
	case HOST_REGISTER_SUPPORTED:
	case VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case MEMORY_POOLS_SUPPORTED:
		return 1;
	}
	return 0;
}

NVS_API cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	unsigned gpu;
	CUresult result = begin_device(device, value, &gpu);
	if (result != CUDA_SUCCESS)
		return result;
	*value = attribute_value(nvs_process.node, gpu, attribute);
	return nvs_end(attribute > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* ---- pointers ---- */

static bool is_host(const struct nvs_mapping *mapping)
{
	return mapping->kind == NVS_PINNED || mapping->kind == NVS_REGISTERED;
}

static int ordinal_of(unsigned gpu)
{
	for (int i = 0; i < nvs_process.device_count; i++)
		if (nvs_process.devices[i] == gpu)
			return i;
	return -1;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	if (data == NULL || mapping == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	bool host = is_host(mapping), managed = mapping->kind == NVS_MANAGED;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = mapping->ctx;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = p;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)data = (void *)(uintptr_t)p;
		return host || managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED && managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = mapping->id;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = ordinal_of(mapping->physical->gpu);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = mapping->kind == NVS_ALLOCATED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)data = mapping->start;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)data = mapping->size;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned *)data = (unsigned)mapping->physical->prop.requestedHandleTypes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = mapping->pool;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

NVS_API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	CUresult result = nvs_begin();
	return result == CUDA_SUCCESS ? nvs_end(pointer_attribute(data, attribute, p)) : result;
}

/* As the real one: an attribute that a pointer does not have is no error, its value is zero. */
NVS_API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr p)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	for (unsigned i = 0; i < count; i++) {
		if (pointer_attribute(data[i], attributes[i], p) == CUDA_SUCCESS)
			continue;
		if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
			attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED)
			*(unsigned *)data[i] = 0;
		else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			*(int *)data[i] = -2;
		else
			*(void **)data[i] = NULL;
	}
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr p)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	bool good = attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && nvs_mapping_at(p) != NULL;
	return nvs_end(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
