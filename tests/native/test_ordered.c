/* Stream-ordered allocation: who gets which memory when. */
#include "fake_ordered.h"

#include <sys/wait.h>

#define OWN (40 * MIB) /* a segment of its own */

static bool overlap(CUdeviceptr p, CUdeviceptr q, size_t n)
{
	return p < q + n && q < p + n;
}

/* ---- what it is ---- */

static void test_it_is_movable_memory_counted_by_segments(void)
{
	CUdeviceptr p = must_alloc(3000, A), q = must_alloc(5 * MIB, A);
	assert(fake_allocated[0] == 2 * MIB + 6 * MIB && fake_pinned[0] == 0 && fake_native == 0);
	assert(fake_maps == 2 && nvs_holdings.backings != NULL);
	must_free(p, A);
	must_free(q, A);
	assert(fake_allocated[0] == 8 * MIB);
}

static void test_segments_grow_with_the_pool(void)
{
	CUdeviceptr p[4096];
	for (int i = 0; i < 4096; i++)
		p[i] = must_alloc(64 << 10, A); /* 256 MiB */
	assert(fake_reservations == 9);         /* 2 + 2 + 4 + 8 + 16 + 32 + 64 + 64 + 64 */
	for (int i = 0; i < 4096; i++)
		must_free(p[i], A);
	must_free(must_alloc(200 * MIB, A), A);
	assert(fake_allocated[0] == (256 + 200) * MIB);
}

static void test_a_pair_makes_no_call_to_the_driver(void)
{
	must_free(must_alloc(4000, A), A);
	size_t maps = fake_maps;
	for (int i = 0; i < 1000; i++) {
		must_free(must_alloc(4000, A), A);
		must_free(must_alloc(70000, A), A);
	}
	assert(fake_maps == maps && fake_records == 0 && fake_queries == 0 && fake_drains == 0);
}

static void test_pointers_answer_as_the_drivers_would(void)
{
	CUdeviceptr p = must_alloc(3000, A), base;
	size_t size;
	CUmemoryPool pool = NULL;
	uint64_t first, second;
	assert(cuMemGetAddressRange_v2(&base, &size, p + 2999) == CUDA_SUCCESS && base == p && size == 3000);
	assert(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p) == CUDA_SUCCESS);
	assert(pool == &fake_default_pools[0]);
	assert(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) == CUDA_SUCCESS);
	must_free(p, A);
	assert(cuMemGetAddressRange_v2(&base, &size, p) == CUDA_ERROR_NOT_FOUND);
	assert(must_alloc(3000, A) == p);
	assert(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) == CUDA_SUCCESS && first != second);
	must_free(p, A);
}

static void test_a_free_takes_the_base_once(void)
{
	CUdeviceptr p = must_alloc(3000, A);
	assert(cuMemFreeAsync(p + 512, A) == CUDA_ERROR_INVALID_VALUE);
	must_free(p, A);
	assert(cuMemFreeAsync(p, A) == CUDA_ERROR_INVALID_VALUE && cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE);
}

/* ---- who gets which memory when ---- */

static void test_a_stream_has_its_own_memory_again_at_once(void)
{
	CUdeviceptr p = must_alloc(OWN, A);
	fake_work(1);
	must_free(p, A);
	assert(must_alloc(OWN, A) == p && fake_records == 0);
	must_free(p, A);
}

/* GIVEN memory freed in a stream with work under way WHEN another stream allocates THEN it gets other memory, until the
 * work is over. */
static void test_another_stream_gets_it_only_after_the_work(void)
{
	CUdeviceptr p = must_alloc(OWN, A);
	fake_work(1);
	must_free(p, A);
	CUdeviceptr q = must_alloc(OWN, B);
	assert(!overlap(p, q, OWN) && fake_records == 1);
	CUdeviceptr r = must_alloc(OWN, B);
	assert(!overlap(p, r, OWN) && fake_records == 1); /* the one event still stands */
	fake_finish(1);
	assert(must_alloc(OWN, B) == p);
	must_free(p, B);
	must_free(q, B);
	must_free(r, B);
}

