/* Slices against a scripted scheduler: who may submit when, how a slice ends, and what is told of it. */
#include "link_fixture.h"

#include "client/client.h"
#include "gate/streams.h"

#define GRANT 7
#define BUDGET_4MS 4000u

static void terms(uint32_t gpu, uint32_t flags)
{
	SCHEDULER_SEND(NVS_TERMS, struct nvs_terms message = {.gpu = gpu, .flags = flags, .in_flight_us = BUDGET_4MS});
}

static void turn_ok(uint32_t gpu, uint64_t number, uint32_t length_us)
{
	SCHEDULER_SEND(
		NVS_TURN_OK, struct nvs_turn_ok message = {.gpu = gpu, .number = number, .length_us = length_us});
}

static void end_turn(uint32_t gpu, uint64_t number)
{
	SCHEDULER_SEND(NVS_END_TURN, struct nvs_end_turn message = {.gpu = gpu, .number = number});
}

static void expect_asked(uint32_t gpu)
{
	struct nvs_req_turn asked;
	scheduler_expect(NVS_REQ_TURN, &asked, sizeof(asked));
	CHECK(asked.gpu == gpu);
}

static struct nvs_turn_over expect_over(uint64_t number, uint32_t reason)
{
	struct nvs_turn_over over;
	scheduler_expect(NVS_TURN_OVER, &over, sizeof(over));
	if (over.number != number || over.reason != reason)
		fprintf(stderr, "turn %llu is over for reason %u\n", (unsigned long long)over.number, over.reason);
	CHECK(over.number == number && over.reason == reason && over.busy_us <= over.used_us);
	return over;
}

/* The last word on a slice, with or without one while work was still in flight. */
static struct nvs_turn_over expect_ended(uint64_t number, uint32_t reason)
{
	struct nvs_turn_over over = expect_over(number, reason);
	if (over.pending_us != 0)
		over = expect_over(number, reason);
	CHECK(over.pending_us == 0);
	return over;
}

/* Registered, granted, and told to take slices. */
static void taking_slices(void)
{
	registered(NVS_SCHED_ON);
	running(GRANT, 0, 0);
	terms(0, NVS_FLAG_TURNS);
	wait_for_gate(NVS_GATE_REST);
}

static void wait_until_idle_is_known(void)
{
	while (nvs_gate_used_since() != 0)
		nvs_sleep_ns(100 * NVS_NS_PER_US);
}

static void burst(int count)
{
	for (int i = 0; i < count; i++)
		CHECK(fake_submit(NULL) == CUDA_SUCCESS);
}

/* ---- whose slice it is ---- */

static void work_waits_for_a_slice_and_asks_once(void)
{
	taking_slices();
	int before = atomic_load(&landed);
	pthread_t submitter = start_submitting(3);
	expect_asked(0);
	scheduler_expect_silence(20);
	CHECK(atomic_load(&landed) == before);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	CHECK(nvs_gate_state() == NVS_GATE_PACED);
}

/* A submitter in its first slice, which lasts until told: the GPU is held, and more than a window waits. */
static pthread_t start_in_slice(void)
{
	fake.cost = FAKE_HELD;
	pthread_t submitter = start_submitting(2 * NVS_WINDOW_MAX);
	expect_asked(0);
	turn_ok(0, 1, 0);
	while (nvs_pace_waiting() == 0)
		nvs_sleep_ns(100 * NVS_NS_PER_US);
	return submitter;
}

static void a_slice_ends_after_its_length_and_tells_what_was_used(void)
{
	taking_slices();
	uint64_t start = nvs_now_ns();
	pthread_t submitter = start_in_slice();
	uint64_t used_since = nvs_gate_used_since();
	turn_ok(0, 1, 50000);
	CHECK(expect_over(1, NVS_TURN_ENDED).pending_us > 0);
	uint64_t held_us = (nvs_now_ns() - used_since) / NVS_NS_PER_US;
	fake_let_go();
	struct nvs_turn_over over = expect_over(1, NVS_TURN_ENDED);
	uint64_t wall_us = (nvs_now_ns() - start) / NVS_NS_PER_US;
	/* THEN nothing runs any more, the bill is what the clock says, and the next slice is asked for already */
	int before = atomic_load(&landed);
	CHECK(fake_all_done());
	CHECK(over.pending_us == 0 && over.used_us >= held_us && over.used_us <= wall_us && over.wants == 1);
	scheduler_expect_silence(20);
	CHECK(atomic_load(&landed) == before);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
}

