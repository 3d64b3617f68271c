/* What the gate asks of the folders above it. They define these functions. The gate includes nothing of theirs, so that
 * a test can put anything above it. */
#ifndef NVS_UPCALLS_H
#define NVS_UPCALLS_H

#include "cuda_abi.h"

/* ---- link/link.c ---- */

/* A submitting thread waits at the gate: the link asks for what is missing, a turn or a slice. Returns at once; the
 * gate's futex wakes the thread. */
void nvs_link_want(void);

/* This submission may be the first after a pause: the link thread wakes up and follows the work. Cheap when it is
 * awake. */
void nvs_link_active(void);

/* The link thread looks whether there is something to do. */
void nvs_link_wake(void);

/* ---- memory/ordered/lanes.c ---- */

/* Before the driver destroys a stream. nvs_streams_lock is held. */
void nvs_ordered_stream_ends(CUstream stream);

#endif
