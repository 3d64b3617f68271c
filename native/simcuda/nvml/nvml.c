/* The simulated libnvidia-ml.so.1: what management tools ask, answered from the state of the node. */
#include "nvml_abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "node/node.h"

#define NVML __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice_st {
	unsigned gpu;
};

typedef struct nvmlUtilization_t {
	unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct nvmlPciInfo_t {
	char legacy_id[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char id[32];
} nvmlPciInfo_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvs_node *node;
static int users;
static struct nvmlDevice_st devices[NVS_GPUS];

NVML nvmlInit_v2(void)
{
	pthread_mutex_lock(&lock);
	if (node == NULL)
		node = nvs_node_open();
	if (node != NULL)
		users++;
	for (unsigned i = 0; i < NVS_GPUS; i++)
		devices[i].gpu = i;
	nvmlReturn_t result = node != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
	pthread_mutex_unlock(&lock);
	return result;
}

NVML nvmlInit(void)
{
	return nvmlInit_v2();
}

NVML nvmlInitWithFlags(unsigned flags)
{
	return nvmlInit_v2();
}

/* The state stays mapped: another thread may be in a call. */
NVML nvmlShutdown(void)
{
	pthread_mutex_lock(&lock);
	nvmlReturn_t result = users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	if (users > 0)
		users--;
	pthread_mutex_unlock(&lock);
	return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_FUNCTION_NOT_FOUND:
		return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_UNKNOWN:
		break;
	}
	return "Unknown Error";
}

static bool ready(void)
{
	return users > 0 && node != NULL;
}

/* A card falls off the bus while a file named after it is in the node's directory (SimNode.lose in sim.py). */
static bool lost(unsigned gpu)
{
	char path[4096];
	const char *directory = getenv("NVSHARE_SIM_NODE");
	snprintf(path, sizeof(path), "%s/lost-%s", directory != NULL ? directory : "", node->gpus[gpu].uuid);
	return access(path, F_OK) == 0;
}

/* What is wrong with a call about a device that fills `out`. */
static nvmlReturn_t check(nvmlDevice_t device, const void *out)
{
	if (!ready())
		return NVML_ERROR_UNINITIALIZED;
	bool known = device >= devices && device < devices + node->gpu_count;
	if (!known || out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	return lost(device->gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static nvmlReturn_t text(char *to, unsigned size, const char *from)
{
	if (!ready())
		return NVML_ERROR_UNINITIALIZED;
	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(from) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, from, strlen(from) + 1);
	return NVML_SUCCESS;
}

static const char *driver_version(void)
{
	return ready() && node->setup.older_driver != 0 ? "550.00 (simulated)" : "580.00 (simulated)";
}

NVML nvmlSystemGetDriverVersion(char *version, unsigned size)
{
	return text(version, size, driver_version());
}

NVML nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
	char nvml[32];
	snprintf(nvml, sizeof(nvml), "%d.%s", ready() && node->setup.older_driver != 0 ? 12 : 13, driver_version());
	return text(version, size, nvml);
}

NVML nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!ready() || version == NULL)
		return ready() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	*version = node->setup.older_driver != 0 ? 12040 : 13000;
	return NVML_SUCCESS;
}

NVML nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML nvmlDeviceGetCount_v2(unsigned *count)
{
	if (!ready() || count == NULL)
		return ready() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	*count = node->gpu_count;
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	if (!ready())
		return NVML_ERROR_UNINITIALIZED;
	if (device == NULL || index >= node->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &devices[index];
	return lost(index) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

NVML nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (!ready())
		return NVML_ERROR_UNINITIALIZED;
	if (uuid == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < node->gpu_count; i++) {
		if (strcasecmp(node->gpus[i].uuid, uuid) != 0)
			continue;
		*device = &devices[i];
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size)
{
	nvmlReturn_t result = check(device, name);
	return result == NVML_SUCCESS ? text(name, size, node->profile.display_name) : result;
}

NVML nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
	nvmlReturn_t result = check(device, uuid);
	return result == NVML_SUCCESS ? text(uuid, size, node->gpus[device->gpu].uuid) : result;
}

NVML nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	nvmlReturn_t result = check(device, index);
	if (result == NVML_SUCCESS)
		*index = device->gpu;
	return result;
}

