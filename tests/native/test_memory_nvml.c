/* NVML's memory queries show the share of the card. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "../../native/interposer/nvml.c"

#define MIB (1ull << 20)

struct nvs_real_nvml nvs_nvml;
__thread int nvs_inside;

static struct nvs_env fake_env;
static uint64_t fake_card, fake_allocated;
static bool fake_attached;

const struct nvs_env *nvs_env(void)
{
	return &fake_env;
}

bool nvs_resolve_nvml(void)
{
	return true;
}

bool nvs_link_view(const char *uuid, uint64_t *card, uint64_t *allocated)
{
	assert(strcmp(uuid, "GPU-1") == 0);
	*card = fake_card;
	*allocated = fake_allocated;
	return fake_attached;
}

static nvmlReturn_t fake_uuid(nvmlDevice_t device, char *uuid, unsigned length)
{
	snprintf(uuid, length, "GPU-1");
	return NVML_SUCCESS;
}

static nvmlReturn_t fake_info(nvmlDevice_t device, nvmlMemory_t *memory)
{
	*memory = (nvmlMemory_t){.total = 15000 * MIB, .used = 9000 * MIB, .free = 6000 * MIB};
	return NVML_SUCCESS;
}

static nvmlReturn_t fake_info_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	memory->total = 15000 * MIB;
	memory->reserved = 400 * MIB;
	memory->used = 8600 * MIB;
	memory->free = 6000 * MIB;
	return NVML_SUCCESS;
}

static void expect(unsigned long long total, unsigned long long used, bool reserved)
{
	nvmlMemory_t one;
	nvmlMemory_v2_t two = {.version = 0x2000028};
	assert(nvmlDeviceGetMemoryInfo(NULL, &one) == NVML_SUCCESS);
	assert(nvmlDeviceGetMemoryInfo_v2(NULL, &two) == NVML_SUCCESS);
	assert(one.total == total && one.used == used && one.free == total - used);
	assert(two.total == total && two.used + two.reserved == used && two.free == total - used &&
		two.version == 0x2000028);
	assert((two.reserved != 0) == reserved);
}

int main(void)
{
	nvs_nvml = (struct nvs_real_nvml){
		.nvmlDeviceGetMemoryInfo = fake_info,
		.nvmlDeviceGetMemoryInfo_v2 = fake_info_v2,
		.nvmlDeviceGetUUID = fake_uuid,
	};

	/* GIVEN no scheduler and no quota THEN NVML's own answer. */
	expect(15000 * MIB, 9000 * MIB, true);

	/* GIVEN an attached process THEN its share and what it allocated itself. */
	fake_attached = true;
	fake_card = 1024 * MIB;
	fake_allocated = 748 * MIB;
	expect(1024 * MIB, 748 * MIB, false);

	/* GIVEN a quota in the environment of a process without a context THEN that size, and the card's use within it.
	 */
	fake_attached = false;
	fake_card = fake_allocated = 0;
	fake_env.mem_limit = 4096 * MIB;
	expect(4096 * MIB, 4096 * MIB, false);

	/* GIVEN an NVML without the newer function THEN the older still works. */
	nvs_nvml.nvmlDeviceGetMemoryInfo_v2 = NULL;
	nvmlMemory_t one;
	nvmlMemory_v2_t two;
	assert(nvmlDeviceGetMemoryInfo_v2(NULL, &two) == NVML_ERROR_FUNCTION_NOT_FOUND);
	assert(nvmlDeviceGetMemoryInfo(NULL, &one) == NVML_SUCCESS && one.total == 4096 * MIB);
	puts("PASS");
	return 0;
}
