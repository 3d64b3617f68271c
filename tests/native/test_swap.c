/* Memory that moves between card and host: states of chunks, the interlock with the gate, failures, and frees of what
 * is on its way; over a driver whose memory has contents and room for just so much. */
#include "fake_swap.h"

static void test_contents_leave_and_return_at_the_same_address(void)
{
	CUdeviceptr p = must_alloc(14 * MIB), small = must_alloc(1000);
	write_all(p, 14 * MIB, 3);
	write_all(small, 1000, 4);
	swap_out(0);
	assert(fake_handles == 0 && fake_maps == 0 && now().host == 16 * MIB && now().absent == 16 * MIB);
	swap_in();
	assert(now().resident == 16 * MIB && now().host == 0);
	check_all(p, 14 * MIB, 3);
	check_all(small, 1000, 4);
	must_free(p);
	must_free(small);
}

static void test_nothing_leaves_while_the_gate_is_open(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	assert(nvs_residency_open());
	set_target(0);
	nvs_mover_pause(); /* the mover has seen it */
	nvs_mover_resume();
	assert(now().resident == 8 * MIB && now().leaving == 0);
	shut();
	UNTIL(now().resident == 0);
	assert(!nvs_residency_open()); /* AND the gate does not open before all is back */
	swap_in();
	assert(nvs_residency_open());
	must_free(p);
}

static void test_a_clean_copy_goes_without_being_copied(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	write_all(p, 8 * MIB, 9);
	swap_out(0);
	swap_in();
	uint64_t copied = fake_copied_out;
	swap_out(0);
	assert(fake_copied_out == copied);
	swap_in();
	/* WHEN work may have changed it, THEN it is copied again */
	assert(nvs_residency_open());
	write_all(p, 8 * MIB, 10);
	swap_out(0);
	assert(fake_copied_out == copied + 8 * MIB);
	swap_in();
	check_all(p, 8 * MIB, 10);
	must_free(p);
}

static void test_what_was_never_written_is_never_copied(void)
{
	swap_out(0);
	uint64_t copied = fake_copied_out + fake_copied_in;
	CUdeviceptr p = must_alloc(12 * MIB);
	assert(fake_handles == 0 && now().absent == 12 * MIB && now().host == 0);
	assert(!nvs_residency_open());
	swap_in();
	assert(fake_handles == 3);
	swap_out(0);
	assert(now().host == 0 && fake_handles == 0);
	assert(fake_copied_out + fake_copied_in == copied);
	swap_in();
	must_free(p);
}

/* GIVEN large and small allocations WHEN a part has to go THEN no more than needed, the large ones first, slabs last.
 */
static void test_the_least_leaves_and_slabs_go_last(void)
{
	CUdeviceptr small = must_alloc(100), large = must_alloc(16 * MIB), middle = must_alloc(6 * MIB);
	swap_out(20 * MIB);
	assert(now().resident == 20 * MIB && fake_copied_out >= 4 * MIB);
	assert(nvs_residency_is_away(0, large + 12 * MIB));
	swap_out(2 * MIB);
	assert(now().resident == 2 * MIB && !nvs_residency_is_away(0, small));
	assert(nvs_residency_is_away(0, large) && nvs_residency_is_away(0, middle));
	swap_in();
	must_free(small);
	must_free(large);
	must_free(middle);
}

static void test_a_target_is_never_exceeded_on_the_way_in(void)
{
	CUdeviceptr p = must_alloc(20 * MIB);
	swap_out(0);
	set_target(11 * MIB);
	UNTIL(now().resident == 8 * MIB && now().arriving == 0);
	nvs_mover_pause();
	nvs_mover_resume();
	assert(now().resident == 8 * MIB && fake_handles == 2);
	swap_in();
	must_free(p);
}

/* GIVEN a copy under way WHEN the target rises again THEN the chunk stays, with a copy on the host. */
static void test_a_chunk_on_its_way_out_may_stay(void)
{
	CUdeviceptr p = must_alloc(4 * MIB);
	atomic_store(&fake_copies_hang, true);
	shut();
	set_target(0);
	UNTIL(now().leaving == 4 * MIB);
	assert(!nvs_residency_open());
	set_target(NVS_UNLIMITED);
	atomic_store(&fake_copies_hang, false);
	UNTIL(now().absent == 0);
	assert(fake_handles == 1 && now().resident == 4 * MIB);
	assert(nvs_residency_open());
	must_free(p);
}

