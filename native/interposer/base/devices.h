/* Which devices the library knows. */
#ifndef NVS_DEVICES_H
#define NVS_DEVICES_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Device ordinals below this are managed; a process that sees more cards uses the others natively. */
#define NVS_MAX_DEVICES 64

static inline bool nvs_is_managed(CUdevice device)
{
	return device >= 0 && device < NVS_MAX_DEVICES;
}

#endif
