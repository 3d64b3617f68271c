/* NVML's lists of processes: those of the run, pod or task that this process belongs to, with what they have allocated,
 * so that they agree with the memory queries. Others are not this task's business. */
#include "resolve/resolve.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link/link.h"
#include "link/share.h"
#include "nvshare_protocol.h"

#define SPARE 64u  /* processes that a list has place for, besides those that are known of */
#define ATTEMPTS 4 /* a list may have grown when it is asked again */
#define NO_INSTANCE 0xffffffffu

/* All lists of processes begin their records alike. */
struct record_head {
	unsigned pid;
	unsigned long long used;
};
_Static_assert(offsetof(nvmlProcessInfo_v1_t, used) == offsetof(struct record_head, used), "layout");
_Static_assert(offsetof(nvmlProcessInfo_v2_t, used) == offsetof(struct record_head, used), "layout");
_Static_assert(offsetof(nvmlProcessDetail_v1_t, used) == offsetof(struct record_head, used), "layout");

struct records {
	char *bytes;
	size_t stride;
	unsigned count;
};

/* Asks the real NVML for a list of at most *count records. */
typedef nvmlReturn_t (*fetch_function)(nvmlDevice_t device, const void *how, unsigned *count, void *records);

/* ---- who belongs to us ---- */

static void add_self(struct nvs_group_share *own, uint64_t allocated)
{
	uint32_t self = (uint32_t)getpid(), at = 0;
	while (at < own->count && own->processes[at].pid != self)
		at++;
	if (at == own->count) {
		struct nvs_process_entry *grown = realloc(own->processes, (at + 1) * sizeof(*grown));
		if (grown == NULL)
			return;
		own->processes = grown;
		own->count++;
	}
	own->processes[at] = (struct nvs_process_entry){.pid = self, .allocated = allocated};
}

/* False: there is neither scheduler nor quota here, and NVML's own answers count. */
static bool find_own(nvmlDevice_t device, struct nvs_group_share *own)
{
	char uuid[NVS_UUID_TEXT];
	uint64_t card = 0, allocated = 0;
	*own = (struct nvs_group_share){0};
	if (nvs_inside || nvs_nvml.nvmlDeviceGetUUID == NULL ||
		nvs_nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
		return false;
	bool attached = nvs_link_view(uuid, &card, &allocated);
	if (!nvs_share_ask(uuid, own) && (!attached || card == 0))
		return false;
	if (attached)
		add_self(own, allocated);
	return true;
}

static const struct nvs_process_entry *find(const struct nvs_group_share *own, unsigned pid)
{
	for (uint32_t i = 0; i < own->count && pid != 0; i++)
		if (own->processes[i].pid == pid)
			return &own->processes[i];
	return NULL;
}

/* ---- lists ---- */

static struct record_head *record(const struct records *list, unsigned at)
{
	return (struct record_head *)(list->bytes + at * list->stride);
}

static nvmlReturn_t fetch_all(nvmlDevice_t device, fetch_function fetch, const void *how, struct records *list)
{
	nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
	unsigned capacity = SPARE;
	for (int i = 0; i < ATTEMPTS && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
		free(list->bytes);
		list->bytes = calloc(capacity, list->stride);
		if (list->bytes == NULL)
			return NVML_ERROR_UNKNOWN;
		list->count = capacity;
		result = fetch(device, how, &list->count, list->bytes);
		capacity = list->count + SPARE;
	}
	return result;
}

static void keep_own(struct records *list, const struct nvs_group_share *own)
{
	unsigned kept = 0;
	for (unsigned i = 0; i < list->count; i++) {
		const struct nvs_process_entry *process = find(own, record(list, i)->pid);
		if (process == NULL)
			continue;
		memmove(record(list, kept), record(list, i), list->stride);
		record(list, kept++)->used = process->allocated;
	}
	list->count = kept;
}

static bool lists(const struct records *list, unsigned pid)
{
	for (unsigned i = 0; i < list->count; i++)
		if (record(list, i)->pid == pid)
			return true;
	return false;
}

/* Those that NVML knows by other numbers (in a container), or not at all because their memory is away. */
static void add_missing(struct records *list, const struct nvs_group_share *own)
{
	char *grown = realloc(list->bytes, (list->count + own->count + 1) * list->stride);
	if (grown == NULL)
		return;
	list->bytes = grown;
	for (uint32_t i = 0; i < own->count; i++) {
		const struct nvs_process_entry *process = &own->processes[i];
		if (process->pid == 0 || lists(list, process->pid))
			continue;
		nvmlProcessDetail_v1_t added = {process->pid, process->allocated, NO_INSTANCE, NO_INSTANCE, 0};
		memcpy(record(list, list->count++), &added, list->stride);
	}
}
_Static_assert(offsetof(nvmlProcessDetail_v1_t, compute_instance) == offsetof(nvmlProcessInfo_v2_t, compute_instance),
	"a record is the beginning of a longer one");

/* The task's own list, to be freed by the caller. `complete`: with those that NVML does not show. */
static nvmlReturn_t own_list(nvmlDevice_t device, fetch_function fetch, const void *how, bool complete,
	const struct nvs_group_share *own, struct records *list)
{
	nvmlReturn_t result = fetch_all(device, fetch, how, list);
	if (result != NVML_SUCCESS)
		return result;
	keep_own(list, own);
	if (complete)
		add_missing(list, own);
	return NVML_SUCCESS;
}

/* NVML's protocol: *count says how many records fit, and then how many there are. */
static nvmlReturn_t hand_out(const struct records *list, unsigned *count, void *to)
{
	unsigned capacity = *count;
	*count = list->count;
	if (list->count > capacity || (to == NULL && list->count > 0))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (list->count > 0)
		memcpy(to, list->bytes, list->count * list->stride);
	return NVML_SUCCESS;
}

/* ---- running processes ---- */

typedef nvmlReturn_t (*list_function)(nvmlDevice_t device, unsigned *count, void *records);

static nvmlReturn_t fetch_running(nvmlDevice_t device, const void *how, unsigned *count, void *records)
{
	return (*(const list_function *)how)(device, count, records);
}

static nvmlReturn_t running(
	list_function real, bool complete, nvmlDevice_t device, unsigned *count, void *infos, size_t stride)
{
	struct nvs_group_share own;
	struct records list = {.stride = stride};
	if (count == NULL || !find_own(device, &own))
		return real(device, count, infos);
	nvmlReturn_t result = own_list(device, fetch_running, &real, complete, &own, &list);
	if (result == NVML_SUCCESS)
		result = hand_out(&list, count, infos);
	free(list.bytes);
	free(own.processes);
	return result;
}

#define RUNNING(name, record_type, complete)                                                                           \
	NVS_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, record_type *infos)                         \
	{                                                                                                              \
		if (!nvs_resolve_nvml() || nvs_nvml.name == NULL)                                                      \
			return NVML_ERROR_FUNCTION_NOT_FOUND;                                                          \
		return running((list_function)nvs_nvml.name, complete, device, count, infos, sizeof(*infos));          \
	}

RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, true)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, false)

/* ---- the same with details ---- */

#define MODE_COMPUTE 0u

static nvmlReturn_t fetch_details(nvmlDevice_t device, const void *how, unsigned *count, void *records)
{
	nvmlProcessDetailList_v1_t list = *(const nvmlProcessDetailList_v1_t *)how;
	list.count = *count;
	list.processes = records;
	nvmlReturn_t result = nvs_nvml.nvmlDeviceGetRunningProcessDetailList(device, &list);
	*count = list.count;
	return result;
}

NVS_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *asked)
{
	struct nvs_group_share own;
	struct records list = {.stride = sizeof(*asked->processes)};
	if (!nvs_resolve_nvml() || nvs_nvml.nvmlDeviceGetRunningProcessDetailList == NULL)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (asked == NULL || asked->version != (sizeof(*asked) | 1u << 24) || !find_own(device, &own))
		return nvs_nvml.nvmlDeviceGetRunningProcessDetailList(device, asked);
	nvmlReturn_t result = own_list(device, fetch_details, asked, asked->mode == MODE_COMPUTE, &own, &list);
	if (result == NVML_SUCCESS)
		result = hand_out(&list, &asked->count, asked->processes);
	free(list.bytes);
	free(own.processes);
	return result;
}

/* ---- samples: of what was handed out only ours are left; place for all of them is more than enough ---- */

NVS_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(
	nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count, unsigned long long last_seen)
{
	struct nvs_group_share own;
	if (!nvs_resolve_nvml() || nvs_nvml.nvmlDeviceGetProcessUtilization == NULL)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = nvs_nvml.nvmlDeviceGetProcessUtilization(device, samples, count, last_seen);
	if (result != NVML_SUCCESS || samples == NULL || count == NULL || !find_own(device, &own))
		return result;
	unsigned kept = 0;
	for (unsigned i = 0; i < *count; i++)
		if (find(&own, samples[i].pid) != NULL)
			samples[kept++] = samples[i];
	*count = kept;
	free(own.processes);
	return result;
}

NVS_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
	nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
	struct nvs_group_share own;
	if (!nvs_resolve_nvml() || nvs_nvml.nvmlDeviceGetProcessesUtilizationInfo == NULL)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = nvs_nvml.nvmlDeviceGetProcessesUtilizationInfo(device, info);
	if (result != NVML_SUCCESS || info == NULL || info->samples == NULL || !find_own(device, &own))
		return result;
	unsigned kept = 0;
	for (unsigned i = 0; i < info->count; i++)
		if (find(&own, info->samples[i].pid) != NULL)
			info->samples[kept++] = info->samples[i];
	info->count = kept;
	free(own.processes);
	return result;
}
