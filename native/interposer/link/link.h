/* The link: the one thread that talks to the scheduler. It never needs the GIL, the driver's locks or a lock that an
 * application thread holds while it waits. Without a scheduler every call here answers as if there were no limits but
 * the environment's own. */
#ifndef NVS_LINK_H
#define NVS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "gate/upcalls.h" /* nvs_link_want, nvs_link_active, nvs_link_wake */

/* A context was (or is about to be) made on this device: connect and register, or attach a further GPU. Blocks until
 * the scheduler answered, at most about two seconds. Cheap when the device is attached already. CUDA_SUCCESS, or
 * CUDA_ERROR_SYSTEM_NOT_READY when NVSHARE_REQUIRE is set and there is no scheduler. */
CUresult nvs_link_attach(CUdevice device);

/* Ask for bytes on an attached device. CUDA_SUCCESS: they count as allocated from now on, or until nvs_link_release,
 * and `resident` says whether they may be on the card now. `stays`: they can never be moved. CUDA_ERROR_OUT_OF_MEMORY:
 * over the quota or the card. Blocks for one round trip, longer when told to wait. */
CUresult nvs_link_request(CUdevice device, uint64_t bytes, bool stays, bool *resident);
/* Ask to keep bytes on the card for good that are counted already. CUDA_SUCCESS: they count as pinned from now on,
 * until nvs_residency_pin says otherwise. CUDA_ERROR_OUT_OF_MEMORY: somebody else could not run any more. */
CUresult nvs_link_keep(CUdevice device, uint64_t bytes);
/* Give bytes back, of which so many were on the card. */
void nvs_link_release(CUdevice device, uint64_t bytes, uint64_t resident);
/* Does a scheduler plan this device's memory? */
bool nvs_link_is_counted(CUdevice device);
/* The mover has moved something: tell the scheduler, and open the gate if it waited for that. */
void nvs_link_moved(CUdevice device);

/* This process's allocated bytes on the device, as asked and released above, and which of them cannot be moved. */
uint64_t nvs_link_allocated(CUdevice device);
void nvs_link_pinned(CUdevice device, int64_t delta);

/* The size of the card this task sees: its quota, else the declared card, else 0 (no answer: ask the driver). */
uint64_t nvs_link_card(CUdevice device);
/* Like nvs_link_card by UUID text ("GPU-..."), for NVML; also the allocated bytes. False when not attached. */
bool nvs_link_view(const char *uuid, uint64_t *card, uint64_t *allocated);

/* The UUID text of an attached device; empty for others. */
void nvs_link_uuid(CUdevice device, char *text, size_t size);

/* After fork, in the child: closes the socket, forgets everything. */
void nvs_link_after_fork(void);

#endif
