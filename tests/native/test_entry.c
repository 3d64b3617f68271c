/* The entry: whoever is inside is seen, whoever comes while it is held waits, and what is inside may go on. */
#include <pthread.h>
#include <sched.h>

#include "base/bars.h"
#include "fake_gpu.h"
#include "gate/entry.h"
#include "gate/gate.h"

static _Atomic uint64_t woken;

void nvs_link_want(void)
{
}
void nvs_link_active(void)
{
}
void nvs_link_wake(void)
{
	atomic_fetch_add(&woken, 1);
}

#define CALLERS 4
#define ROUNDS 2000

static _Atomic bool stop;
static _Atomic uint32_t in_driver;
static _Atomic uint64_t calls;

static CUresult fake_query(CUevent event)
{
	atomic_fetch_add(&in_driver, 1);
	atomic_fetch_add(&calls, 1);
	atomic_fetch_sub(&in_driver, 1);
	return CUDA_SUCCESS;
}

static CUresult guarded(void)
{
	NVS_ENTER_DRIVER;
	return fake_query(NULL);
}

static void *call_on(void *unused)
{
	while (!atomic_load(&stop))
		CHECK(guarded() == CUDA_SUCCESS);
	return unused;
}

/* Behind a held entry that is quiet nobody is in the driver, however often it is held. */
static void nobody_is_inside_when_the_entry_is_quiet(void)
{
	pthread_t callers[CALLERS];
	for (int i = 0; i < CALLERS; i++)
		CHECK(pthread_create(&callers[i], NULL, call_on, NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		nvs_entry_set(NVS_ENTRY_HELD, CUDA_SUCCESS);
		while (!nvs_entry_quiet())
			sched_yield();
		nvs_entry_set(NVS_ENTRY_SHUT, CUDA_SUCCESS);
		uint64_t before = atomic_load(&calls);
		CHECK(atomic_load(&in_driver) == 0);
		sched_yield();
		CHECK(atomic_load(&calls) == before);
		nvs_entry_set(NVS_ENTRY_OPEN, CUDA_SUCCESS);
		while (round % 100 == 0 && atomic_load(&calls) == before)
			sched_yield();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < CALLERS; i++)
		pthread_join(callers[i], NULL);
	CHECK(nvs_entry_waiting() == 0);
}

static CUresult waited;

static void *call_once(void *unused)
{
	waited = guarded();
	return unused;
}

static pthread_t wait_at_entry(void)
{
	pthread_t thread;
	uint64_t before = atomic_load(&woken);
	CHECK(pthread_create(&thread, NULL, call_once, NULL) == 0);
	while (nvs_entry_waiting() == 0 || atomic_load(&woken) == before)
		sched_yield();
	return thread;
}

static void a_call_that_waits_is_told_and_goes_on_when_it_is_open(void)
{
	nvs_entry_set(NVS_ENTRY_SHUT, CUDA_SUCCESS);
	pthread_t thread = wait_at_entry();
	CHECK(nvs_entry_quiet());
	nvs_entry_set(NVS_ENTRY_OPEN, CUDA_SUCCESS);
	pthread_join(thread, NULL);
	CHECK(waited == CUDA_SUCCESS && nvs_entry_quiet());
}

static void a_call_that_waits_gets_the_error_of_a_broken_entry(void)
{
	nvs_entry_set(NVS_ENTRY_SHUT, CUDA_SUCCESS);
	pthread_t thread = wait_at_entry();
	nvs_entry_set(NVS_ENTRY_BROKEN, CUDA_ERROR_OUT_OF_MEMORY);
	pthread_join(thread, NULL);
	CHECK(waited == CUDA_ERROR_OUT_OF_MEMORY && nvs_entry_quiet());
	/* A submission too, and its flag is down afterwards. */
	nvs_gate_shut();
	CHECK(nvs_gate_enter(NULL) == CUDA_ERROR_OUT_OF_MEMORY);
	nvs_gate_leave();
	CHECK(nvs_gate_enter_unmeasured() == CUDA_ERROR_OUT_OF_MEMORY);
	nvs_gate_leave();
	CHECK(nvs_entry_quiet());
	nvs_gate_open(NVS_GATE_OPEN);
	nvs_entry_set(NVS_ENTRY_OPEN, CUDA_SUCCESS);
	CHECK(guarded() == CUDA_SUCCESS);
}

/* The driver calls back into the program, and the program into the driver. */
static void a_call_inside_a_call_passes_a_held_entry(void)
{
	CHECK(nvs_entry_enter() == CUDA_SUCCESS);
	nvs_entry_set(NVS_ENTRY_HELD, CUDA_SUCCESS);
	CHECK(guarded() == CUDA_SUCCESS);
	CHECK(!nvs_entry_quiet());
	CHECK(!nvs_entry_try_enter()); /* that is for the outermost call */
	nvs_entry_leave();
	CHECK(nvs_entry_quiet());
	nvs_entry_set(NVS_ENTRY_OPEN, CUDA_SUCCESS);
}

static void a_submission_counts_as_inside(void)
{
	CHECK(nvs_gate_enter(NULL) == CUDA_SUCCESS);
	nvs_entry_set(NVS_ENTRY_HELD, CUDA_SUCCESS);
	CHECK(!nvs_entry_quiet());
	CHECK(guarded() == CUDA_SUCCESS); /* the driver calls itself */
	nvs_gate_leave();
	CHECK(nvs_entry_quiet());
	nvs_entry_set(NVS_ENTRY_OPEN, CUDA_SUCCESS);
}

static void threads_of_our_own_pass(void)
{
	nvs_entry_set(NVS_ENTRY_SHUT, CUDA_SUCCESS);
	nvs_inside++;
	CHECK(guarded() == CUDA_SUCCESS);
	nvs_inside--;
	CHECK(nvs_entry_quiet());
	nvs_entry_set(NVS_ENTRY_OPEN, CUDA_SUCCESS);
}

static void *end_inside(void *unused)
{
	CHECK(nvs_entry_enter() == CUDA_SUCCESS);
	return unused;
}

static void a_thread_that_ended_in_a_call_is_not_inside(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, end_inside, NULL) == 0);
	pthread_join(thread, NULL);
	CHECK(nvs_entry_quiet());
}

