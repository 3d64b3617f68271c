#include "gate/entry.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate/upcalls.h"

_Atomic uint32_t nvs_entry;
static _Atomic uint32_t waiting;

static long futex(int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, &nvs_entry, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

CUresult nvs_entry_wait(void)
{
	static const struct timespec ask_again = {.tv_sec = 1};
	uint32_t word = atomic_load(&nvs_entry);
	if (word == NVS_ENTRY_OPEN)
		return CUDA_SUCCESS;
	if ((word & NVS_ENTRY_STATE) == NVS_ENTRY_BROKEN)
		return (CUresult)(word / NVS_ENTRY_ERROR);
	atomic_fetch_add(&waiting, 1);
	nvs_link_wake();
	futex(FUTEX_WAIT, word, &ask_again);
	atomic_fetch_sub(&waiting, 1);
	return CUDA_SUCCESS;
}

CUresult nvs_entry_enter_slow(void)
{
	struct nvs_thread *self = nvs_self != NULL ? nvs_self : nvs_thread_join();
	/* Our own threads, and a call of the driver to itself inside a submission, are part of what is inside already.
	 */
	bool nested = nvs_inside != 0 || atomic_load_explicit(&self->in_call, memory_order_relaxed) != 0;
	for (;;) {
		atomic_store(&self->within, 1);
		if (nested || atomic_load(&nvs_entry) == NVS_ENTRY_OPEN)
			return CUDA_SUCCESS;
		atomic_store(&self->within, 0);
		CUresult result = nvs_entry_wait();
		if (result != CUDA_SUCCESS)
			return result;
	}
}

uint32_t nvs_entry_waiting(void)
{
	return atomic_load(&waiting);
}

void nvs_entry_set(enum nvs_entry_state state, CUresult error)
{
	atomic_store(&nvs_entry, state | (state == NVS_ENTRY_BROKEN ? (uint32_t)error * NVS_ENTRY_ERROR : 0));
	futex(FUTEX_WAKE, INT_MAX, NULL);
}

bool nvs_entry_quiet(void)
{
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next)
		if (atomic_load(&thread->within) != 0 || atomic_load(&thread->in_call) != 0)
			return false;
	return true;
}

void nvs_entry_after_fork(void)
{
	for (struct nvs_thread *thread = nvs_threads_first(); thread != NULL; thread = thread->next)
		if (thread != nvs_self)
			atomic_store(&thread->within, 0);
	atomic_store(&nvs_entry, NVS_ENTRY_OPEN);
	atomic_store(&waiting, 0);
}
