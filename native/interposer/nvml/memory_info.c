/* NVML's memory queries, so that nvidia-smi and frameworks that ask there see the same card as cuMemGetInfo shows. */
#include "resolve/resolve.h"

#include <stdlib.h>

#include "base/env.h"
#include "link/link.h"
#include "link/share.h"

/* In a process with a context its own share, as cuMemGetInfo shows it; in others (nvidia-smi) that of the run, pod or
 * task around it. False: neither. */
static bool find_share(nvmlDevice_t device, uint64_t *card, uint64_t *allocated)
{
	char uuid[NVS_UUID_TEXT];
	struct nvs_group_share group;
	if (nvs_nvml.nvmlDeviceGetUUID == NULL ||
		nvs_nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
		return false;
	if (nvs_link_view(uuid, card, allocated))
		return true;
	if (!nvs_share_ask(uuid, &group))
		return false;
	free(group.processes);
	*card = group.card;
	*allocated = group.used;
	return true;
}

/* The card as this process sees it. `total` and `used` come in as NVML says. */
static bool view(nvmlDevice_t device, unsigned long long *total, unsigned long long *used)
{
	uint64_t card = 0, allocated = 0;
	bool shared = find_share(device, &card, &allocated);
	if (card == 0)
		card = nvs_env()->mem_limit;
	if (card == 0)
		return false;
	if (shared)
		*used = allocated;
	if (card < *total)
		*total = card;
	if (*used > *total)
		*used = *total;
	return true;
}

NVS_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	if (!nvs_resolve_nvml() || nvs_nvml.nvmlDeviceGetMemoryInfo == NULL)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = nvs_nvml.nvmlDeviceGetMemoryInfo(device, memory);
	if (result == NVML_SUCCESS && !nvs_inside && view(device, &memory->total, &memory->used))
		memory->free = memory->total - memory->used;
	return result;
}

NVS_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	if (!nvs_resolve_nvml() || nvs_nvml.nvmlDeviceGetMemoryInfo_v2 == NULL)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = nvs_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (result == NVML_SUCCESS && !nvs_inside && view(device, &memory->total, &memory->used)) {
		memory->reserved = 0; /* what the driver keeps for itself is not part of the share */
		memory->free = memory->total - memory->used;
	}
	return result;
}