NVML nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
	return nvmlDeviceGetIndex(device, minor);
}

NVML nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t result = check(device, memory);
	if (result != NVML_SUCCESS)
		return result;
	nvs_node_lock(node);
	nvs_members_reap(node, true);
	memory->total = node->profile.memory_bytes;
	memory->used = node->gpus[device->gpu].used;
	nvs_node_unlock(node);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlMemory_t plain;
	nvmlReturn_t result = check(device, memory);
	if (result == NVML_SUCCESS && memory->version != (sizeof(*memory) | 2u << 24))
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		result = nvmlDeviceGetMemoryInfo(device, &plain);
	if (result != NVML_SUCCESS)
		return result;
	memory->total = plain.total;
	memory->reserved = 0;
	memory->free = plain.free;
	memory->used = plain.used;
	return NVML_SUCCESS;
}

/* Processes with memory on the GPU and what they have; at most NVS_SLOTS. */
static unsigned list_processes(unsigned gpu, nvmlProcessInfo_v1_t *out)
{
	unsigned count = 0;
	nvs_node_lock(node);
	nvs_members_reap(node, true);
	for (uint32_t i = 0; i < node->slot_top; i++) {
		const struct nvs_slot *slot = &node->slots[i];
		if (slot->pid == 0 || slot->gpu != gpu)
			continue;
		unsigned at = 0;
		while (at < count && out[at].pid != (unsigned)slot->pid)
			at++;
		if (at == count)
			out[count++] = (nvmlProcessInfo_v1_t){.pid = (unsigned)slot->pid};
		out[at].used += nvs_slot_total(slot);
	}
	nvs_node_unlock(node);
	return count;
}

static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *infos, bool with_instances)
{
	nvmlProcessInfo_v1_t found[NVS_SLOTS];
	nvmlReturn_t result = check(device, count);
	if (result != NVML_SUCCESS)
		return result;
	unsigned room = *count;
	*count = list_processes(device->gpu, found);
	if (*count > room || (infos == NULL && *count > 0))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *count; i++) {
		if (with_instances)
			((nvmlProcessInfo_v2_t *)infos)[i] =
				(nvmlProcessInfo_v2_t){found[i].pid, found[i].used, ~0u, ~0u};
		else
			((nvmlProcessInfo_v1_t *)infos)[i] = found[i];
	}
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
	return processes(device, count, infos, false);
}

NVML nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)
{
	return processes(device, count, infos, true);
}

NVML nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)
{
	return processes(device, count, infos, true);
}

NVML nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)
{
	nvmlReturn_t result = check(device, count);
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

/* The program as it was called. */
NVML nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	char path[64];
	if (name == NULL || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "r");
	if (file == NULL)
		return NVML_ERROR_NOT_FOUND;
	size_t used = fread(name, 1, length - 1, file); /* its arguments follow, each after a zero byte */
	name[used] = '\0';
	fclose(file);
	return used > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	nvmlReturn_t result = check(device, utilization);
	if (result != NVML_SUCCESS)
		return result;
	nvs_node_lock(node);
	utilization->gpu = (unsigned)(100 * nvs_gpu_utilization(node, device->gpu) + 0.5);
	nvs_node_unlock(node);
	utilization->memory = utilization->gpu;
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
	nvmlReturn_t result = check(device, mode);
	if (result == NVML_SUCCESS)
		*mode = (unsigned)node->setup.compute_mode;
	return result;
}

NVML nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	nvmlReturn_t result = check(device, current);
	if (result != NVML_SUCCESS || pending == NULL)
		return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
	if (node->setup.mig_mode == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = 1;
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	nvmlReturn_t result = check(device, count);
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

NVML nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	nvmlReturn_t result = check(device, major);
	if (result != NVML_SUCCESS || minor == NULL)
		return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
	*major = node->profile.compute_major;
	*minor = node->profile.compute_minor;
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlReturn_t result = check(device, pci);
	if (result != NVML_SUCCESS)
		return result;
	*pci = (nvmlPciInfo_t){.bus = device->gpu + 1};
	snprintf(pci->legacy_id, sizeof(pci->legacy_id), "0000:%02X:00.0", device->gpu + 1);
	snprintf(pci->id, sizeof(pci->id), "00000000:%02X:00.0", device->gpu + 1);
	return NVML_SUCCESS;
}

NVML nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}
