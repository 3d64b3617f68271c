/* NVML's memory queries, so that nvidia-smi and frameworks that ask there see the same card as cuMemGetInfo shows. */
#include "resolve.h"

#include "env.h"
#include "link.h"

#define UUID_TEXT 96

/* The card as this process sees it. `total` and `used` come in as NVML says. */
static bool view(nvmlDevice_t device, unsigned long long *total, unsigned long long *used)
{
	char uuid[UUID_TEXT];
	uint64_t card = 0, allocated = 0;
	bool attached = nvs_nvml.nvmlDeviceGetUUID != NULL &&
			nvs_nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) == NVML_SUCCESS &&
			nvs_link_view(uuid, &card, &allocated);
	if (card == 0)
		card = nvs_env()->mem_limit;
	if (card == 0)
		return false;
	/* A process without a context of its own (nvidia-smi) has allocated nothing; there the card's use is what it
	 * asks for. */
	if (attached)
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