/* GIVEN an event recorded for another stream WHEN more is freed afterwards THEN the event does not stand for that. */
static void test_an_event_stands_only_for_what_was_freed_before(void)
{
	CUdeviceptr p = must_alloc(OWN, A), q = must_alloc(OWN, A);
	fake_work(1);
	must_free(p, A);
	CUdeviceptr other = must_alloc(OWN, B); /* records */
	fake_finish(1);
	fake_work(1);
	must_free(q, A);
	CUdeviceptr r = must_alloc(OWN, B), s = must_alloc(OWN, B);
	assert(r == p && !overlap(s, q, OWN));
	fake_finish(1);
	assert(must_alloc(OWN, B) == q);
	must_free(q, B);
	must_free(r, B);
	must_free(s, B);
	must_free(other, B);
}

/* GIVEN neighbours, one freed in this stream, one everybody's THEN together they serve a larger request. */
static void test_neighbours_are_put_together_before_the_pool_grows(void)
{
	CUdeviceptr p = must_alloc(MIB / 2, A);
	must_free(p, A);
	assert(must_alloc(2 * MIB, A) == p && fake_allocated[0] == 2 * MIB);
	must_free(p, A);
}

static void test_the_legacy_stream_is_one_by_two_names_in_each_context(void)
{
	CUdeviceptr p = must_alloc(OWN, NULL);
	fake_work(0);
	must_free(p, CU_STREAM_LEGACY);
	assert(must_alloc(OWN, NULL) == p && fake_records == 0);
	must_free(p, NULL);
	fake_current = &fake_contexts[1];
	assert(must_alloc(OWN, NULL) != p && fake_allocated[1] == OWN);
}

static CUdeviceptr from_thread;

static void *allocate_in_own_stream(void *argument)
{
	fake_current = &fake_contexts[0];
	assert(cuMemAllocAsync_ptsz(&from_thread, OWN, NULL) == CUDA_SUCCESS);
	assert(cuMemFreeAsync_ptsz(from_thread, NULL) == CUDA_SUCCESS);
	return NULL;
}

static void run_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, allocate_in_own_stream, NULL);
	pthread_join(thread, NULL);
}

