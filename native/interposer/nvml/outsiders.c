/* NVML knows who has memory on a card; those with this library in them are ours. */
#include "nvml/outsiders.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "resolve/resolve.h"

#define PROCESSES 64u
#define NAMED 3u

typedef nvmlReturn_t (*list_function)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos);

static unsigned list(list_function newest, list_function older, nvmlDevice_t device, nvmlProcessInfo_v2_t *found)
{
	unsigned count = PROCESSES;
	list_function ask = newest != NULL ? newest : older;
	return ask != NULL && ask(device, &count, found) == NVML_SUCCESS ? count : 0;
}

/* A process that cannot be looked into (another user's, another container's) counts as an outsider. */
static bool is_ours(unsigned pid)
{
	char path[64], line[1024];
	bool found = pid == (unsigned)getpid();
	snprintf(path, sizeof(path), "/proc/%u/maps", pid);
	FILE *maps = found ? NULL : fopen(path, "re");
	while (maps != NULL && !found && fgets(line, sizeof(line), maps) != NULL)
		found = strstr(line, "libnvshare.so") != NULL;
	if (maps != NULL)
		fclose(maps);
	return found;
}

static nvmlProcessInfo_v2_t *largest(nvmlProcessInfo_v2_t *of, unsigned count)
{
	nvmlProcessInfo_v2_t *best = NULL;
	for (unsigned i = 0; i < count; i++)
		if (of[i].pid != 0 && (best == NULL || of[i].used > best->used))
			best = &of[i];
	return best;
}

static int describe(const nvmlProcessInfo_v2_t *process, bool first, char *text, size_t size)
{
	char name[128], *program = name, bytes[32] = "";
	if (nvs_nvml.nvmlSystemGetProcessName == NULL ||
		nvs_nvml.nvmlSystemGetProcessName(process->pid, name, sizeof(name)) != NVML_SUCCESS)
		snprintf(name, sizeof(name), "a process");
	name[sizeof(name) - 1] = '\0';
	if (strrchr(name, '/') != NULL && strrchr(name, '/')[1] != '\0')
		program = strrchr(name, '/') + 1;
	if (process->used != NVML_NOT_AVAILABLE)
		snprintf(bytes, sizeof(bytes), ", %llu MiB", process->used >> 20);
	return snprintf(text, size, "%s%s (pid %u%s)", first ? "" : ", ", program, process->pid, bytes);
}

static void name_outsiders(nvmlDevice_t device, char *text, size_t size)
{
	nvmlProcessInfo_v2_t found[2 * PROCESSES];
	unsigned named = 0, count = list(nvs_nvml.nvmlDeviceGetComputeRunningProcesses_v3,
				    nvs_nvml.nvmlDeviceGetComputeRunningProcesses_v2, device, found);
	count += list(nvs_nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
		nvs_nvml.nvmlDeviceGetGraphicsRunningProcesses_v2, device, found + count);
	for (nvmlProcessInfo_v2_t *each; named < NAMED && (each = largest(found, count)) != NULL; each->pid = 0) {
		if (is_ours(each->pid))
			continue;
		int used = describe(each, named == 0, text, size);
		if (used < 0 || (size_t)used >= size)
			return;
		text += used;
		size -= (size_t)used;
		named++;
	}
}

void nvs_outsiders(const char *uuid, char *text, size_t size)
{
	nvmlDevice_t device;
	int inside = nvs_inside; /* a thread of our own may load a library all the same */
	text[0] = '\0';
	nvs_inside = 0;
	bool resolved = nvs_resolve_nvml();
	nvs_inside = inside;
	if (!resolved || nvs_nvml.nvmlInit_v2 == NULL || nvs_nvml.nvmlDeviceGetHandleByUUID == NULL ||
		nvs_nvml.nvmlShutdown == NULL || nvs_nvml.nvmlInit_v2() != NVML_SUCCESS)
		return;
	if (nvs_nvml.nvmlDeviceGetHandleByUUID(uuid, &device) == NVML_SUCCESS)
		name_outsiders(device, text, size);
	nvs_nvml.nvmlShutdown();
}
