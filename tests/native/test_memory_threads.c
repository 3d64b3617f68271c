/* Many threads allocate, look up, free and ask at once, while drains fail now and then; for the thread sanitizer above
 * all. */
#include "fake_memory.h"

#define THREADS 4
#define STEPS 1500
#define HELD 24

static uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

struct held {
	CUdeviceptr p;
	size_t size;
};

static size_t random_size(uint32_t *state)
{
	return next_random(state) % 4 == 0 ? 1 + next_random(state) % (8 * MIB) : 1 + next_random(state) % 40000;
}

static void check_range(struct held held)
{
	CUdeviceptr base;
	size_t size;
	assert(cuMemGetAddressRange_v2(&base, &size, held.p + held.size - 1) == CUDA_SUCCESS);
	assert(base == held.p && size == held.size);
}

static void *work(void *argument)
{
	uint32_t state = 77 + (uint32_t)(uintptr_t)argument;
	struct held held[HELD] = {0};
	fake_current = &fake_contexts[(uintptr_t)argument % 2];
	for (int step = 0; step < STEPS; step++) {
		struct held *slot = &held[next_random(&state) % HELD];
		if (next_random(&state) % 64 == 0)
			atomic_store(&fake_drain_fails, next_random(&state) % 2 == 0);
		if (slot->p == 0) {
			slot->size = random_size(&state);
			assert(cuMemAlloc_v2(&slot->p, slot->size) == CUDA_SUCCESS);
			check_range(*slot);
		} else {
			check_range(*slot);
			assert(cuMemFree_v2(slot->p) == CUDA_SUCCESS);
			slot->p = 0;
		}
	}
	for (int i = 0; i < HELD; i++)
		if (held[i].p != 0)
			assert(cuMemFree_v2(held[i].p) == CUDA_SUCCESS);
	return NULL;
}

static void test_threads_do_not_disturb_each_other(void)
{
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	RUN(test_threads_do_not_disturb_each_other);
	puts("PASS");
	return 0;
}
