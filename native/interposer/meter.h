/* Metering: how long this process's work occupies its GPUs, estimated from sampled submissions that are bracketed by two
 * events, about one sample per millisecond of GPU time, never in a capturing stream. */
#ifndef NVS_METER_H
#define NVS_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct nvs_usage_counters {
	uint64_t occupied_us; /* cumulative */
	uint64_t submissions; /* cumulative */
	uint32_t window;      /* submissions that may be in flight while paced */
};

/* Called by the link thread now and then; reaps finished samples. */
void nvs_meter_poll(void);
void nvs_meter_usage(CUdevice device, struct nvs_usage_counters *out);

/* Streams and captures, told by the hooks. */
void nvs_stream_created(CUstream stream);
void nvs_stream_destroyed(CUstream stream);
void nvs_capture_began(void);
void nvs_capture_ended(void);
void nvs_context_destroyed(CUcontext context);

#endif
