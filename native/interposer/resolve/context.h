/* Questions about the driver's contexts. */
#ifndef NVS_CONTEXT_H
#define NVS_CONTEXT_H

#include "cuda_abi.h"

/* The current context; NULL when there is none. */
CUcontext nvs_current_context(void);

/* The device that a context (not necessarily the current one) belongs to. Leaves the current context as it was. */
CUresult nvs_context_device(CUcontext context, CUdevice *device);

#endif