static struct nvs_turn_over slice_with(int launches, uint64_t number)
{
	pthread_t submitter = start_submitting(launches);
	expect_asked(0);
	turn_ok(0, number, 0);
	pthread_join(submitter, NULL);
	end_turn(0, number);
	return expect_ended(number, NVS_TURN_TOLD);
}

static void what_passes_before_and_after_the_work_is_not_used(void)
{
	/* GIVEN a first slice, in which work from before could have run on */
	taking_slices();
	slice_with(1, 1);
	/* WHEN there is work for 30 ms in the next */
	fake.cost = 15 * NVS_NS_PER_MS;
	uint64_t start = nvs_now_ns();
	struct nvs_turn_over over = slice_with(2, 2);
	uint64_t wall = nvs_now_ns() - start;
	/* THEN what is told is what the GPU's clock says, but where this host was slower than is believed */
	const struct nvs_context *context = nvs_context_of(NULL);
	uint64_t span = fake_event_at(context->legacy.last) - fake_event_at(context->pace.begun);
	CHECK(span >= 30 * NVS_NS_PER_MS && span < wall);
	CHECK(over.used_us + 1 >= span / NVS_NS_PER_US);
	CHECK(over.used_us <= span / NVS_NS_PER_US + 1 || wall > span + NVS_GRAIN_NS);
}

static _Atomic bool late_to_wake;

static CUresult synchronize_late(CUevent event)
{
	CUresult result = fake_event_synchronize(event);
	while (atomic_load(&late_to_wake))
		nvs_sleep_ns(100 * NVS_NS_PER_US);
	return result;
}

/* One launch that does not end before the test lets go, in slice 1 without a length. */
static void hold_one_launch(void)
{
	fake.cost = FAKE_HELD;
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
}

static void what_is_in_flight_at_the_end_is_told_at_once(void)
{
	taking_slices();
	hold_one_launch();
	end_turn(0, 1);
	struct nvs_turn_over first = expect_over(1, NVS_TURN_TOLD);
	CHECK(first.pending_us > 0 && first.wants == 0);
	scheduler_expect_silence(20);
	fake_let_go();
	struct nvs_turn_over last = expect_over(1, NVS_TURN_TOLD);
	CHECK(last.pending_us == 0 && last.used_us >= first.used_us + 20000);
	CHECK(fake_all_done());
}

static void an_idle_slice_with_a_length_is_given_up(void)
{
	taking_slices();
	uint64_t start = nvs_now_ns();
	hold_one_launch();
	turn_ok(0, 1, 10000000);
	scheduler_expect_silence(20);
	fake_let_go();
	struct nvs_turn_over over = expect_ended(1, NVS_TURN_IDLE);
	/* THEN the idle end of it is no used time; when work ended is known from two looks, however far apart */
	CHECK(over.used_us >= 10000 && over.used_us <= (nvs_now_ns() - start) / NVS_NS_PER_US && over.wants == 0);
	/* AND the next submission asks */
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
}

static void a_slice_is_kept_for_those_who_wake_up_to_submit_more_but_not_for_long(void)
{
	/* GIVEN one who waits for the GPU to catch up, in a slice with a length */
	taking_slices();
	nvs_real.cuEventSynchronize = synchronize_late;
	uint64_t start = nvs_now_ns();
	pthread_t submitter = start_in_slice();
	turn_ok(0, 1, 10000000);
	/* WHEN the GPU has, and the waiter does not wake up */
	atomic_store(&late_to_wake, true);
	fake_let_go();
	/* THEN the slice is given up, but not as soon as that of somebody who submits nothing; and not asked for again
	 */
	struct nvs_turn_over over = expect_ended(1, NVS_TURN_IDLE);
	CHECK(nvs_now_ns() - start >= over.used_us * NVS_NS_PER_US + NVS_PAUSE_NS && over.wants == 0);
	scheduler_expect_silence(20);
	/* AND asked for when it does */
	atomic_store(&late_to_wake, false);
	expect_asked(0);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
}