static void *free_it(void *p)
{
	fake_current = &fake_contexts[0];
	must_free((CUdeviceptr)(uintptr_t)p);
	return NULL;
}

/* GIVEN two allocations, one of them on its way WHEN both are freed THEN one free waits and the other does not. */
static void test_a_free_waits_for_its_own_chunks_only(void)
{
	CUdeviceptr p = must_alloc(8 * MIB), q = must_alloc(2 * MIB);
	atomic_store(&fake_copies_hang, true);
	shut();
	set_target(2 * MIB);
	UNTIL(now().leaving == 8 * MIB);
	must_free(q);
	pthread_t freeing;
	pthread_create(&freeing, NULL, free_it, (void *)(uintptr_t)p);
	nvs_sleep_ns(5 * NVS_NS_PER_MS);
	assert(now().leaving == 8 * MIB && fake_handles == 2);
	atomic_store(&fake_copies_hang, false);
	pthread_join(freeing, NULL);
	assert(now().leaving == 0 && now().resident == 0 && now().host == 0);
}

static void test_a_full_card_is_waited_for(void)
{
	CUdeviceptr p = must_alloc(12 * MIB);
	write_all(p, 12 * MIB, 5);
	swap_out(0);
	/* GIVEN somebody else on the card WHEN the memory may return THEN it comes as far as there is room */
	fake_capacity = 6 * MIB;
	set_target(NVS_UNLIMITED);
	UNTIL(now().absent == 8 * MIB && now().arriving == 0);
	assert(!nvs_residency_open());
	/* AND the rest when there is */
	pthread_mutex_lock(&fake_lock);
	fake_capacity = UINT64_MAX;
	pthread_mutex_unlock(&fake_lock);
	UNTIL(now().absent == 0);
	check_all(p, 12 * MIB, 5);
	must_free(p);
}

static void *make_room(void *unused)
{
	nvs_sleep_ns(10 * NVS_NS_PER_MS);
	pthread_mutex_lock(&fake_lock);
	fake_capacity = UINT64_MAX;
	pthread_mutex_unlock(&fake_lock);
	return unused;
}

