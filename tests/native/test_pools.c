/* Pools: what they keep and give back, which are ours, what is told of them. */
#include "fake_ordered.h"
#include "hand_clock.h"

static CUmemoryPool make_pool(CUdevice device, int handle_types, size_t limit)
{
	CUmemoryPool pool;
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = handle_types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.maxSize = limit};
	assert(cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS);
	return pool;
}

static void next_period(void)
{
	hand_clock_ns += 10 * NVS_NS_PER_S;
	nvs_ordered_tidy();
}

/* ---- giving back ---- */

static void test_trimming_gives_back_what_is_free(void)
{
	CUmemoryPool pool = &fake_default_pools[0];
	CUdeviceptr p = must_alloc(10 * MIB, A), q = must_alloc(20 * MIB, A), kept = must_alloc(1000, A);
	must_free(p, A);
	must_free(q, A);
	assert(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == fake_allocated[0]);
	assert(cuMemPoolTrimTo(pool, 30 * MIB) == CUDA_SUCCESS && fake_allocated[0] >= 30 * MIB);
	assert(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
	assert(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024);
	assert(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 30 * MIB + 1024);
	must_free(kept, A);
	assert(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS && fake_allocated[0] == 0);
}

static void test_memory_under_work_is_not_trimmed(void)
{
	must_free(must_alloc(4 * MIB, A), A);
	fake_work(1);
	CUdeviceptr p = must_alloc(4 * MIB, A);
	must_free(p, A);
	assert(cuMemPoolTrimTo(&fake_default_pools[0], 0) == CUDA_SUCCESS && fake_allocated[0] == 4 * MIB);
	fake_finish(1);
	assert(cuMemPoolTrimTo(&fake_default_pools[0], 0) == CUDA_SUCCESS && fake_allocated[0] == 0);
}

/* GIVEN a loop in which memory is used in each period THEN it stays; unused for a whole period it goes, down to the
 * threshold. */
static void test_unused_segments_go_after_a_while_beyond_the_threshold(void)
{
	for (int i = 0; i < 5; i++) {
		must_free(must_alloc(20 * MIB, A), A);
		size_t maps = fake_maps;
		next_period();
		assert(fake_allocated[0] == 20 * MIB && fake_maps == maps);
	}
	next_period();
	assert(fake_allocated[0] == 0);
	uint64_t threshold = 20 * MIB;
	assert(cuMemPoolSetAttribute(&fake_default_pools[0], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ==
		CUDA_SUCCESS);
	CUdeviceptr p = must_alloc(20 * MIB, A), q = must_alloc(30 * MIB, A);
	must_free(p, A);
	must_free(q, A);
	for (int i = 0; i < 4; i++)
		next_period();
	assert(fake_allocated[0] == 20 * MIB || fake_allocated[0] == 30 * MIB);
}

static void test_free_segments_go_with_a_context_and_live_ones_with_the_last(void)
{
	CUdeviceptr p = must_alloc(20 * MIB, A), q = must_alloc(30 * MIB, A);
	must_free(p, A);
	nvs_memory_context_gone(&fake_contexts[0], 0);
	assert(fake_allocated[0] == 30 * MIB);
	fake_no_context_left = true;
	nvs_memory_context_gone(&fake_contexts[0], 0);
	fake_no_context_left = false;
	assert(fake_allocated[0] == 0 && cuMemFreeAsync(q, A) != CUDA_SUCCESS);
}

/* ---- pools ---- */

static void test_pools_of_plain_device_memory_are_ours(void)
{
	CUdeviceptr p;
	CUmemoryPool pool = make_pool(1, 0, 0), found;
	assert(cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, A) == CUDA_SUCCESS);
	assert(fake_allocated[1] == 4 * MIB && fake_allocated[0] == 0 && fake_pinned[1] == 0);
	assert(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p) == CUDA_SUCCESS && found == pool);
	must_free(p, A);
}

static void test_exportable_and_unknown_pools_are_the_drivers(void)
{
	CUdeviceptr p;
	struct CUmemPoolHandle_st imported;
	CUmemoryPool drivers[] = {make_pool(0, 1, 0), &imported};
	for (int i = 0; i < 2; i++) {
		assert(cuMemAllocFromPoolAsync(&p, 3000, drivers[i], A) == CUDA_SUCCESS);
		assert(fake_native == 1 && fake_pinned[0] == 3000);
		must_free(p, A);
		assert(fake_native == 0 && fake_allocated[0] == 0);
	}
}

static void test_the_current_pool_serves_plain_requests(void)
{
	CUmemoryPool pool = make_pool(0, 0, 0);
	must_free(must_alloc(1000, A), A);
	assert(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
	CUdeviceptr p = must_alloc(1000, A);
	assert(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024);
	assert(attribute(&fake_default_pools[0], CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
	must_free(p, A);
	assert(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
	p = must_alloc(1000, A);
	assert(attribute(&fake_default_pools[0], CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024);
	must_free(p, A);
}

static void test_a_pool_keeps_to_its_own_limit(void)
{
	CUdeviceptr p, ignored;
	CUmemoryPool pool = make_pool(0, 0, 8 * MIB);
	assert(cuMemAllocFromPoolAsync(&p, 6 * MIB, pool, A) == CUDA_SUCCESS);
	assert(cuMemAllocFromPoolAsync(&ignored, 4 * MIB, pool, A) == CUDA_ERROR_OUT_OF_MEMORY);
	must_free(p, A);
	assert(cuMemAllocFromPoolAsync(&p, 8 * MIB, pool, A) == CUDA_SUCCESS);
	must_free(p, A);
}

/* GIVEN a pool destroyed with a block in use THEN the block lives on, and its memory goes with it. */
static void test_a_destroyed_pool_ends_with_its_last_block(void)
{
	CUdeviceptr p, q;
	CUmemoryPool pool = make_pool(0, 0, 0);
	assert(cuMemAllocFromPoolAsync(&p, 6 * MIB, pool, A) == CUDA_SUCCESS);
	assert(cuMemAllocFromPoolAsync(&q, 4 * MIB, pool, A) == CUDA_SUCCESS);
	must_free(q, A);
	assert(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
	assert(fake_allocated[0] == 6 * MIB);
	must_free(p, A);
	assert(fake_allocated[0] == 0);
}

static void test_a_peer_gets_access_to_a_pools_memory(void)
{
	CUdeviceptr p = must_alloc(4 * MIB, A);
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	assert(fake_at(fake_mapped, p)->accessors == 1);
	assert(cuMemPoolSetAccess(&fake_default_pools[0], &access, 1) == CUDA_SUCCESS);
	assert(fake_at(fake_mapped, p)->accessors == 3);
	must_free(p, A);
}

int main(void)
{
	RUN_ORDERED(test_trimming_gives_back_what_is_free);
	RUN_ORDERED(test_memory_under_work_is_not_trimmed);
	RUN_ORDERED(test_unused_segments_go_after_a_while_beyond_the_threshold);
	RUN_ORDERED(test_free_segments_go_with_a_context_and_live_ones_with_the_last);
	RUN_ORDERED(test_pools_of_plain_device_memory_are_ours);
	RUN_ORDERED(test_exportable_and_unknown_pools_are_the_drivers);
	RUN_ORDERED(test_the_current_pool_serves_plain_requests);
	RUN_ORDERED(test_a_pool_keeps_to_its_own_limit);
	RUN_ORDERED(test_a_destroyed_pool_ends_with_its_last_block);
	RUN_ORDERED(test_a_peer_gets_access_to_a_pools_memory);
	puts("PASS");
	return 0;
}
