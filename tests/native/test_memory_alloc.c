/* Allocations of our own, from the call to the card and back. */
#include "fake_memory.h"

#include <sys/wait.h>

static CUdeviceptr must_alloc(size_t n)
{
	CUdeviceptr p = 0;
	assert(cuMemAlloc_v2(&p, n) == CUDA_SUCCESS && p != 0);
	return p;
}

static void must_free(CUdeviceptr p)
{
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
}

static void test_a_large_allocation_is_rounded_chunked_and_counted(void)
{
	CUdeviceptr p = must_alloc(300 * MIB + 1);
	assert(fake_allocated[0] == 302 * MIB);
	assert(fake_handles == 3 && fake_maps == 3 && fake_reservations == 1); /* 128 + 128 + 46 */
	must_free(p);
	assert(fake_allocated[0] == 0 && fake_handles == 0 && fake_reservations == 0);
	p = must_alloc(128 * MIB);
	assert(fake_handles == 1);
	must_free(p);
}

static void test_small_allocations_share_one_slab(void)
{
	CUdeviceptr p[100];
	for (int i = 0; i < 100; i++) {
		p[i] = must_alloc(1000);
		assert(p[i] % 512 == 0);
	}
	assert(fake_allocated[0] == 2 * MIB && fake_handles == 1);
	for (int i = 0; i < 100; i++)
		must_free(p[i]);
	nvs_memory_reap(1);
	assert(fake_allocated[0] == 2 * MIB); /* the spare */
}

static void test_empty_slabs_are_given_back_except_one(void)
{
	CUdeviceptr p[8];
	for (int i = 0; i < 8; i++)
		p[i] = must_alloc(1 * MIB);
	assert(fake_allocated[0] == 8 * MIB);
	for (int i = 0; i < 8; i++)
		must_free(p[i]);
	nvs_memory_reap(1);
	assert(fake_allocated[0] == 2 * MIB && fake_handles == 1);
}

static void test_errors_are_the_drivers(void)
{
	CUdeviceptr p = 0;
	assert(cuMemAlloc_v2(&p, 0) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemFree_v2(0) == CUDA_SUCCESS);
	fake_current = NULL;
	assert(cuMemAlloc_v2(&p, 4096) == CUDA_ERROR_INVALID_CONTEXT);
}

static void test_free_takes_the_base_once(void)
{
	CUdeviceptr large = must_alloc(4 * MIB), small = must_alloc(2000);
	assert(cuMemFree_v2(large + 4096) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemFree_v2(small + 512) == CUDA_ERROR_INVALID_VALUE);
	must_free(large);
	must_free(small);
	assert(cuMemFree_v2(large) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemFree_v2(small) == CUDA_ERROR_INVALID_VALUE);
}

static void test_an_unknown_pointer_is_passed_to_the_driver(void)
{
	fake_native = 1;
	must_free(0x1234000);
	assert(fake_unknown_freed == 0x1234000);
}

