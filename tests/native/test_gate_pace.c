/* How much work is in flight while the gate is PACED, and what the samples say the work costs. */
#include "hand_clock.h"

#include "fake_gpu.h"

#include "compute_constants.h"
#include "gate/gate.h"
#include "gate/meter.h"
#include "gate/state.h"
#include "gate/streams.h"

void nvs_link_want(void)
{
}

void nvs_link_active(void)
{
}

void nvs_link_wake(void)
{
}

/* Forget what is known, then measure a few kernels of this cost. */
static void learn_cost(uint64_t cost_ns)
{
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
	nvs_meter_after_fork();
	fake.cost = cost_ns;
	for (int i = 0; i < 8; i++) {
		if (nvs_self != NULL)
			nvs_self->next_sample = nvs_self->next_stop = nvs_self->submissions;
		fake_submit(NULL);
		CHECK(nvs_gate_drain(60000));
		nvs_meter_poll();
	}
}

static void free_running_work_has_no_bound(void)
{
	/* GIVEN an open gate, WHEN more is submitted than any window, THEN nothing waits */
	nvs_gate_open(NVS_GATE_OPEN);
	fake.cost = 50 * NVS_NS_PER_US;
	for (int i = 0; i < 3000; i++)
		fake_submit(NULL);
	CHECK(fake.most_in_flight > NVS_WINDOW_MAX);
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
}

static void paced_work_stays_within_the_budget(void)
{
	/* GIVEN kernels of 1 ms and a budget of 8 ms */
	struct nvs_usage_counters usage;
	learn_cost(NVS_NS_PER_MS);
	nvs_pace_set_budget(8000);
	nvs_gate_open(NVS_GATE_PACED);
	nvs_meter_usage(0, &usage);
	CHECK(usage.window >= 7 && usage.window <= 8);
	/* WHEN many are submitted */
	fake.most_in_flight = 0;
	for (int i = 0; i < 100; i++)
		fake_submit(NULL);
	/* THEN never more than the window is in flight, and never so little that the GPU would run dry */
	CHECK(fake.most_in_flight <= usage.window + 1);
	CHECK(fake.most_in_flight >= usage.window / 2);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_gate_open(NVS_GATE_OPEN);
}

static void a_window_of_a_millisecond_keeps_the_gpu_at_work(void)
{
	static const uint64_t costs_us[] = {5, 30, 66, 110, 300, 600};
	for (size_t i = 0; i < sizeof(costs_us) / sizeof(costs_us[0]); i++) {
		/* GIVEN a budget of 1 ms, and kernels that are shorter */
		uint64_t cost = costs_us[i] * NVS_NS_PER_US;
		learn_cost(cost);
		nvs_pace_set_budget(1000);
		nvs_gate_open(NVS_GATE_PACED);
		/* WHEN many are submitted */
		fake.most_in_flight = 0;
		uint64_t start = nvs_now_ns(), count = 40 * NVS_NS_PER_MS / cost;
		for (uint64_t n = 0; n < count; n++)
			fake_submit(NULL);
		/* THEN about a millisecond of them is in flight, and the GPU never waits for the next one */
		uint64_t most = fake.most_in_flight * cost;
		CHECK(most >= 7 * NVS_NS_PER_MS / 10 && most <= NVS_NS_PER_MS * 13 / 10 + cost);
		CHECK(nvs_gate_drain(60000));
		uint64_t took = nvs_now_ns() - start;
		CHECK(took <= count * cost + NVS_NS_PER_MS);
		CHECK(nvs_gate_close(60000, NULL));
		nvs_pace_set_budget(0);
		nvs_gate_open(NVS_GATE_OPEN);
	}
}

static void a_long_kernel_has_a_window_of_one(void)
{
	/* GIVEN kernels longer than the budget */
	learn_cost(20 * NVS_NS_PER_MS);
	nvs_pace_set_budget(8000);
	nvs_gate_open(NVS_GATE_PACED);
	/* WHEN they are submitted, THEN each waits for the one before it */
	CHECK(nvs_meter_window(0, 0) == 1);
	fake.most_in_flight = 0;
	for (int i = 0; i < 8; i++)
		fake_submit(NULL);
	CHECK(fake.most_in_flight == 1);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_gate_open(NVS_GATE_OPEN);
}

