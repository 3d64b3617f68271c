/* The driver's own memory: counted, pinned, passed on. */
#include "fake_memory.h"
#include "memory/array_size.h"

static void expect_counted(uint64_t bytes)
{
	assert(fake_allocated[0] == bytes && fake_pinned[0] == (int64_t)bytes);
}

static void test_managed_memory_is_counted_until_it_is_freed(void)
{
	CUdeviceptr p;
	assert(cuMemAllocManaged(&p, 1000, 1) == CUDA_SUCCESS);
	expect_counted(1000);
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
	expect_counted(0);
}

static void test_an_async_free_releases_at_once(void)
{
	CUdeviceptr p, q;
	assert(cuMemAllocAsync(&p, 3000, NULL) == CUDA_SUCCESS);
	assert(cuMemAllocAsync(&q, 4000, NULL) == CUDA_SUCCESS);
	expect_counted(7000);
	assert(cuMemFreeAsync(p, NULL) == CUDA_SUCCESS);
	expect_counted(4000);
	assert(cuMemFree_v2(q) == CUDA_SUCCESS);
	expect_counted(0);
}

static void test_our_memory_may_be_freed_in_stream_order(void)
{
	CUdeviceptr p;
	assert(cuMemAlloc_v2(&p, 4 * MIB) == CUDA_SUCCESS);
	assert(cuMemFreeAsync(p, NULL) == CUDA_SUCCESS);
	assert(fake_allocated[0] == 0 && cuMemFreeAsync(p, NULL) == CUDA_ERROR_INVALID_VALUE);
}

/* GIVEN the application's own virtual memory WHEN it names device 1 THEN that device is charged, without any context.
 */
static void test_an_applications_handle_is_counted_where_it_lies(void)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
	fake_current = NULL;
	assert(cuMemCreate(&handle, 8 * MIB, &prop, 0) == CUDA_SUCCESS);
	assert(fake_allocated[1] == 8 * MIB && fake_allocated[0] == 0);
	assert(cuMemRelease(handle) == CUDA_SUCCESS);
	assert(fake_allocated[1] == 0 && fake_pinned[1] == 0);
}

static void test_quota_refuses_and_a_driver_failure_takes_the_count_back(void)
{
	CUdeviceptr p;
	fake_limit = 10000;
	assert(cuMemAllocManaged(&p, 10001, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	assert(cuMemAllocAsync(&p, 10001, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
	fake_error = CUDA_ERROR_UNKNOWN;
	fake_fail_at = 1;
	assert(cuMemAllocManaged(&p, 5000, 1) == CUDA_ERROR_UNKNOWN);
	expect_counted(0);
}

/* GIVEN a free that the driver refuses THEN the memory stays counted and can be freed later. */
static void test_a_refused_free_stays_counted(void)
{
	CUdeviceptr p;
	assert(cuMemAllocManaged(&p, 5000, 1) == CUDA_SUCCESS);
	fake_native = 0;
	assert(cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE);
	expect_counted(5000);
	fake_native = 1;
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
}

static void test_arrays_are_counted_by_their_descriptor(void)
{
	CUarray array;
	CUDA_ARRAY_DESCRIPTOR desc = {.Width = 100, .Height = 50, .Format = 0x20, .NumChannels = 4};
	assert(cuArrayCreate_v2(&array, &desc) == CUDA_SUCCESS);
	expect_counted(100 * 50 * 16);
	assert(cuArrayDestroy(array) == CUDA_SUCCESS);
	expect_counted(0);
}

static void test_sizes_of_arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR cube = {.Width = 64, .Height = 64, .Depth = 64, .Format = 0x10, .NumChannels = 2};
	CUDA_ARRAY3D_DESCRIPTOR line = {.Width = 64, .Format = 0x01, .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR sparse = {.Width = 64, .Height = 64, .Format = 0x01, .NumChannels = 1, .Flags = 0x40};
	CUDA_ARRAY3D_DESCRIPTOR square = {.Width = 64, .Height = 64, .Format = 0x01, .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR absurd = {.Width = SIZE_MAX, .Height = SIZE_MAX, .Format = 0x20, .NumChannels = 4};
	assert(nvs_array3d_bytes(&cube) == 64ull * 64 * 64 * 4);
	assert(nvs_array3d_bytes(&line) == 64);
	assert(nvs_array3d_bytes(&sparse) == 0);
	assert(nvs_mipmap_bytes(&square, 7) == 4096 + 1024 + 256 + 64 + 16 + 4 + 1);
	assert(nvs_array3d_bytes(&absurd) == UINT64_MAX / 2 && nvs_mipmap_bytes(&absurd, 60) == UINT64_MAX / 2);
}

int main(void)
{
	RUN(test_managed_memory_is_counted_until_it_is_freed);
	RUN(test_an_async_free_releases_at_once);
	RUN(test_our_memory_may_be_freed_in_stream_order);
	RUN(test_an_applications_handle_is_counted_where_it_lies);
	RUN(test_quota_refuses_and_a_driver_failure_takes_the_count_back);
	RUN(test_a_refused_free_stays_counted);
	RUN(test_arrays_are_counted_by_their_descriptor);
	RUN(test_sizes_of_arrays);
	puts("PASS");
	return 0;
}