/* GIVEN a quota WHEN it is used up THEN out of memory, and after a free it goes on. */
static void test_quota_refuses_and_freeing_makes_room(void)
{
	CUdeviceptr p, q, ignored;
	fake_limit = 64 * MIB;
	p = must_alloc(40 * MIB);
	assert(cuMemAlloc_v2(&ignored, 30 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	q = must_alloc(24 * MIB);
	assert(cuMemAlloc_v2(&ignored, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	assert(cuMemAlloc_v2(&ignored, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
	must_free(p);
	p = must_alloc(30 * MIB);
	must_free(p);
	must_free(q);
}

/* GIVEN small frees that wait for a drain, and a spare slab WHEN memory is short THEN they are given up first. */
static void test_what_is_kept_is_given_up_before_memory_is_refused(void)
{
	fake_limit = 4 * MIB;
	must_free(must_alloc(1 * MIB)); /* parked, its slab is held */
	CUdeviceptr p = must_alloc(4 * MIB);
	must_free(p);
}

/* GIVEN each call to the driver failing in turn WHEN allocating THEN its error comes back and nothing is left behind.
 */
static void test_a_failure_at_any_point_leaves_nothing_behind(void)
{
	CUresult errors[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY};
	size_t sizes[] = {600, 10 * MIB, 400 * MIB};
	for (int e = 0; e < 2; e++)
		for (int s = 0; s < 3; s++)
			for (int at = 1;; at++) {
				CUdeviceptr p;
				fake_error = errors[e];
				fake_fail_at = at;
				CUresult result = cuMemAlloc_v2(&p, sizes[s]);
				bool reached = fake_fail_at == 0;
				fake_fail_at = 0;
				assert(result == (reached ? errors[e] : CUDA_SUCCESS));
				if (!reached) {
					assert(at > (s == 2 ? 9 : 3));
					must_free(p);
					nvs_memory_reap(1);
					nvs_slab_trim(0);
				}
				assert(fake_allocated[0] == 0 && fake_handles == 0 && fake_maps == 0);
				assert(fake_reservations == 0 && nvs_holdings.backings == NULL &&
					nvs_allocation_list == NULL);
				if (!reached)
					break;
			}
}

/* GIVEN a capture under way, so that no drain is possible WHEN memory is freed THEN it is gone for the application,
 * stays mapped, and goes at the next call after the capture. */
static void test_a_free_during_capture_is_deferred(void)
{
	struct nvs_allocation ignored;
	CUdeviceptr p = must_alloc(4 * MIB);
	fake_drain_fails = true;
	must_free(p);
	assert(!nvs_table_find(p, &ignored) && fake_maps == 1 && fake_allocated[0] == 4 * MIB);
	assert(cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE);
	CUdeviceptr q = must_alloc(6 * MIB);
	assert(fake_allocated[0] == 10 * MIB);
	fake_drain_fails = false;
	must_free(must_alloc(3 * MIB));
	assert(fake_allocated[0] == 6 * MIB);
	must_free(q);
}

/* GIVEN a small piece freed while work runs WHEN another is asked for THEN it is not the same one until a drain. */
static void test_a_small_piece_is_not_reused_before_a_drain(void)
{
	fake_drain_fails = true;
	CUdeviceptr p = must_alloc(512);
	must_free(p);
	CUdeviceptr q = must_alloc(512);
	assert(q != p);
	fake_drain_fails = false;
	nvs_memory_reap(1);
	CUdeviceptr r = must_alloc(512);
	assert(r == p);
	must_free(q);
	must_free(r);
}

static void test_small_frees_share_their_drains(void)
{
	CUdeviceptr p[640];
	for (int i = 0; i < 640; i++)
		p[i] = must_alloc(512);
	unsigned before = fake_drains;
	for (int i = 0; i < 640; i++)
		must_free(p[i]);
	assert(fake_drains - before == 640 / NVS_PARKED_PIECES);
}

static void test_pitch_is_rounded_to_512(void)
{
	CUdeviceptr p;
	size_t pitch;
	assert(cuMemAllocPitch_v2(&p, &pitch, 1000, 5000, 4) == CUDA_ERROR_NOT_SUPPORTED); /* not in this driver */
	nvs_real.cuMemAllocPitch_v2 = (CUresult (*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned))1;
	assert(cuMemAllocPitch_v2(&p, &pitch, 1000, 5000, 4) == CUDA_SUCCESS);
	assert(pitch == 1024 && fake_allocated[0] == 6 * MIB); /* 1024 x 5000, rounded up */
	must_free(p);
	assert(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX - 3, 2, 4) == CUDA_ERROR_OUT_OF_MEMORY);
	assert(cuMemAllocPitch_v2(&p, &pitch, 1ull << 40, 1ull << 40, 4) == CUDA_ERROR_OUT_OF_MEMORY);
}

static uint64_t accessors_of(CUdeviceptr p)
{
	return fake_at(fake_mapped, p)->accessors;
}

/* GIVEN memory on device 0 WHEN device 1 gets peer access THEN that memory and later memory can be used by it. */
static void test_peer_access_covers_memory_made_before_and_after(void)
{
	CUdeviceptr before = must_alloc(4 * MIB);
	assert(accessors_of(before) == 1);
	fake_current = &fake_contexts[1];
	assert(cuCtxEnablePeerAccess(&fake_contexts[0], 0) == CUDA_SUCCESS);
	assert(fake_current == &fake_contexts[1]);
	CUdeviceptr own = must_alloc(4 * MIB);
	fake_current = &fake_contexts[0];
	CUdeviceptr after = must_alloc(4 * MIB);
	assert(accessors_of(before) == 3 && accessors_of(after) == 3 && accessors_of(own) == 2);
	assert(fake_allocated[0] == 8 * MIB && fake_allocated[1] == 4 * MIB);
	must_free(before);
	must_free(after);
	must_free(own);
}

static void allow_device_1(void)
{
	assert(nvs_backing_allow_peer(0, 1) == CUDA_SUCCESS);
}

/* GIVEN an allocation under way on device 0 WHEN device 1 gets peer access meanwhile THEN it has access to it too. */
static void test_a_peer_allowed_during_an_allocation_is_not_missed(void)
{
	fake_during_set_access = allow_device_1;
	CUdeviceptr p = must_alloc(4 * MIB);
	assert(accessors_of(p) == 3);
	must_free(p);
}

static void test_destroying_a_context_frees_what_it_owned(void)
{
	CUcontext context = &fake_contexts[1];
	fake_current = &fake_contexts[0];
	CUdeviceptr kept = must_alloc(4 * MIB), kept_managed, managed;
	assert(cuMemAllocManaged(&kept_managed, 3000, 1) == CUDA_SUCCESS);
	fake_current = context;
	must_alloc(8 * MIB);
	must_alloc(100);
	assert(cuMemAllocManaged(&managed, 1000, 1) == CUDA_SUCCESS);
	unsigned ended = fake_contexts_ended;
	assert(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	assert(fake_allocated[1] == 0 && fake_allocated[0] == 4 * MIB + 3000 && fake_contexts_ended == ended + 1);
	fake_native = 1; /* the other one went with its context */
	must_free(kept);
	must_free(kept_managed);
}

/* GIVEN a primary context retained twice WHEN it is released THEN only the last release frees what it owned. */
static void test_the_last_release_of_the_primary_context_frees_what_it_owned(void)
{
	CUcontext context;
	unsigned announced = fake_contexts_announced, ended = fake_contexts_ended;
	assert(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	assert(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	assert(fake_contexts_announced == announced + 1);
	fake_current = context;
	must_alloc(8 * MIB);
	assert(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	assert(fake_allocated[0] == 8 * MIB && fake_contexts_ended == ended);
	assert(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	assert(fake_allocated[0] == 0 && fake_contexts_ended == ended + 1);
}

/* GIVEN a primary context that is reset WHEN it is used again and released THEN memory made after the reset goes too.
 */
static void test_a_reset_context_starts_anew(void)
{
	CUcontext context;
	assert(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	fake_current = context;
	must_alloc(8 * MIB);
	assert(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
	assert(fake_allocated[0] == 0);
	must_alloc(6 * MIB);
	assert(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	assert(fake_allocated[0] == 0);
}

/* GIVEN a card without the virtual-memory API WHEN allocating THEN the driver's memory is used, counted and pinned. */
static void test_without_virtual_memory_the_drivers_memory_is_counted(void)
{
	fake_virtual_memory = 0;
	fake_limit = 5 * MIB;
	CUdeviceptr p = must_alloc(5 * MIB - 1), ignored;
	assert(fake_maps == 0 && fake_allocated[0] == 5 * MIB - 1 && fake_pinned[0] == (int64_t)(5 * MIB - 1));
	assert(cuMemAlloc_v2(&ignored, 2) == CUDA_ERROR_OUT_OF_MEMORY);
	must_free(p);
	assert(fake_native == 0);
}

static void test_a_forked_child_starts_empty(void)
{
	CUcontext context;
	CUdeviceptr p = must_alloc(4 * MIB), q = must_alloc(100);
	assert(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	unsigned announced = fake_contexts_announced;
	pid_t child = fork();
	if (child == 0) {
		nvs_memory_after_fork();
		assert(nvs_allocation_list == NULL && nvs_allocation_tree == NULL && nvs_holdings.backings == NULL);
		assert(!nvs_slab_trim(0));
		/* Its primary context is another one. */
		assert(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
		assert(fake_contexts_announced == announced + 1);
		_exit(0);
	}
	int status;
	assert(waitpid(child, &status, 0) == child && status == 0);
	must_free(p);
	must_free(q);
	assert(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
}

int main(void)
{
	RUN(test_a_large_allocation_is_rounded_chunked_and_counted);
	RUN(test_small_allocations_share_one_slab);
	RUN(test_empty_slabs_are_given_back_except_one);
	RUN(test_errors_are_the_drivers);
	RUN(test_free_takes_the_base_once);
	RUN(test_an_unknown_pointer_is_passed_to_the_driver);
	RUN(test_quota_refuses_and_freeing_makes_room);
	RUN(test_what_is_kept_is_given_up_before_memory_is_refused);
	RUN(test_a_failure_at_any_point_leaves_nothing_behind);
	RUN(test_a_free_during_capture_is_deferred);
	RUN(test_a_small_piece_is_not_reused_before_a_drain);
	RUN(test_small_frees_share_their_drains);
	RUN(test_pitch_is_rounded_to_512);
	RUN(test_peer_access_covers_memory_made_before_and_after);
	RUN(test_a_peer_allowed_during_an_allocation_is_not_missed);
	RUN(test_destroying_a_context_frees_what_it_owned);
	RUN(test_the_last_release_of_the_primary_context_frees_what_it_owned);
	RUN(test_a_reset_context_starts_anew);
	RUN(test_without_virtual_memory_the_drivers_memory_is_counted);
	RUN(test_a_forked_child_starts_empty);
	puts("PASS");
	return 0;
}
