/* What the files of this folder share, and what other folders call. */
#ifndef NVS_MEMORY_H
#define NVS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* Free memory that is ours, as cuMemFree does. False when the pointer is not ours; else `result` is the answer. */
bool nvs_memory_free(CUdeviceptr p, CUresult *result);

/* End the use of another process's memory (ipc/imports.c), after the work that may use it. */
CUresult nvs_memory_end_import(CUdeviceptr p);

/* Give back what was freed while work that might use it was still running, if that work is finished now. Waits for it
 * at most `deadline_ms`; 0 only asks. */
void nvs_memory_reap(uint32_t deadline_ms);

/* Memory is short: give up what is kept for later use, parked or spare. False when there was nothing. */
bool nvs_memory_give_up_spares(CUdevice device);

/* Memory of ours at these addresses is about to become known by more than its address: wait until it is on the card,
 * and keep it there. True when there is some; then nvs_gate_leave follows. */
bool nvs_memory_keep(CUdeviceptr p, size_t size);

/* The driver destroyed the context: everything it owned, ours or counted, goes too. */
void nvs_memory_context_gone(CUcontext context, CUdevice device);

/* After fork, in the child: as in a fresh process. */
void nvs_memory_after_fork(void);
void nvs_contexts_after_fork(void);

#endif
