/* What an application is told about memory. */
#include "fake_memory.h"

static CUdeviceptr must_alloc(size_t n)
{
	CUdeviceptr p = 0;
	assert(cuMemAlloc_v2(&p, n) == CUDA_SUCCESS);
	return p;
}

static void expect_info(size_t available, size_t total)
{
	size_t a, t;
	assert(cuMemGetInfo_v2(&a, &t) == CUDA_SUCCESS);
	assert(a == available && t == total);
}

/* GIVEN a quota of 1 GiB WHEN 748 MiB are allocated THEN 276 of 1024 MiB are free, whatever the neighbours have. */
static void test_the_quota_is_the_card(void)
{
	size_t total;
	fake_card = fake_limit = 1024 * MIB;
	expect_info(1024 * MIB, 1024 * MIB);
	CUdeviceptr p = must_alloc(748 * MIB);
	expect_info(276 * MIB, 1024 * MIB);
	assert(cuDeviceTotalMem_v2(&total, 0) == CUDA_SUCCESS && total == 1024 * MIB);
	fake_card = 512 * MIB; /* lowered while in use: never negative */
	expect_info(0, 512 * MIB);
	fake_card = 1024 * MIB;
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
	expect_info(1024 * MIB, 1024 * MIB);
}

static void test_without_quota_and_scheduler_the_driver_answers(void)
{
	size_t total;
	expect_info(3000 * MIB, 14913 * MIB);
	assert(cuDeviceTotalMem_v2(&total, 0) == CUDA_SUCCESS && total == 14913 * MIB);
}

static void test_a_quota_above_the_card_shows_the_card(void)
{
	fake_card = 20000 * MIB;
	expect_info(14913 * MIB, 14913 * MIB);
}

/* GIVEN a free that waits for its drain WHEN memory is asked about THEN it is given back first if that is possible. */
static void test_a_parked_free_is_seen_by_the_next_question(void)
{
	fake_card = 1024 * MIB;
	CUdeviceptr p = must_alloc(100 * MIB);
	fake_drain_fails = true;
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
	expect_info(924 * MIB, 1024 * MIB);
	fake_drain_fails = false;
	expect_info(1024 * MIB, 1024 * MIB);
}

static void expect_range(CUdeviceptr inside, CUdeviceptr wanted_base, size_t wanted_size)
{
	CUdeviceptr base;
	size_t size;
	assert(cuMemGetAddressRange_v2(&base, &size, inside) == CUDA_SUCCESS);
	assert(base == wanted_base && size == wanted_size);
	assert(cuMemGetAddressRange_v2(NULL, &size, inside) == CUDA_SUCCESS);
	assert(cuMemGetAddressRange_v2(&base, NULL, inside) == CUDA_SUCCESS);
}

static void test_ranges_are_what_was_asked_for(void)
{
	CUdeviceptr large = must_alloc(300 * MIB + 7), small = must_alloc(700), neighbour = must_alloc(700), base;
	size_t size;
	expect_range(large, large, 300 * MIB + 7);
	expect_range(large + 300 * MIB + 6, large, 300 * MIB + 7);
	expect_range(small + 699, small, 700);
	expect_range(neighbour, neighbour, 700);
	assert(cuMemGetAddressRange_v2(&base, &size, small + 700) == CUDA_ERROR_NOT_FOUND);
	cuMemFree_v2(large);
	cuMemFree_v2(small);
	cuMemFree_v2(neighbour);
	assert(cuMemGetAddressRange_v2(&base, &size, large) == CUDA_ERROR_NOT_FOUND);
}

static uint64_t attribute_of(CUdeviceptr p, CUpointer_attribute attribute)
{
	uint64_t value = 0xdddddddddddddddd;
	assert(cuPointerGetAttribute(&value, attribute, p) == CUDA_SUCCESS);
	return value;
}

static void test_pointer_attributes_answer_as_for_cuMemAlloc(void)
{
	CUdeviceptr p = must_alloc(3 * MIB), other = must_alloc(3 * MIB);
	assert(attribute_of(p + 5, CU_POINTER_ATTRIBUTE_CONTEXT) == (uintptr_t)&fake_contexts[0]);
	assert(attribute_of(p + 5, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == p);
	assert(attribute_of(p + 5, CU_POINTER_ATTRIBUTE_RANGE_SIZE) == 3 * MIB);
	assert(attribute_of(p, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) == 0);
	assert(attribute_of(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 0);
	assert((uint32_t)attribute_of(p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_DEVICE);
	uint64_t id = attribute_of(p, CU_POINTER_ATTRIBUTE_BUFFER_ID);
	assert(id != 0 && id == attribute_of(p + 100, CU_POINTER_ATTRIBUTE_BUFFER_ID));
	assert(id != attribute_of(other, CU_POINTER_ATTRIBUTE_BUFFER_ID));
	cuMemFree_v2(p);
	cuMemFree_v2(other);
}

/* GIVEN a small allocation freed and made again at the same address THEN its buffer id is another one. */
static void test_buffer_ids_are_never_reused(void)
{
	CUdeviceptr p = must_alloc(600);
	uint64_t id = attribute_of(p, CU_POINTER_ATTRIBUTE_BUFFER_ID);
	cuMemFree_v2(p);
	nvs_memory_reap(1);
	CUdeviceptr q = must_alloc(600);
	assert(q == p && attribute_of(q, CU_POINTER_ATTRIBUTE_BUFFER_ID) != id);
	cuMemFree_v2(q);
}

static void test_many_attributes_at_once_agree_with_one_at_a_time(void)
{
	CUdeviceptr p = must_alloc(5000);
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_CONTEXT};
	uint64_t size, context;
	void *data[] = {&size, &context};
	assert(cuPointerGetAttributes(2, names, data, p) == CUDA_SUCCESS);
	assert(size == 5000 && context == (uintptr_t)&fake_contexts[0]);
	assert(cuPointerGetAttributes(2, names, data, 0x5000) == CUDA_SUCCESS && size == 0);
	cuMemFree_v2(p);
}

static void test_legacy_ipc_is_refused_where_the_driver_makes_no_descriptors(void)
{
	char handle[64];
	CUdeviceptr p = must_alloc(5000);
	assert(cuIpcGetMemHandle(handle, p) == CUDA_ERROR_NOT_SUPPORTED);
	assert(cuIpcGetMemHandle(handle, 0x5000) == CUDA_SUCCESS);
	cuMemFree_v2(p);
}

int main(void)
{
	RUN(test_the_quota_is_the_card);
	RUN(test_without_quota_and_scheduler_the_driver_answers);
	RUN(test_a_quota_above_the_card_shows_the_card);
	RUN(test_a_parked_free_is_seen_by_the_next_question);
	RUN(test_ranges_are_what_was_asked_for);
	RUN(test_pointer_attributes_answer_as_for_cuMemAlloc);
	RUN(test_buffer_ids_are_never_reused);
	RUN(test_many_attributes_at_once_agree_with_one_at_a_time);
	RUN(test_legacy_ipc_is_refused_where_the_driver_makes_no_descriptors);
	puts("PASS");
	return 0;
}
