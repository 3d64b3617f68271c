/* The thread that takes this process off its cards and brings it back: each of the driver's calls may take seconds. It
 * holds no lock meanwhile. Link thread only. */
#ifndef NVS_SLEEPER_H
#define NVS_SLEEPER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* Has the driver what it takes? */
bool nvs_sleeper_supported(void);

/* The entry is shut, and nothing is under way. False: there can be no thread, and nothing happens. */
bool nvs_sleeper_leave(uint32_t lock_ms);
void nvs_sleeper_return(void);

/* What ended: `error` is the driver's, or CUDA_SUCCESS; `locked`: the process is not running all the same. True once
 * for each leave and return; it wakes the link thread. */
bool nvs_sleeper_ended(CUresult *error, bool *locked);

void nvs_sleeper_after_fork(void);

#endif