/* GIVEN threads with default streams of their own THEN what one freed is another's after the work of all. */
static void test_each_thread_has_a_default_stream_of_its_own(void)
{
	CUdeviceptr p;
	assert(cuMemAllocAsync_ptsz(&p, OWN, NULL) == CUDA_SUCCESS);
	fake_work(3);
	assert(cuMemFreeAsync_ptsz(p, NULL) == CUDA_SUCCESS);
	run_thread();
	assert(!overlap(p, from_thread, OWN));
	CUdeviceptr again;
	assert(cuMemAllocAsync_ptsz(&again, OWN, CU_STREAM_PER_THREAD) == CUDA_SUCCESS && again == p);
	assert(cuMemFreeAsync(again, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
	fake_finish(3);
	for (int i = 0; i < 100; i++)
		run_thread();
	assert(fake_allocated[0] == 2 * OWN);
}

/* GIVEN a stream destroyed with work under way WHEN its handle comes again THEN the new stream does not get the memory
 * before the work of the old one is over. */
static void test_a_destroyed_stream_leaves_its_memory_to_all_after_its_work(void)
{
	CUdeviceptr p = must_alloc(OWN, A);
	fake_work(1);
	must_free(p, A);
	pthread_mutex_lock(&nvs_streams_lock);
	nvs_ordered_stream_ends(A);
	pthread_mutex_unlock(&nvs_streams_lock);
	CUdeviceptr q = must_alloc(OWN, A);
	assert(!overlap(p, q, OWN));
	fake_finish(1);
	assert(must_alloc(OWN, B) == p);
	must_free(p, B);
	must_free(q, A);
	assert(fake_records == 1);
}

/* GIVEN a stream destroyed while it captures, so that no event can be had THEN its memory waits for a drain. */
static void test_memory_of_a_stream_destroyed_in_a_capture_waits_for_a_drain(void)
{
	CUdeviceptr p = must_alloc(OWN, A);
	must_free(p, A);
	fake_capturing = A;
	atomic_store(&nvs_captures, 1);
	pthread_mutex_lock(&nvs_streams_lock);
	nvs_ordered_stream_ends(A);
	pthread_mutex_unlock(&nvs_streams_lock);
	fake_drain_fails = true;
	CUdeviceptr q = must_alloc(OWN, B);
	assert(!overlap(p, q, OWN));
	fake_capturing = NULL;
	atomic_store(&nvs_captures, 0);
	fake_drain_fails = false;
	assert(must_alloc(OWN, B) == p);
}

/* GIVEN a capture somewhere WHEN memory of another thread's or the legacy stream is wanted THEN no event disturbs it.
 */
static void test_no_event_goes_into_the_legacy_stream_during_a_capture(void)
{
	CUdeviceptr p = must_alloc(OWN, NULL);
	must_free(p, NULL);
	fake_capturing = A;
	atomic_store(&nvs_captures, 1);
	assert(!overlap(must_alloc(OWN, B), p, OWN) && fake_records == 0);
	atomic_store(&nvs_captures, 0);
	fake_capturing = NULL;
	assert(must_alloc(OWN, B) == p);
}

static void test_a_capturing_stream_is_the_drivers_business(void)
{
	CUdeviceptr p = must_alloc(3000, A), q;
	fake_capturing = A;
	atomic_store(&nvs_captures, 1);
	assert(cuMemAllocAsync(&q, 4000, A) == CUDA_SUCCESS && fake_native == 1 && fake_pinned[0] == 4000);
	must_free(q, A);
	fake_native = 0;
	assert(cuMemFreeAsync(p, A) == CUDA_ERROR_INVALID_VALUE); /* as this driver says */
	atomic_store(&nvs_captures, 0);
	must_free(p, B);
}

/* ---- cuMemFree ---- */

static void test_a_plain_free_waits_for_all_work(void)
{
	CUdeviceptr p = must_alloc(OWN, A);
	fake_drain_fails = true; /* work goes on for longer than a free waits */
	assert(cuMemFree_v2(p) == CUDA_SUCCESS && fake_drains == 1);
	CUdeviceptr q = must_alloc(OWN, A);
	assert(!overlap(p, q, OWN));
	fake_drain_fails = false;
	CUdeviceptr r = must_alloc(OWN, A);
	assert(r == p);
	assert(cuMemFree_v2(q) == CUDA_SUCCESS && cuMemFree_v2(r) == CUDA_SUCCESS);
}

static void test_small_plain_frees_share_their_drains(void)
{
	CUdeviceptr p[640];
	for (int i = 0; i < 640; i++)
		p[i] = must_alloc(512, A);
	for (int i = 0; i < 640; i++)
		assert(cuMemFree_v2(p[i]) == CUDA_SUCCESS);
	assert(fake_drains == 10);
}

/* ---- too little ---- */

/* GIVEN a quota that is used up THEN out of memory; after a free it goes on, in another stream too. */
static void test_quota_refuses_and_freeing_makes_room(void)
{
	CUdeviceptr p, ignored;
	fake_limit = 100 * MIB;
	p = must_alloc(90 * MIB, A);
	assert(cuMemAllocAsync(&ignored, 20 * MIB, A) == CUDA_ERROR_OUT_OF_MEMORY);
	assert(cuMemAllocAsync(&ignored, SIZE_MAX, A) == CUDA_ERROR_OUT_OF_MEMORY);
	CUdeviceptr rest = must_alloc(10 * MIB, A);
	fake_work(1);
	must_free(p, A);
	CUdeviceptr q = must_alloc(80 * MIB, B); /* waits for the work: a drain */
	assert(fake_drains > 0);
	must_free(q, B);
	must_free(rest, A);
}

/* GIVEN free segments WHEN other memory is short THEN they go first. */
static void test_free_segments_are_given_up_before_other_memory_is_refused(void)
{
	CUdeviceptr p;
	fake_limit = 64 * MIB;
	must_free(must_alloc(40 * MIB, A), A);
	assert(cuMemAlloc_v2(&p, 60 * MIB) == CUDA_SUCCESS);
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
	must_free(must_alloc(64 * MIB, A), A);
}

static void test_near_the_quota_segments_are_no_larger_than_needed(void)
{
	CUdeviceptr p[31];
	fake_limit = 62 * MIB;
	for (int i = 0; i < 31; i++)
		p[i] = must_alloc(2 * MIB, A);
	assert(fake_allocated[0] == 62 * MIB);
	for (int i = 0; i < 31; i++)
		must_free(p[i], A);
}

static void test_a_failure_at_any_point_leaves_nothing_behind(void)
{
	CUdeviceptr p;
	fake_error = CUDA_ERROR_UNKNOWN;
	for (int at = 1; at <= 4; at++) {
		fake_fail_at = at;
		assert(cuMemAllocAsync(&p, 10 * MIB, A) == CUDA_ERROR_UNKNOWN);
		assert(fake_allocated[0] == 0 && fake_handles == 0 && fake_reservations == 0);
	}
}

/* ---- processes and threads ---- */

static void test_a_forked_child_starts_empty(void)
{
	CUdeviceptr p = must_alloc(4 * MIB, A);
	pid_t child = fork();
	if (child == 0) {
		nvs_ordered_after_fork();
		assert(nvs_pool_first() == NULL && nvs_ordered_space.live == 0 && cuMemFreeAsync(p, B) != CUDA_SUCCESS);
		_exit(0);
	}
	int status;
	assert(waitpid(child, &status, 0) == child && status == 0);
	must_free(p, A);
}

#define THREADS 4
#define STEPS 4000
#define HELD 16

static uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

static void *work(void *argument)
{
	uint32_t state = 99 + (uint32_t)(uintptr_t)argument;
	struct {
		CUdeviceptr p;
		size_t size;
	} held[HELD] = {0};
	CUstream streams[] = {A, B, NULL, CU_STREAM_PER_THREAD};
	fake_current = &fake_contexts[0];
	for (int step = 0; step < STEPS; step++) {
		uint32_t i = next_random(&state) % HELD;
		CUstream stream = streams[next_random(&state) % 4];
		if (held[i].p == 0) {
			held[i].size = 1 + next_random(&state) % (next_random(&state) % 8 == 0 ? 3 * MIB : 9000);
			held[i].p = must_alloc(held[i].size, stream);
			continue;
		}
		CUdeviceptr base;
		size_t size;
		assert(cuMemGetAddressRange_v2(&base, &size, held[i].p + held[i].size - 1) == CUDA_SUCCESS);
		assert(base == held[i].p && size == held[i].size);
		if (next_random(&state) % 32 == 0)
			assert(cuMemFree_v2(held[i].p) == CUDA_SUCCESS);
		else
			must_free(held[i].p, stream);
		held[i].p = 0;
		if (next_random(&state) % 128 == 0)
			assert(cuMemPoolTrimTo(&fake_default_pools[0], 0) == CUDA_SUCCESS);
	}
	for (int i = 0; i < HELD; i++)
		if (held[i].p != 0)
			must_free(held[i].p, A);
	return NULL;
}

static void test_threads_do_not_disturb_each_other(void)
{
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert(attribute(&fake_default_pools[0], CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
}

int main(void)
{
	RUN_ORDERED(test_it_is_movable_memory_counted_by_segments);
	RUN_ORDERED(test_segments_grow_with_the_pool);
	RUN_ORDERED(test_a_pair_makes_no_call_to_the_driver);
	RUN_ORDERED(test_pointers_answer_as_the_drivers_would);
	RUN_ORDERED(test_a_free_takes_the_base_once);
	RUN_ORDERED(test_a_stream_has_its_own_memory_again_at_once);
	RUN_ORDERED(test_another_stream_gets_it_only_after_the_work);
	RUN_ORDERED(test_an_event_stands_only_for_what_was_freed_before);
	RUN_ORDERED(test_neighbours_are_put_together_before_the_pool_grows);
	RUN_ORDERED(test_the_legacy_stream_is_one_by_two_names_in_each_context);
	RUN_ORDERED(test_each_thread_has_a_default_stream_of_its_own);
	RUN_ORDERED(test_a_destroyed_stream_leaves_its_memory_to_all_after_its_work);
	RUN_ORDERED(test_memory_of_a_stream_destroyed_in_a_capture_waits_for_a_drain);
	RUN_ORDERED(test_no_event_goes_into_the_legacy_stream_during_a_capture);
	RUN_ORDERED(test_a_capturing_stream_is_the_drivers_business);
	RUN_ORDERED(test_a_plain_free_waits_for_all_work);
	RUN_ORDERED(test_small_plain_frees_share_their_drains);
	RUN_ORDERED(test_quota_refuses_and_freeing_makes_room);
	RUN_ORDERED(test_free_segments_are_given_up_before_other_memory_is_refused);
	RUN_ORDERED(test_near_the_quota_segments_are_no_larger_than_needed);
	RUN_ORDERED(test_a_failure_at_any_point_leaves_nothing_behind);
	RUN_ORDERED(test_a_forked_child_starts_empty);
	RUN_ORDERED(test_threads_do_not_disturb_each_other);
	puts("PASS");
	return 0;
}
