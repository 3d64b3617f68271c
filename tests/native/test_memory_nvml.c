/* NVML's queries show the share of the card, and the processes of the task. */
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "link/link.h"
#include "link/share.h"
#include "nvshare_protocol.h"
#include "resolve/resolve.h"

#define MIB (1ull << 20)
#define NO_INSTANCE 0xffffffffu /* as NVML says it */

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

static struct nvs_process_entry fake_group[4];
static uint32_t fake_group_size;
static uint64_t fake_group_card; /* 0: the scheduler knows nothing of us */

bool nvs_share_ask(const char *uuid, struct nvs_group_share *share)
{
	assert(strcmp(uuid, "GPU-1") == 0);
	if (fake_group_card == 0)
		return false;
	*share = (struct nvs_group_share){.card = fake_group_card, .count = fake_group_size};
	share->processes = malloc(sizeof(fake_group));
	memcpy(share->processes, fake_group, sizeof(fake_group));
	for (uint32_t i = 0; i < fake_group_size; i++)
		share->used += fake_group[i].allocated;
	return true;
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

/* ---- lists of processes: of ourselves, a mate of the same run, and strangers ---- */

/* Above every process id that Linux gives, so that none of them is ever our own. */
enum { MATE = 0x1000020, STRANGER = 0x1000030, AWAY = 0x1000040 };
static unsigned fake_strangers = 1;

static unsigned fill(nvmlProcessInfo_v2_t *infos)
{
	unsigned count = 0;
	for (unsigned i = 0; i < fake_strangers; i++)
		infos[count++] = (nvmlProcessInfo_v2_t){STRANGER + 100 * i, 5000 * MIB, 1, 1};
	infos[count++] = (nvmlProcessInfo_v2_t){(unsigned)getpid(), 1700 * MIB, 7, 8};
	infos[count++] = (nvmlProcessInfo_v2_t){MATE, 1400 * MIB, 7, 8};
	return count;
}

static nvmlReturn_t fake_list(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)
{
	static nvmlProcessInfo_v2_t all[512];
	unsigned capacity = *count;
	*count = fill(all);
	if (*count > capacity)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(infos, all, *count * sizeof(*infos));
	return NVML_SUCCESS;
}

static nvmlReturn_t fake_list_v1(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
	nvmlProcessInfo_v2_t all[8];
	unsigned capacity = *count;
	*count = fill(all);
	for (unsigned i = 0; i < *count && *count <= capacity; i++)
		infos[i] = (nvmlProcessInfo_v1_t){all[i].pid, all[i].used};
	return *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t fake_details(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
	nvmlProcessInfo_v2_t all[8];
	unsigned capacity = list->count;
	list->count = fill(all);
	for (unsigned i = 0; i < list->count && list->count <= capacity; i++)
		list->processes[i] = (nvmlProcessDetail_v1_t){all[i].pid, all[i].used, 7, 8, 9};
	return list->count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t fake_samples(
	nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count, unsigned long long last_seen)
{
	if (samples == NULL) {
		*count = 2;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	samples[0] = (nvmlProcessUtilizationSample_t){.pid = STRANGER, .sm = 90};
	samples[1] = (nvmlProcessUtilizationSample_t){.pid = MATE, .sm = 10};
	return NVML_SUCCESS;
}

static nvmlReturn_t fake_infos(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
	info->samples[0] = (nvmlProcessUtilizationInfo_v1_t){.pid = STRANGER, .sm = 90};
	info->samples[1] = (nvmlProcessUtilizationInfo_v1_t){.pid = (unsigned)getpid(), .sm = 10};
	info->count = 2;
	return NVML_SUCCESS;
}

static void lists_show_the_run(void)
{
	nvmlProcessInfo_v2_t infos[4];
	unsigned count = 0;
	/* The size first, then the records, with what was allocated. */
	assert(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, NULL) == NVML_ERROR_INSUFFICIENT_SIZE);
	assert(count == 3);
	assert(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, infos) == NVML_SUCCESS && count == 3);
	assert(infos[0].pid == (unsigned)getpid() && infos[0].used == 748 * MIB && infos[0].gpu_instance == 7);
	assert(infos[1].pid == MATE && infos[1].used == 100 * MIB);
	assert(infos[2].pid == AWAY && infos[2].used == 50 * MIB && infos[2].gpu_instance == NO_INSTANCE);
	/* Too small a capacity is said, and nothing is written. */
	count = 2;
	infos[0].pid = 1;
	assert(nvmlDeviceGetComputeRunningProcesses_v2(NULL, &count, infos) == NVML_ERROR_INSUFFICIENT_SIZE);
	assert(count == 3 && infos[0].pid == 1);
	/* Graphics: only who is in NVML's list. */
	count = 4;
	assert(nvmlDeviceGetGraphicsRunningProcesses_v3(NULL, &count, infos) == NVML_SUCCESS && count == 2);

	nvmlProcessInfo_v1_t old[4];
	count = 4;
	assert(nvmlDeviceGetComputeRunningProcesses(NULL, &count, old) == NVML_SUCCESS && count == 3);
	assert(old[1].pid == MATE && old[1].used == 100 * MIB && old[2].pid == AWAY);

	nvmlProcessDetail_v1_t details[4];
	nvmlProcessDetailList_v1_t list = {.version = sizeof(list) | 1u << 24, .mode = 0};
	assert(nvmlDeviceGetRunningProcessDetailList(NULL, &list) == NVML_ERROR_INSUFFICIENT_SIZE && list.count == 3);
	list.processes = details;
	assert(nvmlDeviceGetRunningProcessDetailList(NULL, &list) == NVML_SUCCESS && list.count == 3);
	assert(details[0].used == 748 * MIB && details[0].used_protected == 9 && details[2].pid == AWAY);

	nvmlProcessUtilizationSample_t samples[2];
	count = 0;
	assert(nvmlDeviceGetProcessUtilization(NULL, NULL, &count, 0) == NVML_ERROR_INSUFFICIENT_SIZE && count == 2);
	assert(nvmlDeviceGetProcessUtilization(NULL, samples, &count, 0) == NVML_SUCCESS);
	assert(count == 1 && samples[0].pid == MATE);
	nvmlProcessUtilizationInfo_v1_t of_processes[2];
	nvmlProcessesUtilizationInfo_v1_t info = {.count = 2, .samples = of_processes};
	assert(nvmlDeviceGetProcessesUtilizationInfo(NULL, &info) == NVML_SUCCESS);
	assert(info.count == 1 && of_processes[0].pid == (unsigned)getpid());
}

static void processes(void)
{
	nvmlProcessInfo_v2_t infos[8];
	unsigned count = 8;
	nvs_nvml.nvmlDeviceGetComputeRunningProcesses = fake_list_v1;
	nvs_nvml.nvmlDeviceGetComputeRunningProcesses_v2 = nvs_nvml.nvmlDeviceGetComputeRunningProcesses_v3 = fake_list;
	nvs_nvml.nvmlDeviceGetGraphicsRunningProcesses_v3 = fake_list;
	nvs_nvml.nvmlDeviceGetRunningProcessDetailList = fake_details;
	nvs_nvml.nvmlDeviceGetProcessUtilization = fake_samples;
	nvs_nvml.nvmlDeviceGetProcessesUtilizationInfo = fake_infos;

	/* GIVEN neither scheduler nor quota THEN NVML's own answers, strangers too. */
	assert(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, infos) == NVML_SUCCESS && count == 3);
	assert(infos[0].pid == STRANGER && infos[1].used == 1700 * MIB);
	assert(nvmlDeviceGetMPSComputeRunningProcesses_v3(NULL, &count, infos) == NVML_ERROR_FUNCTION_NOT_FOUND);

	/* GIVEN a run of three, one of which has its memory on the host THEN those, as the scheduler counts. */
	fake_group_card = fake_card = 1024 * MIB;
	fake_attached = true;
	fake_allocated = 748 * MIB;
	fake_group[0] = (struct nvs_process_entry){.pid = MATE, .allocated = 100 * MIB};
	fake_group[1] = (struct nvs_process_entry){.pid = AWAY, .allocated = 50 * MIB};
	fake_group[2] = (struct nvs_process_entry){.pid = 0, .allocated = 50 * MIB}; /* of another namespace */
	fake_group_size = 3;
	lists_show_the_run();

	/* GIVEN more strangers than were expected THEN still only ours. */
	fake_strangers = 200;
	count = 8;
	assert(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, infos) == NVML_SUCCESS && count == 3);
	assert(infos[1].pid == MATE);

	/* GIVEN a tool in that run THEN the memory of the run, and its processes. */
	fake_attached = false;
	fake_strangers = 1;
	count = 8;
	expect(1024 * MIB, 200 * MIB, false);
	assert(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, infos) == NVML_SUCCESS && count == 2);
	assert(infos[0].pid == MATE && infos[1].pid == AWAY);

	/* GIVEN a quota and no scheduler THEN the process itself. */
	fake_group_card = 0;
	fake_attached = true;
	count = 8;
	assert(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, infos) == NVML_SUCCESS && count == 1);
	assert(infos[0].pid == (unsigned)getpid() && infos[0].used == 748 * MIB);
	fake_attached = false;
	fake_card = fake_allocated = 0;
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

	processes();

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