static void a_slice_until_told_is_kept_when_idle_and_gaps_are_not_used_time(void)
{
	taking_slices();
	fake.cost = NVS_NS_PER_MS;
	uint64_t start = nvs_now_ns();
	pthread_t submitter = start_submitting(5);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	wait_until_idle_is_known();
	uint64_t idle_since = nvs_now_ns();
	scheduler_expect_silence(100);
	uint64_t gap_us = (nvs_now_ns() - idle_since) / NVS_NS_PER_US;
	burst(5); /* needs no message */
	wait_until_idle_is_known();
	end_turn(0, 1);
	struct nvs_turn_over over = expect_over(1, NVS_TURN_TOLD);
	uint64_t wall_us = (nvs_now_ns() - start) / NVS_NS_PER_US;
	CHECK(over.pending_us == 0 && over.used_us >= 5000 && over.used_us <= wall_us - gap_us);
	CHECK(over.busy_us > 0);
}

/* Steps of a short and a long kernel, a few of them in flight, as frameworks make them that wait for the GPU
 * themselves.
 */
#define LONG_NS (40 * NVS_NS_PER_MS) /* beside which what a slow host needs is nothing */

static void alternate(void)
{
	static int count;
	fake.cost = count++ % 2 == 0 ? NVS_NS_PER_US : LONG_NS;
}

static void *submit_steps(void *steps)
{
	for (int i = 0; i < *(int *)steps; i++) {
		while (fake_in_flight() > 4)
			nvs_sleep_ns(NVS_NS_PER_MS);
		burst(2);
	}
	return NULL;
}

static void long_kernels_between_short_ones_keep_the_gpu_busy(void)
{
	taking_slices();
	int few = 2000, steps = 20;
	fake.cost = NVS_NS_PER_US;
	pthread_t submitter = start_submitting(few); /* what was measured before is far too short */
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	wait_until_idle_is_known();
	end_turn(0, 1);
	expect_ended(1, NVS_TURN_TOLD);
	fake.on_launch = alternate;
	CHECK(pthread_create(&submitter, NULL, submit_steps, &steps) == 0);
	expect_asked(0);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
	wait_until_idle_is_known();
	end_turn(0, 2);
	struct nvs_turn_over over = expect_ended(2, NVS_TURN_TOLD);
	CHECK(over.used_us >= 19 * LONG_NS / NVS_NS_PER_US && over.busy_us >= over.used_us * 8 / 10);
}

static void take_ten_microseconds(void)
{
	uint64_t until = nvs_now_ns() + 10 * NVS_NS_PER_US;
	while (nvs_now_ns() < until)
		;
}

static void kernels_that_are_over_before_the_next_is_submitted_do_not_keep_the_gpu_busy(void)
{
	taking_slices();
	fake.cost = 7 * NVS_NS_PER_US; /* so that by the samples alone it would be */
	fake.on_launch = take_ten_microseconds;
	int found = 0;
	for (uint64_t number = 1; number <= 5; number++) {
		struct nvs_turn_over over = slice_with(2000, number);
		CHECK(over.used_us >= 20000 && over.busy_us > 0);
		found += over.busy_us * 2 < over.used_us;
	}
	CHECK(found >= 3); /* a thread that loses its core within a sample makes that one long */
}

static void an_idle_slice_that_is_given_a_length_ends(void)
{
	taking_slices();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	wait_until_idle_is_known();
	turn_ok(0, 1, 4000000);
	expect_ended(1, NVS_TURN_IDLE);
}

static void a_repeated_number_changes_the_length(void)
{
	taking_slices();
	pthread_t submitter = start_in_slice();
	turn_ok(0, 1, 50000000);
	turn_ok(0, 1, 20000);
	CHECK(expect_over(1, NVS_TURN_ENDED).pending_us > 0);
	fake_let_go();
	CHECK(expect_over(1, NVS_TURN_ENDED).used_us < 20000000);
	/* WHEN what is over is extended or ended, for the messages crossed, THEN nothing happens */
	turn_ok(0, 1, 0);
	end_turn(0, 1);
	scheduler_expect_silence(20);
	CHECK(nvs_gate_state() == NVS_GATE_REST);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
}

static void the_next_slice_may_begin_while_the_last_one_still_drains(void)
{
	taking_slices();
	uint64_t start = nvs_now_ns();
	hold_one_launch();
	scheduler_expect_silence(50);
	end_turn(0, 1);
	CHECK(expect_over(1, NVS_TURN_TOLD).pending_us > 0);
	turn_ok(0, 2, 0);
	struct nvs_turn_over over = expect_over(1, NVS_TURN_TOLD);
	CHECK(over.pending_us == 0);
	scheduler_expect_silence(50);
	end_turn(0, 2);
	CHECK(expect_over(2, NVS_TURN_TOLD).pending_us > 0);
	fake_let_go();
	/* THEN each slice is billed its part of the kernel */
	struct nvs_turn_over rest = expect_over(2, NVS_TURN_TOLD);
	CHECK(over.used_us >= 45000 && rest.used_us >= 45000 && rest.pending_us == 0);
	CHECK(over.used_us + rest.used_us <= (nvs_now_ns() - start) / NVS_NS_PER_US);
}

