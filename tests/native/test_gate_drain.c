/* What a closing gate waits for, what it lets through, and what it leaves alone. */
#include "fake_gpu.h"

#include <sys/wait.h>

#include "gate/gate.h"
#include "gate/meter.h"
#include "gate/state.h"
#include "gate/streams.h"

#define NON_BLOCKING 1u
#define LONG_MS 60000u

static _Atomic int wants;

void nvs_link_want(void)
{
	atomic_fetch_add(&wants, 1);
}

void nvs_link_active(void)
{
}

static _Atomic int wakes;

void nvs_link_wake(void)
{
	atomic_fetch_add(&wakes, 1);
}

static void close_waits_for_every_stream(void)
{
	/* GIVEN work in the legacy stream and in a non-blocking one */
	CUstream stream;
	CHECK(cuStreamCreate(&stream, NON_BLOCKING) == CUDA_SUCCESS);
	fake.cost = 5 * NVS_NS_PER_MS;
	fake_submit(NULL);
	for (int i = 0; i < 4; i++)
		fake_submit(stream);
	/* WHEN the gate closes */
	CHECK(!fake_all_done());
	CHECK(nvs_gate_close(LONG_MS, NULL));
	/* THEN it returns when all of it is finished */
	CHECK(fake_all_done());
	nvs_gate_open(NVS_GATE_OPEN);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

static void close_waits_for_the_work_of_a_destroyed_stream(void)
{
	/* GIVEN a stream that was destroyed with work under way */
	CUstream stream;
	CHECK(cuStreamCreate(&stream, NON_BLOCKING) == CUDA_SUCCESS);
	fake.cost = 20 * NVS_NS_PER_MS;
	fake_submit(stream);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	/* WHEN the gate closes, THEN it waits for that work */
	CHECK(!fake_all_done());
	CHECK(nvs_gate_close(LONG_MS, NULL));
	CHECK(fake_all_done());
	nvs_gate_open(NVS_GATE_OPEN);
}

static void close_gives_up_at_its_deadline(void)
{
	/* GIVEN work that runs for long */
	fake.cost = 400 * NVS_NS_PER_MS;
	fake_submit(NULL);
	/* WHEN the gate is closed with a short deadline */
	uint64_t drain_us = 0;
	CHECK(!nvs_gate_close(2, &drain_us));
	/* THEN the gate is open again while the work still runs */
	CHECK(nvs_gate_state() == NVS_GATE_OPEN);
	CHECK(drain_us >= 2000);
	CHECK(!fake_all_done());
	CHECK(nvs_gate_drain(LONG_MS));
	CHECK(fake_all_done());
}

static _Atomic bool inside, may_return;

static void stay_in_the_call(void)
{
	atomic_store(&inside, true);
	while (!atomic_load(&may_return))
		nvs_sleep_ns(1000);
}

static void *submit_one(void *unused)
{
	fake_submit(NULL);
	return unused;
}

static void close_waits_for_a_thread_inside_a_call(void)
{
	/* GIVEN a thread that is inside a long blocking call */
	pthread_t thread;
	fake.cost = 0;
	fake.on_launch = stay_in_the_call;
	pthread_create(&thread, NULL, submit_one, NULL);
	while (!atomic_load(&inside))
		nvs_sleep_ns(1000);
	/* WHEN the gate closes, THEN the deadline covers it */
	CHECK(!nvs_gate_close(5, NULL));
	atomic_store(&may_return, true);
	pthread_join(thread, NULL);
	fake.on_launch = NULL;
	CHECK(nvs_gate_close(LONG_MS, NULL));
	nvs_gate_open(NVS_GATE_OPEN);
}

static void a_submitter_waits_at_the_shut_gate_and_asks(void)
{
	/* GIVEN a shut gate */
	pthread_t thread;
	uint64_t before = fake.launches;
	atomic_store(&wants, 0);
	nvs_gate_shut();
	/* WHEN a thread submits */
	pthread_create(&thread, NULL, submit_one, NULL);
	while (atomic_load(&wants) == 0)
		nvs_sleep_ns(1000);
	/* THEN it asks, does not submit, and holds up no closer */
	CHECK(nvs_gate_close(LONG_MS, NULL));
	CHECK(fake.launches == before);
	nvs_gate_open(NVS_GATE_OPEN);
	pthread_join(thread, NULL);
	CHECK(fake.launches == before + 1);
}

struct capturing {
	CUstream stream;
	_Atomic bool begun, finish;
};

static void *capture_while_the_gate_shuts(void *argument)
{
	struct capturing *capturing = argument;
	CUgraph graph;
	CHECK(cuStreamBeginCapture_v2(capturing->stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
	atomic_store(&capturing->begun, true);
	while (nvs_gate_state() != NVS_GATE_SHUT)
		nvs_sleep_ns(1000);
	for (int i = 0; i < 100; i++)
		fake_submit(capturing->stream);
	while (!atomic_load(&capturing->finish))
		nvs_sleep_ns(1000);
	CHECK(cuStreamEndCapture(capturing->stream, &graph) == CUDA_SUCCESS);
	return NULL;
}

static void *finish_soon(void *argument)
{
	nvs_sleep_ns(5 * NVS_NS_PER_MS);
	atomic_store(&((struct capturing *)argument)->finish, true);
	return NULL;
}

static void a_capture_goes_on_behind_a_shut_gate_and_the_drain_waits_for_its_end(void)
{
	/* GIVEN a stream that captures; the fake GPU fails the test when the legacy stream is touched meanwhile */
	struct capturing capturing = {0};
	pthread_t capturer, finisher;
	uint64_t captured = fake.captured;
	CHECK(cuStreamCreate(&capturing.stream, 0) == CUDA_SUCCESS);
	pthread_create(&capturer, NULL, capture_while_the_gate_shuts, &capturing);
	while (!atomic_load(&capturing.begun))
		nvs_sleep_ns(1000);
	/* WHEN a drain is asked for, or the gate closes with a deadline before the capture's end */
	CHECK(!nvs_gate_drain(1));
	CHECK(!nvs_gate_close(20, NULL));
	/* THEN launches into the graph have passed, and a later close succeeds once the capture has ended */
	while (fake.captured < captured + 100)
		nvs_sleep_ns(1000);
	pthread_create(&finisher, NULL, finish_soon, &capturing);
	CHECK(nvs_gate_close(LONG_MS, NULL));
	CHECK(atomic_load(&nvs_captures) == 0);
	nvs_gate_open(NVS_GATE_OPEN);
	pthread_join(capturer, NULL);
	pthread_join(finisher, NULL);
	CHECK(cuStreamDestroy_v2(capturing.stream) == CUDA_SUCCESS);
}

static void nothing_is_measured_while_a_stream_captures(void)
{
	/* GIVEN one stream that captures and another that works */
	CUstream capturing, working;
	CUgraph graph;
	CHECK(cuStreamCreate(&capturing, 0) == CUDA_SUCCESS && cuStreamCreate(&working, 0) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	uint64_t before = fake.timing_events_recorded;
	/* WHEN there are more submissions than any stride */
	fake.cost = 0;
	for (unsigned i = 0; i < 2 * NVS_WINDOW_MAX; i++) {
		fake_submit(working);
		fake_submit(capturing);
	}
	/* THEN none was measured; a destroyed stream ends its capture */
	CHECK(fake.timing_events_recorded == before);
	CHECK(cuStreamEndCapture(capturing, &graph) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(cuStreamDestroy_v2(capturing) == CUDA_SUCCESS && cuStreamDestroy_v2(working) == CUDA_SUCCESS);
	CHECK(atomic_load(&nvs_captures) == 0);
}

static void submit_inside_a_submission(void)
{
	fake.on_launch = NULL;
	fake_submit(NULL);
	CHECK(atomic_load(&nvs_self->in_call) != 0);
}

static void a_nested_submission_passes_and_leaves_the_outer_flag_up(void)
{
	/* GIVEN a driver call that submits from within, measured or not */
	fake.cost = 0;
	for (int i = 0; i < 3000; i++) {
		fake.on_launch = submit_inside_a_submission;
		/* WHEN it returns, THEN the flag is down */
		fake_submit(NULL);
		CHECK(atomic_load(&nvs_self->in_call) == 0);
	}
}

static bool idle_for_5_ms(void)
{
	uint64_t since = nvs_gate_idle_since();
	return since != 0 && nvs_now_ns() - since >= 5 * NVS_NS_PER_MS;
}

static bool idle_within(int asks)
{
	for (; asks > 0; asks--) {
		if (idle_for_5_ms())
			return true;
		nvs_sleep_ns(NVS_NS_PER_MS);
	}
	return false;
}

static void idle_means_nothing_submitted_and_nothing_running(void)
{
	/* GIVEN a launch that runs for a while */
	fake.cost = 60 * NVS_NS_PER_MS;
	fake_submit(NULL);
	/* WHEN the link asks, THEN it is not idle before that work is done, and is soon after */
	while (!fake_all_done()) {
		bool idle_now = idle_for_5_ms();
		CHECK(!idle_now || fake_all_done());
		nvs_sleep_ns(NVS_NS_PER_MS);
	}
	CHECK(idle_within(1000));
	/* AND a new turn begins anew: those who wait have to wake up first */
	nvs_gate_shut();
	nvs_gate_open(NVS_GATE_OPEN);
	CHECK(!idle_for_5_ms());
}

static CUresult synchronize_stream(CUstream stream)
{
	return CUDA_SUCCESS;
}

static CUresult synchronize_event(CUevent event)
{
	return CUDA_SUCCESS;
}

static void who_has_waited_for_the_gpu_tells_of_the_end_of_a_burst(void)
{
	nvs_real.cuStreamSynchronize = synchronize_stream;
	nvs_real.cuEventSynchronize = synchronize_event;
	/* GIVEN the end of a burst that matters to nobody, WHEN a thread waits for the GPU, THEN nobody is woken */
	CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS && wakes == 0 && nvs_gate_waited_at() == 0);
	/* GIVEN a link that looks in an hour, and has just looked at work in flight */
	nvs_gate_open(NVS_GATE_OPEN);
	nvs_gate_idle_since();
	uint64_t later = nvs_now_ns() + 3600 * NVS_NS_PER_S;
	atomic_store(&nvs_gate_next_look, later);
	fake_submit(NULL);
	CHECK(nvs_gate_drain(LONG_MS));
	/* WHEN threads have waited, THEN it is woken once, and one look tells when they had */
	uint64_t before = nvs_now_ns();
	CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS && cuEventSynchronize(NULL) == CUDA_SUCCESS && wakes == 1);
	uint64_t waited = nvs_gate_waited_at();
	CHECK(waited >= before && nvs_gate_idle_since() == waited);
	/* AND a link that looks at once is not woken for it */
	atomic_store(&nvs_gate_next_look, before);
	CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS && wakes == 1);
	atomic_store(&nvs_gate_next_look, 0);
}

static void a_forked_child_starts_afresh(void)
{
	nvs_gate_shut();
	pid_t child = fork();
	if (child == 0) {
		nvs_gate_after_fork();
		CHECK(nvs_gate_state() == NVS_GATE_OPEN);
		CHECK(nvs_gate_submissions() == 0);
		fake_submit(NULL);
		CHECK(nvs_gate_submissions() == 1);
		_exit(0);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	nvs_gate_open(NVS_GATE_OPEN);
}

int main(void)
{
	fake_install(0);
	close_waits_for_every_stream();
	close_waits_for_the_work_of_a_destroyed_stream();
	close_gives_up_at_its_deadline();
	close_waits_for_a_thread_inside_a_call();
	a_submitter_waits_at_the_shut_gate_and_asks();
	a_capture_goes_on_behind_a_shut_gate_and_the_drain_waits_for_its_end();
	nothing_is_measured_while_a_stream_captures();
	a_nested_submission_passes_and_leaves_the_outer_flag_up();
	idle_means_nothing_submitted_and_nothing_running();
	who_has_waited_for_the_gpu_tells_of_the_end_of_a_burst();
	a_forked_child_starts_afresh();
	CHECK(fake.pushed == 0);
	return 0;
}