static void a_forked_child_starts_with_an_open_entry(void)
{
	CHECK(nvs_entry_enter() == CUDA_SUCCESS);
	nvs_entry_set(NVS_ENTRY_HELD, CUDA_SUCCESS);
	nvs_entry_after_fork();
	CHECK(atomic_load(&nvs_entry) == NVS_ENTRY_OPEN && !nvs_entry_quiet());
	nvs_entry_leave();
	CHECK(nvs_entry_quiet());
}

static void the_first_bar_is_the_one_that_is_told(void)
{
	CHECK(nvs_bar() == NVS_BAR_NONE);
	nvs_bar_raise(NVS_BAR_NONE);
	CHECK(nvs_bar() == NVS_BAR_NONE);
	nvs_bar_raise(NVS_BAR_UNGATED);
	nvs_bar_raise(NVS_BAR_IPC);
	CHECK(nvs_bar() == NVS_BAR_IPC);
}

int main(void)
{
	nobody_is_inside_when_the_entry_is_quiet();
	a_call_that_waits_is_told_and_goes_on_when_it_is_open();
	a_call_that_waits_gets_the_error_of_a_broken_entry();
	a_call_inside_a_call_passes_a_held_entry();
	a_submission_counts_as_inside();
	threads_of_our_own_pass();
	a_thread_that_ended_in_a_call_is_not_inside();
	a_forked_child_starts_with_an_open_entry();
	the_first_bar_is_the_one_that_is_told();
	return 0;
}