/* A launch that outlives its slice; what was told when it was no longer waited for. */
static struct nvs_turn_over run_on(void)
{
	hold_one_launch();
	end_turn(0, 1);
	CHECK(expect_over(1, NVS_TURN_TOLD).pending_us > 0);
	struct nvs_turn_over over = expect_over(1, NVS_TURN_STUCK);
	CHECK(over.pending_us > 0 && over.used_us >= 1000000);
	return over;
}

static void work_that_does_not_end_is_told_of_as_long_as_it_runs(void)
{
	taking_slices();
	struct nvs_turn_over first = run_on(), again = expect_over(1, NVS_TURN_STUCK);
	CHECK(again.pending_us > 0 && again.used_us >= first.used_us + 1000000);
	fake_let_go();
	struct nvs_turn_over last = expect_over(1, NVS_TURN_STUCK);
	CHECK(last.pending_us == 0 && last.used_us >= again.used_us && last.wants == 0);
	scheduler_expect_silence(20);
	/* THEN the next slice opens as usual */
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
}

static void work_that_runs_on_becomes_part_of_the_next_slice(void)
{
	taking_slices();
	uint64_t start = nvs_now_ns();
	struct nvs_turn_over first = run_on();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 2, 0);
	struct nvs_turn_over over = expect_over(1, NVS_TURN_STUCK);
	CHECK(over.pending_us == 0 && over.used_us >= first.used_us && over.wants == 0);
	pthread_join(submitter, NULL);
	end_turn(0, 2);
	CHECK(expect_over(2, NVS_TURN_TOLD).pending_us > 0);
	fake_let_go();
	struct nvs_turn_over rest = expect_over(2, NVS_TURN_TOLD);
	CHECK(rest.pending_us == 0);
	CHECK(over.used_us + rest.used_us <= (nvs_now_ns() - start) / NVS_NS_PER_US);
}

static void work_that_runs_on_is_not_told_of_when_slices_are_not_needed_any_more(void)
{
	taking_slices();
	run_on();
	terms(0, 0);
	wait_for_gate(NVS_GATE_OPEN);
	fake_let_go();
	scheduler_expect_silence(20);
}

/* ---- with grants, and without ---- */

static void a_dropped_grant_ends_the_slice_first(void)
{
	taking_slices();
	fake.cost = 30 * NVS_NS_PER_MS;
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = GRANT, .deadline_ms = 60000});
	struct nvs_turn_over over = expect_over(1, NVS_TURN_TOLD);
	CHECK(over.pending_us == 0 && over.used_us >= 29000 && fake_all_done());
	expect_release(GRANT, NVS_RELEASE_TOLD);
	/* WHEN there is work again, THEN it needs the grant, then a slice */
	struct nvs_req_lock asked;
	submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	turn_ok(0, 2, 0); /* without a grant it means nothing */
	grant(0, GRANT + 1, 0, 0);
	expect_asked(0);
	turn_ok(0, 3, 0);
	pthread_join(submitter, NULL);
}

static void who_waits_for_a_slice_asks_for_a_dropped_grant_at_once(void)
{
	taking_slices();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = GRANT, .deadline_ms = 60000});
	expect_release(GRANT, NVS_RELEASE_TOLD);
	struct nvs_req_lock asked;
	uint64_t start = nvs_now_ns();
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	CHECK(nvs_now_ns() - start < 700 * NVS_NS_PER_MS); /* and not when its sleep of a second is over */
	grant(0, GRANT + 1, 0, 0);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
}

static void a_grant_that_could_not_be_drained_still_needs_slices(void)
{
	taking_slices();
	hold_one_launch();
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = GRANT, .deadline_ms = 5});
	expect_over(1, NVS_TURN_STUCK);
	expect_release(GRANT, NVS_RELEASE_STUCK);
	CHECK(nvs_gate_state() == NVS_GATE_REST);
	fake_let_go();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 2, 0);
	pthread_join(submitter, NULL);
}