static void longer_kernels_are_noticed_before_any_sample_of_them(void)
{
	/* GIVEN a window for short kernels, and no sample to come */
	learn_cost(10 * NVS_NS_PER_US);
	nvs_pace_set_budget(4000);
	nvs_gate_open(NVS_GATE_PACED);
	nvs_self->next_sample = nvs_self->next_stop = UINT64_MAX;
	/* WHEN they are a hundred times as long */
	fake.cost = NVS_NS_PER_MS;
	for (int i = 0; i < 300; i++)
		fake_submit(NULL);
	/* THEN after one window of them few are in flight */
	pthread_mutex_lock(&fake.lock);
	uint64_t in_flight = fake_in_flight();
	pthread_mutex_unlock(&fake.lock);
	CHECK(in_flight <= 8);
	/* AND when they are short again, many may go soon */
	fake.cost = 10 * NVS_NS_PER_US;
	fake.most_in_flight = 0;
	for (int i = 0; i < 3000; i++)
		fake_submit(NULL);
	CHECK(fake.most_in_flight >= 16);
	nvs_self->next_sample = nvs_self->next_stop = nvs_self->submissions;
	CHECK(nvs_gate_close(60000, NULL));
	nvs_pace_set_budget(0);
	nvs_gate_open(NVS_GATE_OPEN);
}

static void a_slow_wait_does_not_shrink_the_window(void)
{
	/* GIVEN a window */
	learn_cost(NVS_NS_PER_MS);
	nvs_pace_set_budget(50000);
	nvs_gate_open(NVS_GATE_PACED);
	uint32_t before = nvs_meter_window(0, 0);
	/* WHEN the gate is shut for a hundred times what the window holds, with a submitter waiting */
	fake_submit(NULL);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_sleep_ns(100 * NVS_NS_PER_MS);
	nvs_gate_open(NVS_GATE_PACED);
	for (int i = 0; i < 20; i++)
		fake_submit(NULL);
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
	/* THEN the window is the same */
	CHECK(nvs_meter_window(0, 0) * 10 >= before * 9);
	nvs_gate_open(NVS_GATE_OPEN);
}

/* A marker is seen to be reached, so long after the one before it; what may be in flight from then on. */
static uint32_t window_after(struct nvs_pace *pace, uint64_t ns)
{
	struct nvs_marker marker = {.before = pace->waited + 1};
	hand_clock_ns += ns - HAND_CLOCK_LOOK_NS;
	nvs_pace_learn(pace, &marker, pace->opening);
	return nvs_meter_window(0, nvs_pace_cost(pace));
}

static void a_thread_that_wakes_up_late_does_not_shrink_the_window_but_longer_kernels_do(void)
{
	/* GIVEN kernels of 2 ms within a budget of 4, two of which are in flight */
	learn_cost(2 * NVS_NS_PER_MS);
	nvs_pace_set_budget(4000);
	struct nvs_pace *pace = &nvs_context_of(NULL)->pace;
	pace->waited = 0;
	window_after(pace, NVS_NS_PER_MS);
	for (int i = 0; i < 20; i++)
		CHECK(window_after(pace, 2 * NVS_NS_PER_MS) == 2);
	/* WHEN one that waits is late by a kernel and a half, THEN two are in flight all the same */
	CHECK(window_after(pace, 5 * NVS_NS_PER_MS) == 2);
	CHECK(window_after(pace, NVS_NS_PER_MS / 10) == 2);
	/* AND two kernels in a row that are longer than the budget are alone in flight */
	window_after(pace, 5 * NVS_NS_PER_MS);
	CHECK(window_after(pace, 5 * NVS_NS_PER_MS) == 1);
	pace->recent_ns = pace->latest_ns = pace->average_ns = pace->waited = 0;
	nvs_pace_set_budget(0);
}

