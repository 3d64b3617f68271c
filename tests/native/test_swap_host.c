/* Host memory for what leaves the card: set aside when memory is allocated, made ahead of need, and what becomes of
 * memory that the host has no room for. */
#include "fake_swap.h"

static char full_host[64];

static void host_has(uint64_t kib)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/meminfo", full_host);
	FILE *file = fopen(path, "w");
	fprintf(file, "MemTotal:       16777216 kB\nMemAvailable:    %llu kB\n", (unsigned long long)kib);
	fclose(file);
	nvs_mover_pause();
	nvs_proc_root = full_host;
	nvs_mover_resume();
}

static void host_is_itself(void)
{
	nvs_mover_pause();
	nvs_proc_root = "/proc";
	nvs_mover_resume();
}

static void test_what_the_host_cannot_take_stays_and_is_reported(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	write_all(p, 8 * MIB, 7);
	host_has(1024);
	shut();
	set_target(0);
	UNTIL(now().pinned == 8 * MIB);
	assert(now().resident == 8 * MIB && now().absent == 0 && fake_handles == 2);
	assert(nvs_residency_open()); /* it can run all the same */
	check_all(p, 8 * MIB, 7);
	host_is_itself();
	must_free(p);
}

/* GIVEN no host memory from the start WHEN memory is taken on the card THEN it is there, and known to stay. */
static void test_memory_that_could_never_leave_is_reported_when_it_is_made(void)
{
	host_has(1024);
	unsigned told = atomic_load(&fake_moves);
	CUdeviceptr p = must_alloc(8 * MIB);
	assert(now().pinned == 8 * MIB && now().resident == 8 * MIB && atomic_load(&fake_moves) > told);
	shut();
	set_target(0);
	nvs_mover_pause();
	nvs_mover_resume();
	assert(now().resident == 8 * MIB && nvs_residency_open());
	must_free(p);
	assert(now().pinned == 0);
	host_is_itself();
}

static void test_an_allocation_that_neither_card_nor_host_can_take_is_refused(void)
{
	CUdeviceptr p;
	swap_out(0);
	host_has(1024);
	assert(cuMemAlloc_v2(&p, 8 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	assert(fake_allocated[0] == 0 && now().absent == 0 && fake_reservations == 0);
	/* WHEN the card has room THEN the host is not asked */
	set_target(8 * MIB);
	p = must_alloc(8 * MIB);
	must_free(p);
	host_is_itself();
}

static void test_promises_are_kept_and_forgiven(void)
{
	swap_out(0);
	host_has(16777216 / 20 + 20 * 1024); /* the headroom and 20 MiB */
	CUdeviceptr p = must_alloc(12 * MIB), q;
	assert(cuMemAlloc_v2(&q, 12 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	must_free(p);
	p = must_alloc(12 * MIB);
	host_is_itself();
	swap_in();
	must_free(p);
}

static void test_buffers_are_made_before_they_are_needed(void)
{
	CUdeviceptr p = must_alloc(16 * MIB);
	assert(nvs_residency_open());
	nvs_residency_prepare(0, 8 * MIB);
	nvs_mover_kick();
	UNTIL(now().buffered == 8 * MIB);
	nvs_mover_pause();
	assert(fake_registered == 8 * MIB);
	nvs_mover_resume();
	swap_out(8 * MIB); /* THEN those are used */
	assert(now().buffered == 8 * MIB);
	swap_in();
	must_free(p);
	assert(fake_registered == 0);
}

/* GIVEN allocations of all sizes WHEN buffers are made for what may have to go THEN just those chunks leave. */
static void test_what_was_prepared_is_what_leaves(void)
{
	CUdeviceptr p[] = {must_alloc(10 * MIB), must_alloc(3 * MIB), must_alloc(7 * MIB), must_alloc(100)};
	assert(nvs_residency_open());
	for (uint64_t deficit = 3 * MIB; deficit <= 22 * MIB; deficit += 5 * MIB) {
		nvs_residency_prepare(0, deficit);
		nvs_mover_kick();
		UNTIL(now().buffered >= deficit);
		uint64_t made = now().buffered;
		swap_out(24 * MIB - deficit);
		assert(now().buffered == made);
		swap_in();
		assert(nvs_residency_open());
	}
	for (int i = 0; i < 4; i++)
		must_free(p[i]);
}

/* A smaller number stops what is being made, and keeps what there is. */
static void test_fewer_buffers_may_be_wanted_later(void)
{
	CUdeviceptr p = must_alloc(32 * MIB);
	nvs_residency_prepare(0, 8 * MIB);
	nvs_mover_kick();
	UNTIL(now().buffered == 8 * MIB);
	nvs_residency_prepare(0, 4 * MIB);
	assert((nvs_residency_moves() & 1) == 0 && now().buffered == 8 * MIB);
	must_free(p);
}

/* GIVEN memory that came into being away from the card, with host memory set aside WHEN its buffers are made THEN they
 * take that, and no more. */
static void test_buffers_take_what_was_set_aside(void)
{
	swap_out(0);
	CUdeviceptr p = must_alloc(16 * MIB);
	assert(atomic_load(&nvs_host_promised) == 16 * MIB);
	swap_in();
	nvs_residency_prepare(0, 12 * MIB);
	nvs_mover_kick();
	UNTIL(now().buffered == 12 * MIB);
	assert(atomic_load(&nvs_host_promised) == 4 * MIB);
	must_free(p);
}

static void test_memory_moves_without_page_locks_where_there_are_none(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	write_all(p, 8 * MIB, 12);
	fake_register_fails = true;
	swap_out(0);
	assert(fake_registered == 0 && now().host == 8 * MIB);
	swap_in();
	check_all(p, 8 * MIB, 12);
	fake_register_fails = false;
	must_free(p);
}

int main(void)
{
	char path[128];
	snprintf(full_host, sizeof(full_host), "/tmp/nvshare-test-XXXXXX");
	assert(mkdtemp(full_host) != NULL);
	fake_has_contents = true;
	RUN_SWAP(test_what_the_host_cannot_take_stays_and_is_reported);
	RUN_SWAP(test_memory_that_could_never_leave_is_reported_when_it_is_made);
	RUN_SWAP(test_an_allocation_that_neither_card_nor_host_can_take_is_refused);
	RUN_SWAP(test_promises_are_kept_and_forgiven);
	RUN_SWAP(test_buffers_are_made_before_they_are_needed);
	RUN_SWAP(test_what_was_prepared_is_what_leaves);
	RUN_SWAP(test_fewer_buffers_may_be_wanted_later);
	RUN_SWAP(test_buffers_take_what_was_set_aside);
	RUN_SWAP(test_memory_moves_without_page_locks_where_there_are_none);
	snprintf(path, sizeof(path), "%s/meminfo", full_host);
	unlink(path);
	rmdir(full_host);
	puts("PASS");
	return 0;
}