static void who_waits_for_a_slice_does_not_give_up_its_grant_as_idle(void)
{
	taking_slices();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	grant(0, GRANT, NVS_FLAG_CONTENDED, 0);
	scheduler_expect_silence(60);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	/* WHEN it is idle in its slice, THEN it does, and the slice ends with it */
	expect_over(1, NVS_TURN_TOLD);
	expect_release(GRANT, NVS_RELEASE_IDLE);
}

static void terms_without_slices_open_the_gate_and_void_the_slice(void)
{
	taking_slices();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	terms(0, 0);
	pthread_join(submitter, NULL);
	wait_for_gate(NVS_GATE_OPEN);
	/* WHEN they come and go within a slice, THEN nothing more is told of it */
	terms(0, NVS_FLAG_TURNS);
	wait_for_gate(NVS_GATE_REST);
	submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	terms(0, 0);
	wait_for_gate(NVS_GATE_OPEN);
	end_turn(0, 1);
	burst(5);
	scheduler_expect_silence(20);
	/* AND an exclusive grant is paced as ever */
	grant(0, GRANT, NVS_FLAG_EXCLUSIVE, 0);
	wait_for_gate(NVS_GATE_PACED);
}

static void without_a_scheduler_nobody_waits_and_its_terms_are_forgotten(void)
{
	taking_slices();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	scheduler_vanish();
	pthread_join(submitter, NULL);
	wait_for_gate(NVS_GATE_OPEN);
	scheduler_listen();
	CHECK(accept_client(NVS_SCHED_ON).gpus[0].grant == GRANT);
	burst(3);
	CHECK(nvs_gate_state() == NVS_GATE_OPEN);
}

static void sched_off_ends_a_slice_and_opens_the_gate(void)
{
	taking_slices();
	pthread_t submitter = start_submitting(1);
	expect_asked(0);
	turn_ok(0, 1, 0);
	pthread_join(submitter, NULL);
	SCHEDULER_SEND(NVS_SCHED_OFF, struct nvs_sched_off message = {.client_id = ID});
	wait_for_gate(NVS_GATE_OPEN);
	burst(3);
	scheduler_expect_silence(20);
}

static void a_gang_needs_a_slice_on_each_of_its_gpus_and_they_end_together(void)
{
	struct {
		struct nvs_attach attach;
		struct nvs_gpu_entry gpu;
	} further;
	registered(NVS_SCHED_ON);
	running(GRANT, 0, 0);
	pthread_t attaching = start_attach(1);
	scheduler_expect(NVS_ATTACH, &further, sizeof(further));
	send_limit(1, 0, 15000 * MIB);
	CHECK(result_of(attaching) == CUDA_SUCCESS);
	terms(NVS_ALL_GPUS, NVS_FLAG_TURNS);
	pthread_t submitter = start_submitting(1);
	struct nvs_req_lock asked;
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	CHECK(asked.gpu == 1);
	scheduler_expect_silence(20); /* no slice is asked for before it could be used */
	grant(1, 9, 0, 0);
	expect_asked(0);
	expect_asked(1);
	/* WHEN one slice comes and its time passes, THEN it was not used */
	turn_ok(1, 1, 5000);
	struct nvs_turn_over over = expect_over(1, NVS_TURN_ENDED);
	CHECK(over.gpu == 1 && over.used_us == 0 && over.wants == 1);
	turn_ok(1, 2, 0);
	turn_ok(0, 3, 0);
	pthread_join(submitter, NULL);
	end_turn(1, 2);
	CHECK(expect_ended(3, NVS_TURN_TOLD).gpu == 0);
	CHECK(expect_ended(2, NVS_TURN_TOLD).gpu == 1);
	CHECK(nvs_gate_state() == NVS_GATE_REST);
}

static void captures_pass_the_resting_gate(void)
{
	CUstream stream;
	CUgraph graph;
	CHECK(cuStreamCreate(&stream, 1) == CUDA_SUCCESS);
	taking_slices();
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(fake_submit(stream) == CUDA_SUCCESS && fake.captured == 1);
	CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	scheduler_expect_silence(20);
}