static void a_window_that_shrank_grows_again_though_every_submission_is_looked_at(void)
{
	/* GIVEN kernels of 1.5 ms of which few were in flight while others on the GPU made them twice as long */
	learn_cost(3 * NVS_NS_PER_MS / 2);
	nvs_pace_set_budget(4000);
	nvs_gate_open(NVS_GATE_PACED);
	const struct nvs_pace *pace = &nvs_context_of(NULL)->pace;
	nvs_self->next_sample = nvs_self->next_stop = UINT64_MAX;
	fake.cost = 7 * NVS_NS_PER_MS / 2;
	for (int i = 0; i < 64; i++)
		fake_submit(NULL);
	CHECK(nvs_meter_window(0, nvs_pace_cost(pace)) == 1);
	/* WHEN the others have gone, and where so little is in flight every next submission is to be marked */
	fake.cost = 3 * NVS_NS_PER_MS / 2;
	for (int i = 0; i < 64; i++) {
		nvs_gate_look_closer();
		fake_submit(NULL);
	}
	/* THEN as many are in flight as before */
	CHECK(nvs_meter_window(0, nvs_pace_cost(pace)) == 3);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_pace_set_budget(0);
	nvs_gate_open(NVS_GATE_OPEN);
}

/* A memset of a few bytes, as cuBLAS puts one before each matmul. */
static void set_a_few_bytes(void)
{
	uint64_t cost = fake.cost;
	nvs_gate_enter_sized(NULL, 512);
	fake.cost = NVS_NS_PER_US;
	fake_launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	fake.cost = cost;
	nvs_gate_leave();
}

static void short_memsets_between_kernels_say_nothing_about_them(void)
{
	/* GIVEN kernels of 3.5 ms, each behind a short memset */
	struct nvs_usage_counters before, after;
	learn_cost(7 * NVS_NS_PER_MS / 2);
	nvs_pace_set_budget(4000);
	nvs_gate_open(NVS_GATE_PACED);
	nvs_meter_usage(0, &before);
	fake.most_in_flight = 0;
	for (int i = 0; i < 100; i++) {
		set_a_few_bytes();
		fake_submit(NULL);
	}
	nvs_meter_usage(0, &after);
	/* THEN one kernel is in flight, with a memset before and behind it, and only kernels are counted and measured
	 */
	CHECK(fake.most_in_flight <= 3);
	CHECK(after.submissions - before.submissions == 100);
	CHECK(nvs_meter_cost(0) > 3 * NVS_NS_PER_MS && nvs_meter_cost(0) < 4 * NVS_NS_PER_MS);
	/* AND where there is nothing else they count too, every second one */
	CHECK(nvs_gate_close(60000, NULL));
	nvs_gate_open(NVS_GATE_OPEN);
	nvs_meter_usage(0, &before);
	for (int i = 0; i < 100; i++)
		set_a_few_bytes();
	nvs_meter_usage(0, &after);
	CHECK(after.submissions - before.submissions == 50);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_pace_set_budget(0);
	nvs_gate_open(NVS_GATE_OPEN);
}

static void while_paced_a_known_cost_is_looked_at_rarely(void)
{
	/* GIVEN kernels of 2 ms whose cost is known from many */
	learn_cost(2 * NVS_NS_PER_MS);
	nvs_pace_set_budget(4000);
	nvs_gate_open(NVS_GATE_PACED);
	for (int i = 0; i < 200; i++) {
		fake_submit(NULL);
		nvs_meter_poll();
	}
	/* WHEN every next one is to be marked, as where little is in flight */
	uint64_t before = fake.timing_events_recorded;
	for (int i = 0; i < 80; i++) {
		nvs_gate_look_closer();
		fake_submit(NULL);
		nvs_meter_poll();
	}
	/* THEN one in eight or so is measured */
	uint64_t samples = (fake.timing_events_recorded - before) / 2;
	CHECK(samples >= 5 && samples <= 20);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_pace_set_budget(0);
	nvs_gate_open(NVS_GATE_OPEN);
}

static void a_marker_belongs_to_one_thread_until_it_is_recorded(void)
{
	/* GIVEN a window of two, so that each submission is told to mark, and two threads between gate and stream */
	struct nvs_thread first = {0}, second = {0}, third = {0};
	uint32_t duty;
	learn_cost(4 * NVS_NS_PER_MS);
	nvs_pace_set_budget(8000);
	CHECK(nvs_pace_admit(&first, NULL, &duty) == NULL && duty == NVS_MARKER);
	CHECK(nvs_pace_admit(&second, NULL, &duty) == NULL && duty == NVS_MARKER);
	CHECK(first.marker != second.marker);
	/* WHEN a third comes, THEN it passes without a marker: both are in use, and nothing is known to be in flight */
	CHECK(nvs_pace_admit(&third, NULL, &duty) == NULL && duty == 0);
	/* AND when they have been recorded, or could not be, there is one again */
	nvs_pace_mark(&first, NULL);
	nvs_pace_mark(&second, NULL);
	CHECK(nvs_gate_drain(60000));
	CHECK(nvs_pace_admit(&third, NULL, &duty) == NULL && duty == NVS_MARKER);
	nvs_pace_mark(&third, NULL);
	CHECK(nvs_gate_drain(60000));
}

