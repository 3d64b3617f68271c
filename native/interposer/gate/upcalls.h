/* What the gate asks of the folders above it. They define these functions. The gate includes nothing of theirs, so that
 * a test can put anything above it. */
#ifndef NVS_UPCALLS_H
#define NVS_UPCALLS_H

#include "cuda_abi.h"

/* ---- link/link.c ---- */

/* A submitting thread found the gate shut: ask for the turn (once). Returns at once; the gate's futex tells the rest.
 */
void nvs_link_want(void);

/* A submission is made that may be the first after a pause: the link thread wakes up and follows. Cheap when it is
 * awake. */
void nvs_link_active(void);

/* There may be something to do: the link thread looks. */
void nvs_link_wake(void);

/* ---- memory/ordered/lanes.c ---- */

/* Before the driver destroys a stream. nvs_streams_lock is held. */
void nvs_ordered_stream_ends(CUstream stream);

#endif