static void a_child_forked_in_a_slice_runs_freely(void)
{
	taking_slices();
	pid_t child = fork();
	if (child == 0) {
		fake_after_fork();
		CHECK(nvs_gate_state() == NVS_GATE_OPEN);
		_exit(fake_submit(NULL) == CUDA_SUCCESS ? 0 : 1);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(nvs_gate_state() == NVS_GATE_REST);
}

/* ---- under load ---- */

static _Atomic bool may_land, stop;

static void check_that_it_may(void)
{
	CHECK(atomic_load(&may_land));
}

static void *submit_until_stopped(void *stream)
{
	while (!atomic_load(&stop))
		CHECK(fake_submit(stream) == CUDA_SUCCESS);
	return NULL;
}

static struct nvs_turn_over skip_until_over(uint64_t number)
{
	struct nvs_turn_over over;
	uint16_t type;
	do
		type = scheduler_receive(&over, sizeof(over));
	while (type != NVS_TURN_OVER || over.number != number || over.pending_us != 0);
	return over;
}

static void nothing_lands_after_the_last_word_on_a_slice(void)
{
	enum { THREADS = 4, ROUNDS = 60 };
	pthread_t submitters[THREADS];
	taking_slices();
	fake.cost = 20 * NVS_NS_PER_US;
	fake.on_launch = check_that_it_may;
	for (intptr_t i = 0; i < THREADS; i++) {
		CUstream stream = NULL;
		CHECK(i == 0 || cuStreamCreate(&stream, 1) == CUDA_SUCCESS);
		CHECK(pthread_create(&submitters[i], NULL, submit_until_stopped, stream) == 0);
	}
	/* WHEN slices end by their length, are told to, or both at once, with free running now and then in between */
	for (uint64_t number = 1; number <= ROUNDS; number++) {
		atomic_store(&may_land, true);
		if (number % 10 == 0) {
			terms(0, 0);
			wait_for_gate(NVS_GATE_OPEN);
			terms(0, NVS_FLAG_TURNS);
			wait_for_gate(NVS_GATE_REST);
		}
		turn_ok(0, number, number % 3 == 0 ? 0 : 2000);
		if (number % 3 != 1)
			end_turn(0, number);
		skip_until_over(number);
		/* THEN after the last word of each nothing is submitted, and nothing runs */
		atomic_store(&may_land, false);
		CHECK(fake_all_done());
	}
	atomic_store(&may_land, true);
	atomic_store(&stop, true);
	terms(0, 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(submitters[i], NULL);
}

int main(void)
{
	char directory[] = "/tmp/nvshare-test-XXXXXX";
	CHECK(mkdtemp(directory) != NULL);
#define RUN(test) run(#test, test, directory)
	RUN(work_waits_for_a_slice_and_asks_once);
	RUN(a_slice_ends_after_its_length_and_tells_what_was_used);
	RUN(what_passes_before_and_after_the_work_is_not_used);
	RUN(what_is_in_flight_at_the_end_is_told_at_once);
	RUN(an_idle_slice_with_a_length_is_given_up);
	RUN(a_slice_is_kept_for_those_who_wake_up_to_submit_more_but_not_for_long);
	RUN(a_slice_until_told_is_kept_when_idle_and_gaps_are_not_used_time);
	RUN(long_kernels_between_short_ones_keep_the_gpu_busy);
	RUN(kernels_that_are_over_before_the_next_is_submitted_do_not_keep_the_gpu_busy);
	RUN(an_idle_slice_that_is_given_a_length_ends);
	RUN(a_repeated_number_changes_the_length);
	RUN(the_next_slice_may_begin_while_the_last_one_still_drains);
	RUN(work_that_does_not_end_is_told_of_as_long_as_it_runs);
	RUN(work_that_runs_on_becomes_part_of_the_next_slice);
	RUN(work_that_runs_on_is_not_told_of_when_slices_are_not_needed_any_more);
	RUN(a_dropped_grant_ends_the_slice_first);
	RUN(who_waits_for_a_slice_asks_for_a_dropped_grant_at_once);
	RUN(a_grant_that_could_not_be_drained_still_needs_slices);
	RUN(who_waits_for_a_slice_does_not_give_up_its_grant_as_idle);
	RUN(terms_without_slices_open_the_gate_and_void_the_slice);
	RUN(without_a_scheduler_nobody_waits_and_its_terms_are_forgotten);
	RUN(sched_off_ends_a_slice_and_opens_the_gate);
	RUN(a_gang_needs_a_slice_on_each_of_its_gpus_and_they_end_together);
	RUN(captures_pass_the_resting_gate);
	RUN(a_child_forked_in_a_slice_runs_freely);
	RUN(nothing_lands_after_the_last_word_on_a_slice);
	rmdir(directory);
	return 0;
}
