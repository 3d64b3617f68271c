/* The closing-gate race: many threads submit, a closer shuts the gate, takes the memory away, brings it back, opens. No
 * submission may ever find the memory gone. */
#include "fake_gpu.h"

#include "gate/gate.h"
#include "gate/state.h"

#define SUBMITTERS 6
#define DEFAULT_ROUNDS 2000
#define ROUNDS_OF_PASSES 5
#define MORE 3u

static _Atomic bool mapped = true, stop;
static _Atomic uint64_t submitted;

void nvs_link_want(void)
{
}

void nvs_link_active(void)
{
}

void nvs_link_wake(void)
{
}

static CUresult launch_touches_memory(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
	unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
	CHECK(atomic_load(&mapped));
	for (volatile int i = 0; i < 20; i++) /* some time passes between the check at the gate and the landing */
		;
	CHECK(atomic_load(&mapped));
	atomic_fetch_add(&submitted, 1);
	return CUDA_SUCCESS;
}

static void *submit_for_ever(void *unused)
{
	while (!atomic_load(&stop))
		CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	return unused;
}

/* A thread that lives only for a few submissions: its slot is reused by the next. */
static void *submit_a_few(void *unused)
{
	for (int i = 0; i < 10; i++)
		CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	return unused;
}

static void *start_short_threads(void *unused)
{
	while (!atomic_load(&stop)) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, submit_a_few, NULL) == 0);
		pthread_join(thread, NULL);
	}
	return unused;
}

/* Work of a collective: it ends when some more has been submitted. */
static _Atomic uint64_t goal;
static pthread_t closer;

static CUresult work_waits_for_more(CUevent event)
{
	if (!pthread_equal(pthread_self(), closer))
		return CUDA_SUCCESS;
	return atomic_load(&submitted) < atomic_load(&goal) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static uint64_t shut_and_expect_more(void)
{
	uint64_t seen;
	nvs_gate_shut(); /* so that no more is submitted than is let through */
	do {
		seen = atomic_load(&submitted);
		nvs_sleep_ns(NVS_NS_PER_MS);
	} while (!nvs_gate_flags_down() || seen != atomic_load(&submitted));
	atomic_store(&goal, seen + MORE);
	return seen;
}

/* GIVEN work that ends only when more has been submitted WHEN the gate closes THEN that much is let through, hardly
 * more, and nothing after it has closed. */
static void passes_are_given_and_taken_back(void)
{
	for (int round = 0; round < ROUNDS_OF_PASSES; round++) {
		uint64_t before = shut_and_expect_more();
		CHECK(nvs_gate_drain_shut(nvs_now_ns() + 60 * NVS_NS_PER_S, true));
		atomic_store(&mapped, false);
		uint64_t after = atomic_load(&submitted);
		CHECK(after - before == MORE);
		nvs_sleep_ns(2 * NVS_NS_PER_MS);
		CHECK(atomic_load(&submitted) == after);
		atomic_store(&mapped, true);
		nvs_gate_open(NVS_GATE_OPEN);
	}
	/* AND work that just takes long is not joined by many more, */
	uint64_t seen = shut_and_expect_more();
	atomic_store(&goal, UINT64_MAX);
	CHECK(!nvs_gate_drain_shut(nvs_now_ns() + NVS_NS_PER_S, true));
	CHECK(atomic_load(&submitted) - seen <= 4);
	atomic_store(&goal, 0);
	nvs_gate_open(NVS_GATE_OPEN);
	/* AND behind a gate that was shut before, where memory may be away, nothing is. */
	uint64_t before = shut_and_expect_more();
	CHECK(!nvs_gate_close(300, NULL));
	CHECK(atomic_load(&submitted) == before);
	atomic_store(&goal, 0);
	nvs_gate_open(NVS_GATE_OPEN);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : DEFAULT_ROUNDS;
	pthread_t threads_of_test[SUBMITTERS + 1];

	/* GIVEN threads that submit without a pause, and others that come and go */
	fake_install(0);
	nvs_real.cuLaunchKernel = launch_touches_memory;
	nvs_real.cuEventQuery = work_waits_for_more;
	closer = pthread_self();
	for (int i = 0; i < SUBMITTERS; i++)
		pthread_create(&threads_of_test[i], NULL, submit_for_ever, NULL);
	pthread_create(&threads_of_test[SUBMITTERS], NULL, start_short_threads, NULL);

	/* WHEN the gate closes, the memory goes and comes, and the gate opens, again and again */
	for (int round = 0; round < rounds; round++) {
		CHECK(nvs_gate_close(60000, NULL));
		uint64_t before = atomic_load(&submitted);
		atomic_store(&mapped, false);
		for (volatile int i = 0; i < 200; i++)
			;
		CHECK(atomic_load(&submitted) == before);
		atomic_store(&mapped, true);
		nvs_gate_open(round % 2 == 0 ? NVS_GATE_OPEN : NVS_GATE_PACED);
		while (atomic_load(&submitted) ==
			before) /* THEN submitters come back each time, and never land in between */
			nvs_sleep_ns(1000);
	}
	passes_are_given_and_taken_back();
	atomic_store(&stop, true);
	for (int i = 0; i <= SUBMITTERS; i++)
		pthread_join(threads_of_test[i], NULL);
	CHECK(fake.pushed == 0);
	printf("%d rounds, %llu submissions\n", rounds, (unsigned long long)atomic_load(&submitted));
	return 0;
}
