/* The entry: may a thread of the program be in the driver now, whatever it calls there? It stands around every function
 * of the driver, also those that neither submit nor name memory. It is shut while the process sleeps: the driver must
 * be left alone between its lock and its unlock, and its contexts are away.
 *
 * A caller raises its flag (nvs_thread.within, or in_call where it submits), then looks at the entry; the link thread
 * holds the entry, then waits until every flag is down. Both orders are sequentially consistent. The entry is only held
 * behind a gate (gate.h) that is SHUT, so a submission that finds the gate open need not look here. */
#ifndef NVS_ENTRY_H
#define NVS_ENTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "gate/threads.h"
#include "resolve/resolve.h"

enum nvs_entry_state {
	NVS_ENTRY_OPEN = 0,
	NVS_ENTRY_HELD = 1,   /* callers wait, those inside may end; the link thread may still ask the driver */
	NVS_ENTRY_SHUT = 2,   /* callers wait, nobody is inside, and the link thread asks nothing */
	NVS_ENTRY_BROKEN = 3, /* the contexts are lost or away for good: callers get the error above these bits */
};
#define NVS_ENTRY_STATE 3u
#define NVS_ENTRY_ERROR 4u

extern _Atomic uint32_t nvs_entry __attribute__((visibility("hidden")));

CUresult nvs_entry_enter_slow(void);

/* CUDA_SUCCESS: the flag is raised, and nvs_entry_leave follows. Else the driver cannot be called, and this is the
 * answer. Waits while the entry is held or shut; nests. No lock of ours or the driver's is held. */
static inline CUresult nvs_entry_enter(void)
{
	struct nvs_thread *self = nvs_self;
	if (__builtin_expect(self != NULL, 1)) {
		uint32_t within = atomic_load_explicit(&self->within, memory_order_relaxed);
		atomic_store(&self->within, within + 1);
		if (__builtin_expect(within != 0 || atomic_load(&nvs_entry) == NVS_ENTRY_OPEN, 1))
			return CUDA_SUCCESS;
		atomic_store_explicit(&self->within, within, memory_order_release);
	}
	return nvs_entry_enter_slow();
}

static inline void nvs_entry_leave(void)
{
	struct nvs_thread *self = nvs_self;
	uint32_t within = atomic_load_explicit(&self->within, memory_order_relaxed);
	atomic_store_explicit(&self->within, within - 1, memory_order_release);
}

/* The same for wrappers that are called most. True: this is the thread's outermost call, from the program, of a driver
 * that is known, and nvs_entry_leave_first follows. False: nothing happened. */
static inline bool nvs_entry_try_enter(void)
{
	struct nvs_thread *self = nvs_self;
	if (__builtin_expect(
		    self == NULL || nvs_inside != 0 || atomic_load_explicit(&self->within, memory_order_relaxed) != 0,
		    0))
		return false;
	atomic_store(&self->within, 1);
	if (__builtin_expect(atomic_load(&nvs_entry) == NVS_ENTRY_OPEN, 1))
		return true;
	atomic_store_explicit(&self->within, 0, memory_order_release);
	return false;
}

static inline void nvs_entry_leave_first(void)
{
	atomic_store_explicit(&nvs_self->within, 0, memory_order_release);
}

/* The entry is not open: wait until it is, at most a second. The caller's flags are down. CUDA_SUCCESS: look again.
 * Else the answer, as above. */
CUresult nvs_entry_wait(void);

/* The driver may be asked by the link thread, and by threads inside. */
static inline bool nvs_entry_answers(void)
{
	return (atomic_load(&nvs_entry) & NVS_ENTRY_STATE) < NVS_ENTRY_SHUT;
}

/* Threads that wait here. */
uint32_t nvs_entry_waiting(void);

/* Link thread only. */
void nvs_entry_set(enum nvs_entry_state state, CUresult error);
/* The entry is held: nobody is inside. */
bool nvs_entry_quiet(void);

/* After fork, in the child: open; a call that forked in a callback of the driver is still one. */
void nvs_entry_after_fork(void);

/* ---- wrappers written by hand ---- */

static inline void nvs_entry_unguard(const CUresult *entered)
{
	if (*entered == CUDA_SUCCESS)
		nvs_entry_leave();
}

/* From here to the end of the function the thread is inside. */
#define NVS_ENTER_DRIVER                                                                                               \
	__attribute__((cleanup(nvs_entry_unguard))) const CUresult nvs_entered = nvs_entry_enter();                    \
	if (__builtin_expect(nvs_entered != CUDA_SUCCESS, 0))                                                          \
	return nvs_entered

/* First line of a wrapper: finds the driver, lets calls made from inside the library through untouched, and enters the
 * driver. */
#define NVS_PASS_INSIDE(name, args)                                                                                    \
	do {                                                                                                           \
		if (__builtin_expect(nvs_real.name == NULL, 0)) {                                                      \
			if (!nvs_resolve_driver())                                                                     \
				return CUDA_ERROR_NO_DEVICE;                                                           \
			if (nvs_real.name == NULL)                                                                     \
				return CUDA_ERROR_NOT_SUPPORTED;                                                       \
		}                                                                                                      \
		if (nvs_inside)                                                                                        \
			return nvs_real.name args;                                                                     \
	} while (0);                                                                                                   \
	NVS_ENTER_DRIVER

#endif
