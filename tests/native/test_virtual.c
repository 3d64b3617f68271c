/* The application's own virtual memory: tokens over backings of ours, and the views that it maps of them, whether the
 * memory is there or away. */
#include <sys/wait.h>
#include <unistd.h>

#include "fake_swap.h"

#define SEGMENT (6 * MIB) /* more than a chunk */

static const CUmemAccessDesc own = {
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const CUmemAccessDesc none = {
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
static const CUmemAccessDesc peers_own = {
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUmemAllocationProp memory_on(CUdevice device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUmemGenericAllocationHandle must_create(size_t n)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = memory_on(0);
	assert(cuMemCreate(&handle, n, &prop, 0) == CUDA_SUCCESS);
	return handle;
}

static CUdeviceptr must_reserve(size_t n)
{
	CUdeviceptr p;
	assert(cuMemAddressReserve(&p, n, 0, 0, 0) == CUDA_SUCCESS);
	return p;
}

static void must_map(CUdeviceptr p, CUmemGenericAllocationHandle handle, size_t n)
{
	assert(cuMemMap(p, n, 0, handle, 0) == CUDA_SUCCESS);
	assert(cuMemSetAccess(p, n, &own, 1) == CUDA_SUCCESS);
}

static void must_unmap(CUdeviceptr p, size_t n)
{
	assert(cuMemUnmap(p, n) == CUDA_SUCCESS);
}

static void must_release(CUmemGenericAllocationHandle handle)
{
	assert(cuMemRelease(handle) == CUDA_SUCCESS);
}

static void must_unreserve(CUdeviceptr p, size_t n)
{
	assert(cuMemAddressFree(p, n) == CUDA_SUCCESS);
}

/* ---- moving ---- */

static void test_mapped_memory_leaves_and_returns_as_it_was(void)
{
	CUdeviceptr p = must_reserve(2 * SEGMENT);
	CUmemGenericAllocationHandle first = must_create(SEGMENT), second = must_create(SEGMENT);
	must_map(p, first, SEGMENT);
	must_map(p + SEGMENT, second, SEGMENT);
	assert(now().pinned == 0 && fake_pinned[0] == 0 && fake_allocated[0] == 2 * SEGMENT);
	write_all(p, SEGMENT, 1);
	write_all(p + SEGMENT, SEGMENT, 2);
	for (int turn = 0; turn < 3; turn++) {
		swap_out(0);
		assert(fake_handles == 0 && fake_maps == 0 && now().host == 2 * SEGMENT);
		swap_in();
		check_all(p, SEGMENT, 1);
		check_all(p + SEGMENT, SEGMENT, 2);
		assert(nvs_residency_open());
	}
	must_unmap(p, 2 * SEGMENT);
	must_release(first);
	must_release(second);
	must_unreserve(p, 2 * SEGMENT);
}

/* GIVEN memory that is made, mapped and allowed while it is away THEN it is there, and usable, in the turn. */
static void test_memory_is_made_and_mapped_while_away(void)
{
	CUdeviceptr p = must_reserve(SEGMENT);
	must_release(must_create(2 * MIB)); /* such memory is known to be possible */
	swap_out(0);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	assert(fake_handles == 0 && fake_maps == 0 && now().absent == SEGMENT);
	swap_in();
	write_all(p, SEGMENT, 5);
	assert(nvs_residency_open());
	swap_out(0);
	must_unmap(p, SEGMENT); /* nor does it take a turn to go */
	must_release(handle);
	assert(fake_allocated[0] == 0 && now().absent == 0);
	must_unreserve(p, SEGMENT);
}

static void test_memory_mapped_elsewhere_while_away_keeps_its_contents(void)
{
	CUdeviceptr p = must_reserve(SEGMENT), q = must_reserve(SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	write_all(p, SEGMENT, 7);
	swap_out(0);
	must_unmap(p, SEGMENT);
	must_map(q, handle, SEGMENT);
	swap_in();
	check_all(q, SEGMENT, 7);
	must_unmap(q, SEGMENT);
	must_release(handle);
	must_unreserve(p, SEGMENT);
	must_unreserve(q, SEGMENT);
}

/* GIVEN one handle at two addresses THEN what is written at one is read at the other, before and after a move. */
static void test_two_views_show_the_same_memory(void)
{
	CUdeviceptr p = must_reserve(2 * SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	must_map(p + SEGMENT, handle, SEGMENT);
	write_all(p, SEGMENT, 3);
	check_all(p + SEGMENT, SEGMENT, 3);
	swap_out(0);
	assert(fake_maps == 0 && fake_allocated[0] == SEGMENT);
	swap_in();
	check_all(p + SEGMENT, SEGMENT, 3);
	must_unmap(p, 2 * SEGMENT);
	must_release(handle);
	must_unreserve(p, 2 * SEGMENT);
}

static void test_addresses_may_be_mapped_again_at_once(void)
{
	CUdeviceptr p = must_reserve(SEGMENT);
	for (uint8_t round = 0; round < 5; round++) {
		CUmemGenericAllocationHandle handle = must_create(SEGMENT);
		must_map(p, handle, SEGMENT);
		must_release(handle);
		write_all(p, SEGMENT, round);
		swap_out(0);
		swap_in();
		check_all(p, SEGMENT, round);
		must_unmap(p, SEGMENT);
		assert(fake_allocated[0] == 0 && fake_maps == 0);
	}
	must_unreserve(p, SEGMENT);
}

static bool any_fixed(void)
{
	bool found = false;
	nvs_holdings_lock();
	for (const struct nvs_backing *each = nvs_holdings.backings; each != NULL; each = each->next)
		found = found || each->fixed > 0;
	nvs_holdings_unlock();
	return found;
}

static void *unmap_it(void *p)
{
	must_unmap((CUdeviceptr)(uintptr_t)p, SEGMENT);
	return NULL;
}

/* GIVEN a chunk on its way out WHEN its view is unmapped THEN that waits for the chunk, and no other. */
static void test_an_unmap_waits_for_chunks_on_their_way(void)
{
	CUdeviceptr p = must_reserve(SEGMENT), q = must_reserve(2 * MIB);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT), other = must_create(2 * MIB);
	pthread_t thread;
	must_map(p, handle, SEGMENT);
	must_map(q, other, 2 * MIB);
	must_release(handle);
	must_release(other);
	atomic_store(&fake_copies_hang, true);
	shut();
	set_target(2 * MIB);
	UNTIL(now().leaving == SEGMENT);
	must_unmap(q, 2 * MIB);
	pthread_create(&thread, NULL, unmap_it, (void *)(uintptr_t)p);
	UNTIL(any_fixed());
	assert(now().leaving == SEGMENT && fake_allocated[0] == SEGMENT);
	atomic_store(&fake_copies_hang, false);
	pthread_join(thread, NULL);
	assert(fake_allocated[0] == 0 && now().host == 0 && now().resident == 0);
	must_unreserve(p, SEGMENT);
	must_unreserve(q, 2 * MIB);
}

static void test_a_failure_on_the_way_in_leaves_nothing_behind(void)
{
	CUdeviceptr p = must_reserve(2 * MIB);
	CUmemGenericAllocationHandle handle = must_create(2 * MIB);
	must_map(p, handle, 2 * MIB);
	write_all(p, 2 * MIB, 6);
	for (int at = 1; at <= 5; at++) { /* create, home: map, access, view: map, access */
		swap_out(0);
		fake_fail_at = at;
		swap_in(); /* it is tried again */
		assert(fake_handles == 1 && fake_maps == 2);
		check_all(p, 2 * MIB, 6);
	}
	must_unmap(p, 2 * MIB);
	must_release(handle);
	must_unreserve(p, 2 * MIB);
}

/* ---- counting ---- */

static void test_a_released_handle_counts_until_it_is_unmapped_everywhere(void)
{
	CUdeviceptr p = must_reserve(2 * SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT), again;
	must_map(p, handle, SEGMENT);
	must_map(p + SEGMENT, handle, SEGMENT);
	must_release(handle);
	assert(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemMap(p, SEGMENT, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	must_unmap(p, SEGMENT);
	assert(fake_allocated[0] == SEGMENT);
	/* AND a view gives the handle back */
	assert(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + SEGMENT + 5)) == CUDA_SUCCESS);
	assert(again == handle && now().pinned == 0);
	must_unmap(p + SEGMENT, SEGMENT);
	assert(fake_allocated[0] == SEGMENT);
	must_release(again);
	assert(fake_allocated[0] == 0);
	must_unreserve(p, 2 * SEGMENT);
}

static void test_quota_refuses_and_a_failure_takes_the_count_back(void)
{
	CUmemGenericAllocationHandle handle, held = must_create(SEGMENT);
	CUmemAllocationProp prop = memory_on(0);
	fake_limit = 10 * MIB;
	assert(cuMemCreate(&handle, SEGMENT, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
	must_release(held);
	for (int at = 1; at <= 3; at++) { /* address, create, map */
		fake_error = CUDA_ERROR_UNKNOWN;
		fake_fail_at = at;
		assert(cuMemCreate(&handle, SEGMENT, &prop, 0) == CUDA_ERROR_UNKNOWN);
		assert(fake_allocated[0] == 0 && fake_handles == 0);
	}
	must_release(must_create(10 * MIB));
}

static void test_memory_is_what_the_application_described(void)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = memory_on(1), said;
	prop.requestedHandleTypes = 1;
	prop.allocFlags.compressionType = 1;
	fake_current = NULL;
	assert(cuMemCreate(&handle, 2 * MIB, &prop, 0) == CUDA_SUCCESS);
	assert(memcmp(&fake_last_prop, &prop, sizeof(prop)) == 0 && fake_allocated[1] == 2 * MIB);
	assert(cuMemGetAllocationPropertiesFromHandle(&said, handle) == CUDA_SUCCESS);
	assert(memcmp(&said, &prop, sizeof(prop)) == 0);
	must_release(handle);
	assert(cuMemGetAllocationPropertiesFromHandle(&said, handle) == CUDA_ERROR_INVALID_VALUE);
}

/* GIVEN memory that cannot be ours THEN the driver makes it, and it is counted as memory that stays. */
static void test_what_cannot_be_ours_stays_the_drivers(void)
{
	CUmemGenericAllocationHandle tiles, unproven;
	CUmemAllocationProp prop = memory_on(0);
	prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
	assert(cuMemCreate(&tiles, 2 * MIB, &prop, 0) == CUDA_SUCCESS && !nvs_is_token(tiles));
	/* AND so does what the driver would not make when it was tried */
	prop = memory_on(0);
	prop.requestedHandleTypes = 8;
	for (int at = 1; at <= 4; at++) { /* address, create, map, access */
		fake_fail_at = at;
		assert(cuMemCreate(&unproven, 2 * MIB, &prop, 0) == CUDA_SUCCESS && !nvs_is_token(unproven));
		assert(fake_pinned[0] == 4 * MIB && fake_maps == 0 && fake_handles == 2);
		must_release(unproven);
	}
	must_release(tiles);
}

/* ---- rows of mappings ---- */

static void test_only_whole_mappings_are_unmapped_or_allowed(void)
{
	CUdeviceptr p = must_reserve(4 * SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	must_map(p + 2 * SEGMENT, handle, SEGMENT);
	assert(cuMemUnmap(p, 4 * MIB) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemUnmap(p + 2 * MIB, 4 * MIB) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemUnmap(p, 3 * SEGMENT) == CUDA_ERROR_INVALID_VALUE); /* a gap */
	assert(cuMemSetAccess(p, 4 * MIB, &own, 1) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemSetAccess(p, 2 * SEGMENT, &own, 1) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemMap(p + 2 * MIB, SEGMENT, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE); /* in the way */
	assert(cuMemMap(p + SEGMENT, SEGMENT, 2 * MIB, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemMap(p + SEGMENT, SEGMENT + 2 * MIB, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemAddressFree(p, 4 * SEGMENT) == CUDA_ERROR_INVALID_VALUE);
	swap_out(0); /* AND all that is so while the memory is away */
	assert(cuMemUnmap(p, 4 * MIB) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemMap(p + 2 * MIB, SEGMENT, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemAddressFree(p, 4 * SEGMENT) == CUDA_ERROR_INVALID_VALUE);
	swap_in();
	must_unmap(p, SEGMENT);
	must_unmap(p + 2 * SEGMENT, SEGMENT);
	must_release(handle);
	must_unreserve(p, 4 * SEGMENT);
}

static void test_the_drivers_memory_may_lie_between_ours(void)
{
	CUdeviceptr p = must_reserve(3 * 2 * MIB);
	CUmemAllocationProp prop = memory_on(0);
	CUmemGenericAllocationHandle theirs, handle = must_create(2 * MIB);
	prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
	assert(cuMemCreate(&theirs, 2 * MIB, &prop, 0) == CUDA_SUCCESS);
	assert(cuMemMap(p, 2 * MIB, 0, handle, 0) == CUDA_SUCCESS);
	assert(cuMemMap(p + 2 * MIB, 2 * MIB, 0, theirs, 0) == CUDA_SUCCESS);
	assert(cuMemMap(p + 2 * MIB, 2 * MIB, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemMap(p, 2 * MIB, 0, theirs, 0) == CUDA_ERROR_INVALID_VALUE);
	assert(cuMemMap(p + 4 * MIB, 2 * MIB, 0, handle, 0) == CUDA_SUCCESS);
	swap_out(2 * MIB);
	assert(cuMemSetAccess(p, 6 * MIB, &own, 1) == CUDA_SUCCESS);
	swap_in();
	write_all(p, 2 * MIB, 1);
	write_all(p + 2 * MIB, 2 * MIB, 2);
	check_all(p + 4 * MIB, 2 * MIB, 1);
	must_unmap(p, 6 * MIB);
	must_release(handle);
	must_release(theirs);
	must_unreserve(p, 6 * MIB);
}

static void test_memory_from_cuMemAlloc_is_not_unmapped(void)
{
	CUdeviceptr p = must_alloc(4 * MIB);
	assert(cuMemUnmap(p, 4 * MIB) == CUDA_ERROR_INVALID_VALUE);
	must_free(p);
}

/* ---- access ---- */

static unsigned long long access_of(CUdevice device, CUdeviceptr p)
{
	unsigned long long flags = 99;
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	assert(cuMemGetAccess(&flags, &location, p) == CUDA_SUCCESS);
	return flags;
}

static void become_present(void)
{
	fake_at_gate = NULL;
	swap_in();
}

/* GIVEN memory that is away WHEN access is asked for of which only the driver can tell THEN the turn is waited for. */
static void test_access_is_remembered_and_set_again(void)
{
	CUdeviceptr p = must_reserve(SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	assert(access_of(0, p) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && access_of(1, p) == 0);
	swap_out(0);
	assert(access_of(0, p + 5) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	fake_at_gate = become_present;
	assert(cuMemSetAccess(p, SEGMENT, &peers_own, 1) == CUDA_SUCCESS && fake_at_gate == NULL);
	assert(access_of(1, p) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	swap_out(0);
	swap_in();
	for (int i = 0; i < FAKE_SLOTS; i++)
		assert(fake_mapped[i].base < p || fake_mapped[i].base >= p + SEGMENT || fake_mapped[i].accessors == 3);
	swap_out(0);
	assert(cuMemSetAccess(p, SEGMENT, &none, 1) == CUDA_SUCCESS && access_of(0, p) == 0);
	swap_in();
	for (int i = 0; i < FAKE_SLOTS; i++)
		assert(fake_mapped[i].base < p || fake_mapped[i].base >= p + SEGMENT || fake_mapped[i].accessors == 2);
	must_unmap(p, SEGMENT);
	must_release(handle);
	must_unreserve(p, SEGMENT);
}

/* GIVEN addresses of which nothing is known, or a part of a handle THEN mapping waits until the driver can tell. */
static void test_a_map_that_only_the_driver_can_judge_waits_for_the_turn(void)
{
	CUdeviceptr unknown, p = must_reserve(SEGMENT);
	assert(nvs_real.cuMemAddressReserve(&unknown, SEGMENT, 0, 0, 0) == CUDA_SUCCESS);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	swap_out(0);
	fake_at_gate = become_present;
	assert(cuMemMap(unknown, SEGMENT, 0, handle, 0) == CUDA_SUCCESS && fake_at_gate == NULL);
	swap_out(0);
	fake_at_gate = become_present;
	must_map(p, handle, 4 * MIB);
	assert(fake_at_gate == NULL);
	write_all(p, 4 * MIB, 9);
	assert(nvs_residency_open());
	swap_out(0);
	swap_in();
	check_all(p, 4 * MIB, 9);
	must_unmap(p, 4 * MIB);
	must_unmap(unknown, SEGMENT);
	must_release(handle);
	must_unreserve(p, SEGMENT);
	assert(nvs_real.cuMemAddressFree(unknown, SEGMENT) == CUDA_SUCCESS);
}

/* ---- what is told, and what is lent ---- */

static uint64_t attribute_of(CUdeviceptr p, CUpointer_attribute attribute)
{
	uint64_t value = 0;
	assert(cuPointerGetAttribute(&value, attribute, p) == CUDA_SUCCESS);
	return value;
}

static void expect_answers(CUdeviceptr p, uint64_t id)
{
	CUdeviceptr base;
	size_t size;
	assert(cuMemGetAddressRange_v2(&base, &size, p + 5 * MIB) == CUDA_SUCCESS && base == p && size == SEGMENT);
	assert(attribute_of(p + 5 * MIB, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == p);
	assert(attribute_of(p + 5 * MIB, CU_POINTER_ATTRIBUTE_MAPPING_SIZE) == SEGMENT);
	assert(attribute_of(p + 5 * MIB, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_DEVICE);
	assert(attribute_of(p + 5 * MIB, CU_POINTER_ATTRIBUTE_CONTEXT) == 0);
	assert(attribute_of(p + 5 * MIB, CU_POINTER_ATTRIBUTE_BUFFER_ID) == id);
}

static void test_questions_about_a_view_are_answered_while_it_is_away(void)
{
	CUdeviceptr p = must_reserve(SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	uint64_t id = attribute_of(p, CU_POINTER_ATTRIBUTE_BUFFER_ID);
	expect_answers(p, id);
	swap_out(0);
	expect_answers(p, id);
	assert(cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE);
	swap_in();
	expect_answers(p, id);
	must_unmap(p, SEGMENT);
	must_release(handle);
	must_unreserve(p, SEGMENT);
}

static CUmemGenericAllocationHandle lent;

static CUresult fake_export(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	lent = handle;
	return CUDA_SUCCESS;
}

static void test_exported_memory_stays_and_the_driver_never_sees_a_token(void)
{
	int descriptor;
	CUmemGenericAllocationHandle handle = must_create(2 * MIB), large = must_create(SEGMENT);
	nvs_real.cuMemExportToShareableHandle = fake_export;
	assert(now().pinned == 0);
	swap_out(0);
	fake_at_gate = become_present;
	assert(cuMemExportToShareableHandle(&descriptor, handle, 1, 0) == CUDA_SUCCESS);
	assert(lent < fake_next_handle && now().pinned == 2 * MIB && atomic_load(&fake_moves) > 0);
	assert(cuMemExportToShareableHandle(&descriptor, large, 1, 0) == CUDA_ERROR_NOT_SUPPORTED);
	swap_out(2 * MIB);
	assert(fake_handles == 1);
	swap_in();
	must_release(handle);
	must_release(large);
	assert(cuMemExportToShareableHandle(&descriptor, handle, 1, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void test_sparse_arrays_take_no_token(void)
{
	CUarrayMapInfo list[2] = {{.memHandle = 5}, {.memHandle = must_create(2 * MIB)}};
	assert(sizeof(list[0]) == 96 && offsetof(CUarrayMapInfo, memHandle) == 64);
	nvs_real.cuMemMapArrayAsync = (CUresult (*)(CUarrayMapInfo *, unsigned, CUstream))abort;
	assert(cuMemMapArrayAsync(list, 2, NULL) == CUDA_ERROR_INVALID_VALUE);
	must_release(list[1].memHandle);
}

static void test_a_forked_child_starts_empty(void)
{
	CUdeviceptr p = must_reserve(SEGMENT);
	CUmemGenericAllocationHandle handle = must_create(SEGMENT);
	must_map(p, handle, SEGMENT);
	pid_t child = fork();
	if (child == 0) {
		nvs_virtual_after_fork();
		_exit(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE && nvs_mapping_tree == NULL ? 0 : 1);
	}
	int status;
	assert(waitpid(child, &status, 0) == child && status == 0);
	must_unmap(p, SEGMENT);
	must_release(handle);
	must_unreserve(p, SEGMENT);
}

/* ---- threads ---- */

static _Atomic bool over;

static void *grow_and_shrink(void *number)
{
	uint8_t seed = (uint8_t)(uintptr_t)number;
	CUdeviceptr p = must_reserve(4 * SEGMENT);
	for (int round = 0; round < 40; round++) {
		for (int i = 0; i < 4; i++) {
			CUmemGenericAllocationHandle handle = must_create(SEGMENT);
			assert(cuMemMap(p + i * SEGMENT, SEGMENT, 0, handle, 0) == CUDA_SUCCESS);
			must_release(handle);
		}
		assert(cuMemSetAccess(p, 4 * SEGMENT, &own, 1) == CUDA_SUCCESS);
		assert(attribute_of(p + SEGMENT, CU_POINTER_ATTRIBUTE_RANGE_SIZE) == SEGMENT);
		must_unmap(p, SEGMENT);
		must_unmap(p + SEGMENT, 3 * SEGMENT);
	}
	must_unreserve(p, 4 * SEGMENT);
	return (void *)(uintptr_t)seed;
}

static void *move_to_and_fro(void *unused)
{
	while (!atomic_load(&over)) {
		set_target(2 * MIB);
		nvs_sleep_ns(200 * NVS_NS_PER_US);
		set_target(NVS_UNLIMITED);
		nvs_sleep_ns(200 * NVS_NS_PER_US);
	}
	return unused;
}

static void test_views_change_in_many_threads_while_memory_moves(void)
{
	pthread_t threads[3], moving;
	must_release(must_create(2 * MIB));
	shut();
	atomic_store(&over, false);
	pthread_create(&moving, NULL, move_to_and_fro, NULL);
	for (uintptr_t i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, grow_and_shrink, (void *)i);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&over, true);
	pthread_join(moving, NULL);
	swap_in();
	assert(fake_allocated[0] == 0 && now().resident == 0 && now().host == 0);
}

int main(void)
{
	fake_has_contents = true;
	RUN_SWAP(test_mapped_memory_leaves_and_returns_as_it_was);
	RUN_SWAP(test_memory_is_made_and_mapped_while_away);
	RUN_SWAP(test_memory_mapped_elsewhere_while_away_keeps_its_contents);
	RUN_SWAP(test_two_views_show_the_same_memory);
	RUN_SWAP(test_addresses_may_be_mapped_again_at_once);
	RUN_SWAP(test_an_unmap_waits_for_chunks_on_their_way);
	RUN_SWAP(test_a_failure_on_the_way_in_leaves_nothing_behind);
	RUN_SWAP(test_a_released_handle_counts_until_it_is_unmapped_everywhere);
	RUN_SWAP(test_quota_refuses_and_a_failure_takes_the_count_back);
	RUN_SWAP(test_memory_is_what_the_application_described);
	RUN_SWAP(test_what_cannot_be_ours_stays_the_drivers);
	RUN_SWAP(test_only_whole_mappings_are_unmapped_or_allowed);
	RUN_SWAP(test_the_drivers_memory_may_lie_between_ours);
	RUN_SWAP(test_memory_from_cuMemAlloc_is_not_unmapped);
	RUN_SWAP(test_access_is_remembered_and_set_again);
	RUN_SWAP(test_a_map_that_only_the_driver_can_judge_waits_for_the_turn);
	RUN_SWAP(test_questions_about_a_view_are_answered_while_it_is_away);
	RUN_SWAP(test_exported_memory_stays_and_the_driver_never_sees_a_token);
	RUN_SWAP(test_sparse_arrays_take_no_token);
	RUN_SWAP(test_a_forked_child_starts_empty);
	RUN_SWAP(test_views_change_in_many_threads_while_memory_moves);
	puts("PASS");
	return 0;
}
