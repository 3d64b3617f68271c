/* Why this process cannot sleep, as far as its calls told. Once raised, a bar stays. */
#ifndef NVS_BARS_H
#define NVS_BARS_H

#include "cuda_abi.h"
#include "nvshare_protocol.h"

/* Any thread, inside the driver's entry: a process that is about to sleep sees it, or the call comes later.
 * NVS_BAR_NONE raises nothing. */
void nvs_bar_raise(enum nvs_bar_reason bar);
/* The same after a call that succeeded. The answer is its result. */
CUresult nvs_bar_after(CUresult result, enum nvs_bar_reason bar);
/* The first of those raised, or NVS_BAR_NONE. */
enum nvs_bar_reason nvs_bar(void);

#endif
