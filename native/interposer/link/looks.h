/* How often the link thread looks at the gate and the GPU, and what it tells the client of it. Link thread only. */
#ifndef NVS_LOOKS_H
#define NVS_LOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "nvshare_protocol.h"

void nvs_looks_begin(void);
/* The gate was shut for the end of a slice. */
void nvs_looks_close(enum nvs_turn_reason reason);
/* Look, where that is due. */
void nvs_look(uint64_t now);
/* When that is so again; 0: not before something happens. */
uint64_t nvs_look_due(void);
void nvs_looks_after_fork(void);
/* Something was submitted since the slice began. */
bool nvs_looks_submitted(void);
/* In this slice there was something to see the work of this device by. */
bool nvs_looks_marked(CUdevice device);

#endif