/* GIVEN room that a scheduler has given, but that another has not left yet WHEN allocating THEN that is waited for. */
static void test_an_allocation_waits_for_room_that_was_given(void)
{
	pthread_t other;
	CUdeviceptr p;
	fake_capacity = 2 * MIB;
	assert(cuMemAlloc_v2(&p, 4 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	fake_is_counted = true;
	pthread_create(&other, NULL, make_room, NULL);
	must_free(must_alloc(4 * MIB));
	pthread_join(other, NULL);
	fake_is_counted = false;
}

static void test_a_failure_while_mapping_leaves_nothing_behind(void)
{
	CUdeviceptr p = must_alloc(4 * MIB);
	write_all(p, 4 * MIB, 6);
	for (int at = 1; at <= 3; at++) { /* create, map, access */
		swap_out(0);
		fake_fail_at = at;
		swap_in(); /* it is tried again */
		assert(fake_handles == 1 && fake_maps == 1);
		check_all(p, 4 * MIB, 6);
	}
	must_free(p);
}

/* ---- contexts, peers, and what others know ---- */

static void test_a_context_that_ends_takes_its_page_locks_and_streams_along(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	write_all(p, 8 * MIB, 8);
	swap_out(0);
	assert(fake_registered == 8 * MIB && fake_streams == 2);
	nvs_mover_context_ends(&fake_contexts[0]);
	assert(fake_registered == 0 && fake_streams == 0 && fake_events == 0);
	/* AND what is left goes on in another */
	swap_in();
	check_all(p, 8 * MIB, 8);
	assert(nvs_residency_open());
	swap_out(0);
	assert(fake_registered == 8 * MIB);
	swap_in();
	must_free(p);
}

static void test_a_peer_may_use_what_comes_back(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	swap_out(4 * MIB);
	assert(nvs_backing_allow_peer(0, 1) == CUDA_SUCCESS);
	swap_in();
	for (int i = 0; i < FAKE_SLOTS; i++)
		assert(fake_mapped[i].base == 0 || fake_mapped[i].accessors == 3);
	must_free(p);
}

static void test_memory_that_others_know_stays(void)
{
	CUdeviceptr p = must_alloc(12 * MIB);
	nvs_residency_hold(0, p + 5 * MIB, 1);
	assert(now().pinned == 4 * MIB);
	swap_out(4 * MIB);
	assert(!nvs_residency_is_away(0, p + 4 * MIB) && nvs_residency_is_away(0, p));
	swap_in();
	must_free(p);
}

static void test_a_broken_context_is_left_to_the_application(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	swap_out(4 * MIB);
	atomic_store(&fake_copies_fail, true);
	set_target(0);
	UNTIL(now().pinned == 4 * MIB);
	swap_in(); /* contents are lost, but nobody waits for ever */
	assert(nvs_residency_open());
	atomic_store(&fake_copies_fail, false);
	must_free(p);
}

static void test_memory_of_a_context_that_failed_for_good_makes_room(void)
{
	CUdeviceptr p = must_alloc(8 * MIB);
	swap_out(4 * MIB);
	atomic_store(&fake_copies_fail, true);
	atomic_store(&fake_context_fails, true);
	set_target(0);
	UNTIL(now().resident == 0);
	assert(now().pinned == 0);
	swap_in();
	assert(nvs_residency_open());
	atomic_store(&fake_copies_fail, false);
	atomic_store(&fake_context_fails, false);
	must_free(p);
}

static void test_memory_that_cannot_move_waits_for_room(void)
{
	CUdeviceptr p = must_alloc(4 * MIB);
	swap_out(0);
	set_target(6 * MIB);
	UNTIL(now().absent == 0);
	assert(nvs_residency_claim_at_once(0, 2 * MIB));
	assert(!nvs_residency_claim_at_once(0, 2 * MIB));
	assert(now().resident == 6 * MIB);
	nvs_residency_forget(0, 2 * MIB, 0);
	must_free(p);
}

/* ---- schedulers that come and go ---- */

static void test_a_lost_scheduler_stops_what_leaves_not_what_comes(void)
{
	CUdeviceptr p = must_alloc(12 * MIB);
	swap_out(4 * MIB);
	set_target(0);
	UNTIL(now().resident == 0);
	set_target(8 * MIB);
	nvs_residency_orphaned();
	UNTIL(now().resident == 8 * MIB && now().arriving == 0);
	assert(now().target == 8 * MIB);
	/* WHEN another one takes over THEN nothing moves until it speaks */
	nvs_residency_registering();
	assert(now().target == 8 * MIB && now().number == 0);
	/* AND one that grants without ever having set a target means all */
	nvs_residency_granted(0);
	nvs_mover_kick();
	UNTIL(now().absent == 0);
	nvs_residency_orphaned();
	assert(now().target == NVS_UNLIMITED);
	must_free(p);
}

/* ---- unified memory ---- */

static void test_unified_memory_moves_by_prefetches(void)
{
	fake_virtual_memory = 0;
	fake_unified_memory = 1;
	CUdeviceptr p = must_alloc(12 * MIB);
	assert(fake_handles == 0 && fake_native == 1 && now().resident == 12 * MIB);
	swap_out(0);
	assert(fake_prefetched_out == 12 * MIB && now().host == 12 * MIB && fake_registered == 0);
	assert(!nvs_residency_is_away(0, p)); /* its addresses always work */
	set_target(5 * MIB);
	UNTIL(now().resident == 5 * MIB); /* of the second chunk a part, as the driver likes */
	assert(fake_prefetched_in == 4 * MIB);
	/* WHEN its turn comes THEN the rest need not be there */
	assert(nvs_residency_open());
	/* AND after it, all of it may be anywhere, but no more on the card than was allowed */
	nvs_residency_shut();
	assert(now().resident == 5 * MIB && now().absent == 0);
	swap_out(0);
	assert(fake_prefetched_out == 24 * MIB && now().host == 12 * MIB);
	must_free(p);
	assert(fake_native == 0);
}

static void test_unified_memory_may_be_larger_than_the_card(void)
{
	fake_virtual_memory = 0;
	fake_unified_memory = 1;
	assert(nvs_residency_open());
	set_target(4 * MIB);
	CUdeviceptr p = must_alloc(4 * MIB), q = must_alloc(8 * MIB);
	assert(now().resident == 4 * MIB && now().absent == 8 * MIB);
	assert(nvs_residency_open());
	must_free(p);
	must_free(q);
}

/* ---- all at once ---- */

#define THREADS 3
#define ROUNDS 60
static _Atomic bool stop;

/* Allocates and frees without pause, wherever its memory is. */
static void *come_and_go(void *argument)
{
	uint32_t state = 5 + (uint32_t)(uintptr_t)argument;
	CUdeviceptr held[8] = {0};
	fake_current = &fake_contexts[0];
	while (!atomic_load(&stop)) {
		state = state * 1664525u + 1013904223u;
		CUdeviceptr *slot = &held[state >> 29];
		if (*slot != 0) {
			must_free(*slot);
			*slot = 0;
		} else {
			*slot = must_alloc(1 + (state >> 8) % (10 * MIB));
		}
	}
	for (int i = 0; i < 8; i++)
		if (held[i] != 0)
			must_free(held[i]);
	return NULL;
}

/* As the link thread does: turns and targets, with contents checked and changed in each turn. */
static void test_turns_targets_allocations_and_frees_at_once(void)
{
	enum { PIECES = 5 };
	pthread_t threads[THREADS];
	CUdeviceptr pieces[PIECES];
	size_t sizes[PIECES] = {9 * MIB, 3000, 4 * MIB, 2 * MIB + 1, 700};
	for (int i = 0; i < PIECES; i++) {
		pieces[i] = must_alloc(sizes[i]);
		write_all(pieces[i], sizes[i], (uint8_t)i);
	}
	atomic_store(&stop, false);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, come_and_go, (void *)i);
	uint32_t state = 99;
	for (int round = 0; round < ROUNDS; round++) {
		shut();
		for (int i = 0; i < 3; i++) {
			state = state * 1664525u + 1013904223u;
			set_target((state >> 8) % (40 * MIB));
			nvs_sleep_ns((state >> 20) * 200);
		}
		set_target(NVS_UNLIMITED);
		UNTIL(nvs_residency_open());
		for (int i = 0; i < PIECES; i++) {
			check_all(pieces[i], sizes[i], (uint8_t)(i + round));
			write_all(pieces[i], sizes[i], (uint8_t)(i + round + 1));
		}
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < PIECES; i++)
		must_free(pieces[i]);
}

int main(void)
{
	fake_has_contents = true;
	RUN_SWAP(test_contents_leave_and_return_at_the_same_address);
	RUN_SWAP(test_nothing_leaves_while_the_gate_is_open);
	RUN_SWAP(test_a_clean_copy_goes_without_being_copied);
	RUN_SWAP(test_what_was_never_written_is_never_copied);
	RUN_SWAP(test_the_least_leaves_and_slabs_go_last);
	RUN_SWAP(test_a_target_is_never_exceeded_on_the_way_in);
	RUN_SWAP(test_a_chunk_on_its_way_out_may_stay);
	RUN_SWAP(test_a_free_waits_for_its_own_chunks_only);
	RUN_SWAP(test_a_full_card_is_waited_for);
	RUN_SWAP(test_an_allocation_waits_for_room_that_was_given);
	RUN_SWAP(test_a_failure_while_mapping_leaves_nothing_behind);
	RUN_SWAP(test_a_context_that_ends_takes_its_page_locks_and_streams_along);
	RUN_SWAP(test_a_peer_may_use_what_comes_back);
	RUN_SWAP(test_memory_that_others_know_stays);
	RUN_SWAP(test_a_broken_context_is_left_to_the_application);
	RUN_SWAP(test_memory_of_a_context_that_failed_for_good_makes_room);
	RUN_SWAP(test_memory_that_cannot_move_waits_for_room);
	RUN_SWAP(test_a_lost_scheduler_stops_what_leaves_not_what_comes);
	RUN_SWAP(test_unified_memory_moves_by_prefetches);
	RUN_SWAP(test_unified_memory_may_be_larger_than_the_card);
	RUN_SWAP(test_turns_targets_allocations_and_frees_at_once);
	puts("PASS");
	return 0;
}