static void occupied_time_is_the_sum_of_the_work_and_never_more_than_the_clock_allows(void)
{
	/* GIVEN kernels of a known cost, back to back */
	struct nvs_usage_counters before, after;
	learn_cost(200 * NVS_NS_PER_US);
	nvs_self->next_sample = nvs_self->next_stop =
		nvs_self->submissions; /* all of them belong to samples taken here */
	nvs_meter_usage(0, &before);
	uint64_t start = nvs_now_ns();
	for (int i = 0; i < 1000; i++)
		fake_submit(NULL);
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
	uint64_t wall_us = (nvs_now_ns() - start) / NVS_NS_PER_US;
	/* WHEN the meter is read */
	nvs_meter_usage(0, &after);
	/* THEN all submissions are there; the time, estimated from samples, is within some percent and below the
	 * clock's */
	CHECK(after.submissions - before.submissions == 1000);
	uint64_t occupied = after.occupied_us - before.occupied_us;
	CHECK(occupied <= wall_us + 1000);
	CHECK(occupied >= 150000);
}

static void short_kernels_are_sampled_rarely_and_long_ones_always(void)
{
	learn_cost(5 * NVS_NS_PER_US);
	uint64_t before = fake.timing_events_recorded;
	for (int i = 0; i < 10000; i++)
		fake_submit(NULL);
	uint64_t samples = (fake.timing_events_recorded - before) / 2;
	CHECK(samples >= 5 && samples <= 50); /* about one in 800 */
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
	learn_cost(10 * NVS_NS_PER_MS);
	before = fake.timing_events_recorded;
	for (int i = 0; i < 10; i++)
		fake_submit(NULL);
	CHECK((fake.timing_events_recorded - before) / 2 >= 9);
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
}

static void a_closer_look_measures_what_comes_next(void)
{
	/* GIVEN short kernels, of which one in hundreds is measured */
	learn_cost(5 * NVS_NS_PER_US);
	for (int i = 0; i < 2000; i++)
		fake_submit(NULL);
	CHECK(nvs_gate_drain(60000));
	nvs_meter_poll();
	/* WHEN a closer look is asked for THEN the next submission is measured; in a turn, one of the next round */
	uint64_t before = fake.timing_events_recorded;
	nvs_gate_look_closer();
	CHECK(nvs_gate_state() == NVS_GATE_OPEN);
	fake_submit(NULL);
	CHECK(fake.timing_events_recorded == before + 2);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_gate_open(NVS_GATE_PACED);
	for (unsigned i = 0; i < NVS_ROUND; i++)
		fake_submit(NULL);
	CHECK(fake.timing_events_recorded >= before + 4);
	CHECK(nvs_gate_close(60000, NULL));
	nvs_gate_open(NVS_GATE_OPEN);
}

int main(void)
{
	fake_install(0);
	free_running_work_has_no_bound();
	paced_work_stays_within_the_budget();
	a_window_of_a_millisecond_keeps_the_gpu_at_work();
	a_long_kernel_has_a_window_of_one();
	longer_kernels_are_noticed_before_any_sample_of_them();
	a_slow_wait_does_not_shrink_the_window();
	a_thread_that_wakes_up_late_does_not_shrink_the_window_but_longer_kernels_do();
	a_window_that_shrank_grows_again_though_every_submission_is_looked_at();
	short_memsets_between_kernels_say_nothing_about_them();
	while_paced_a_known_cost_is_looked_at_rarely();
	a_marker_belongs_to_one_thread_until_it_is_recorded();
	occupied_time_is_the_sum_of_the_work_and_never_more_than_the_clock_allows();
	short_kernels_are_sampled_rarely_and_long_ones_always();
	a_closer_look_measures_what_comes_next();
	CHECK(fake.pushed == 0);
	return 0;
}
