/* The mover: the one thread that copies memory between card and host, so that as much is on the card as the scheduler
 * allows. It works in contexts of the application, on streams of its own, and starts when there is something to move.
 */
#ifndef NVS_MOVER_H
#define NVS_MOVER_H

#include <stdint.h>

#include "cuda_abi.h"

/* There may be something to move. Cheap when there is not. */
void nvs_mover_kick(void);

/* What the last swap out and the last one in took together, ns; 0: nothing was moved yet. Any thread. */
uint64_t nvs_mover_switch_ns(void);

/* Between the two nothing is on its way and nothing begins. Waits for what is under way. Nests; any thread. */
void nvs_mover_pause(void);
void nvs_mover_resume(void);

/* The context is about to end, and is no longer among those that nvs_context_on finds. */
void nvs_mover_context_ends(CUcontext context);

/* The process is about to exit: leaves the driver alone from now on. */
void nvs_mover_stop(void);

void nvs_mover_after_fork(void);

#endif
