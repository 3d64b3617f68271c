/* Metering: how long this process's work occupies its GPUs, estimated from sampled submissions that are bracketed by
 * two events, about one sample per 4 ms of GPU time, never while a stream captures. From the same samples comes
 * the pace: how many submissions may be in flight while the gate is PACED. */
#ifndef NVS_METER_H
#define NVS_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "gate/gate.h"

#define NVS_WINDOW_MAX 1024u

struct nvs_usage_counters {
	uint64_t occupied_us; /* cumulative */
	uint64_t submissions; /* cumulative */
	uint32_t window;      /* submissions that may be in flight; NVS_WINDOW_MAX while free-running */
};

/* Called by the link thread now and then; reaps finished samples. */
void nvs_meter_poll(void);
bool nvs_meter_pending(void); /* samples under way? */
void nvs_meter_usage(CUdevice device, struct nvs_usage_counters *out);
/* For how long the GPU was at work for this process, estimated, cumulative; what is not sampled yet included, what is
 * shorter than the host takes to submit it is not. */
uint64_t nvs_meter_busy_us(CUdevice device);
/* From now on occupied time is what nvs_meter_used says, instead of what the samples say; or no longer. */
void nvs_meter_by_slices(CUdevice device, bool on);
void nvs_meter_used(CUdevice device, uint64_t ns);

/* The process is about to exit: the driver may vanish, so the link thread leaves it alone from now on. */
void nvs_meter_stop(void);

/* ---- for gate.c ---- */

/* The flag is raised and this submission is the one to measure: begin a sample. NVS_MEASURED, or 0 when it cannot be
 * measured now. Chooses the next one to measure either way. */
uint32_t nvs_meter_begin(struct nvs_thread *self, CUstream stream);
void nvs_meter_end(struct nvs_thread *self, CUstream stream);

/* May this submission go, while PACED? NULL: yes, and *duty is what leave has to do (NVS_MARKER or 0). Else: lower the
 * flag, call nvs_pace_wait with it, come back. */
struct nvs_pace *nvs_pace_admit(struct nvs_thread *self, CUstream stream, uint32_t *duty);
/* False: it takes so long that what is waited for may itself wait for what comes after this submission. */
bool nvs_pace_wait(struct nvs_pace *pace);
void nvs_pace_mark(struct nvs_thread *self, CUstream stream);
/* Threads that wait for the GPU to catch up. */
uint32_t nvs_pace_waiting(void);
/* For how long work of this process was seen in flight, in all; seen by nvs_pace_pending, where there are marks. */
uint64_t nvs_pace_behind_us(CUdevice device);
uint64_t nvs_pace_marks(CUdevice device);
void nvs_pace_after_fork(void);
/* How long the work in flight takes, as far as markers tell, ns; not while a submission passes. And how many tell. */
uint64_t nvs_pace_pending(uint32_t *ahead);

/* A slice begins with the next submission; and how long it was, ns, by the GPU's clock, from there until the end of
 * what was drained. 0: not known, or of several contexts. */
void nvs_pace_new_slice(void);
uint64_t nvs_pace_span(void);

/* What a submission takes, ns (0: not known), and how many may be in flight while PACED, if they take `recent_ns` now
 * in case that is more. */
uint32_t nvs_meter_window(CUdevice device, uint64_t recent_ns);
uint64_t nvs_meter_cost(CUdevice device);
/* One of 0 to count - 1. */
uint32_t nvs_meter_any(struct nvs_thread *self, uint32_t count);
/* About so many, a quarter more or less, so that what goes round in a loop is not met at the same place for ever. */
uint64_t nvs_meter_vary(struct nvs_thread *self, uint64_t stride);

/* How long a submission takes, without rare long ones, on the device where that is longest; 0: not known. */
uint64_t nvs_meter_typical_ns(void);

/* Work in flight to aim for while PACED; 0: as long as nobody says otherwise. */
void nvs_pace_set_budget(uint64_t budget_us);
uint64_t nvs_meter_budget(void); /* ns */

void nvs_meter_after_fork(void);

#endif
