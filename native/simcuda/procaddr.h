/* Functions by base name, apart from their types. */
#ifndef NVS_SIM_PROCADDR_H
#define NVS_SIM_PROCADDR_H

#include "cuda_abi.h"

/* The newest form of `name` that CUDA `version` has, or its per-thread variant. `status` may be NULL. */
CUresult nvs_proc_address(
	const char *name, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);

#endif
