/* Failures that a test plants: NVSHARE_SIM_FAULTS, read when the process initialises the driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const char *const names[NVS_OPERATIONS] = {"lock", "checkpoint", "restore", "unlock"};

static bool read_kind(const char *text, struct nvs_fault *fault)
{
	char *end;
	long code = strtol(text, &end, 10);
	*fault = (struct nvs_fault){.kind = NVS_RETURN, .code = (int32_t)code};
	if (strcmp(text, "kill") == 0)
		fault->kind = NVS_KILL;
	else if (strcmp(text, "break") == 0)
		*fault = (struct nvs_fault){.kind = NVS_BREAK, .code = CUDA_ERROR_UNKNOWN};
	else
		return end != text && *end == '\0' && code > 0;
	return true;
}

/* OPERATION=WHAT or OPERATION@NUMBER=WHAT */
static bool read_one(char *text, struct nvs_fault faults[NVS_OPERATIONS])
{
	char *what = strchr(text, '=');
	struct nvs_fault fault;
	if (what == NULL || !read_kind(what + 1, &fault))
		return false;
	*what = '\0';
	char *number = strchr(text, '@'), *end = number;
	if (number != NULL) {
		*number++ = '\0';
		fault.at = (uint32_t)strtoul(number, &end, 10);
		if (fault.at == 0 || *end != '\0')
			return false;
	}
	for (int i = 0; i < NVS_OPERATIONS; i++) {
		if (strcmp(text, names[i]) != 0)
			continue;
		faults[i] = fault;
		return true;
	}
	return false;
}

bool nvs_faults_read(struct nvs_fault faults[NVS_OPERATIONS])
{
	const char *planted = getenv("NVSHARE_SIM_FAULTS");
	char list[256], *rest = NULL;
	if (planted == NULL)
		return true;
	snprintf(list, sizeof(list), "%s", planted);
	for (char *one = strtok_r(list, ", ", &rest); one != NULL; one = strtok_r(NULL, ", ", &rest)) {
		if (read_one(one, faults))
			continue;
		nvs_sim_say(
			"NVSHARE_SIM_FAULTS=%s: write OPERATION=WHAT or OPERATION@NUMBER=WHAT, with commas between; "
			"operations are lock, checkpoint, restore and unlock; WHAT is a CUresult, break or kill",
			planted);
		return false;
	}
	return true;
}
