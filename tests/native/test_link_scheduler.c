/* The link against a scripted scheduler: who may submit when, what is told and asked, and what happens when it goes
 * away. */
#include "link_fixture.h"

#include <sys/eventfd.h>

#include "client/patience.h"
#include "memory/swap/state.h"

#include <fcntl.h>

static bool resident; /* the last answer to a request */

/* ---- registering ---- */

static void registers_with_uuid_and_environment(void)
{
	setenv("NVSHARE_GPU_MEMORY_LIMIT", "2Gi", 1);
	setenv("NVSHARE_GPU_CORE_LIMIT", "30", 1);
	setenv("NVSHARE_POD_NAME", "pod-1", 1);
	setenv("NVSHARE_POD_NAMESPACE", "team", 1);
	struct hello hello = registered(NVS_SCHED_ON);
	CHECK(hello.fields.previous_id == 0 && hello.fields.gpu_count == 1);
	CHECK(hello.fields.mem_limit == 2048 * MIB && hello.fields.core_limit == 30 && hello.fields.priority == 0);
	CHECK(strcmp(hello.fields.pod_name, "pod-1") == 0 && strcmp(hello.fields.pod_namespace, "team") == 0);
	CHECK(strcmp(hello.gpus[0].uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == 0);
	CHECK(hello.gpus[0].allocated == 0 && hello.gpus[0].grant == 0);
	/* THEN the scheduler's answer counts, not the environment */
	uint64_t card, allocated;
	CHECK(nvs_link_card(0) == 1024 * MIB);
	CHECK(nvs_link_view(hello.gpus[0].uuid, &card, &allocated) && card == 1024 * MIB && allocated == 0);
	CHECK(!nvs_link_view("GPU-other", &card, &allocated));
	CHECK(nvs_link_attach(0) == CUDA_SUCCESS); /* again: costs nothing, tells nothing */
	scheduler_expect_silence(20);
}

static void sends_the_floor_of_the_environment_in_the_flags(void)
{
	setenv("NVSHARE_GPU_CORE_LIMIT", "20..30", 1);
	struct hello hello = registered(NVS_SCHED_ON);
	CHECK(hello.fields.core_limit == 30);
	CHECK(hello.fields.flags == (NVS_FLAG_CAN_SWAP | 20u << NVS_FLOOR_SHIFT));
}

static void runs_natively_without_a_scheduler(void)
{
	setenv("NVSHARE_GPU_MEMORY_LIMIT", "100Mi", 1);
	CHECK(nvs_link_attach(0) == CUDA_SUCCESS);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	/* the environment's own limit holds all the same */
	CHECK(nvs_link_request(0, 60 * MIB, false, &resident) == CUDA_SUCCESS);
	CHECK(nvs_link_request(0, 60 * MIB, false, &resident) == CUDA_ERROR_OUT_OF_MEMORY);
	nvs_link_release(0, 60 * MIB, 60 * MIB);
	CHECK(nvs_link_request(0, 100 * MIB, false, &resident) == CUDA_SUCCESS);
	CHECK(nvs_link_allocated(0) == 100 * MIB && nvs_link_card(0) == 100 * MIB);
	/* WHEN one appears later, THEN it is told what is held */
	scheduler_listen();
	struct hello hello = accept_client(NVS_SCHED_ON);
	CHECK(hello.fields.previous_id == 0 && hello.gpus[0].allocated == 100 * MIB);
}

static void a_required_scheduler_that_is_missing_is_an_error(void)
{
	setenv("NVSHARE_REQUIRE", "1", 1);
	CHECK(nvs_link_attach(0) == CUDA_ERROR_SYSTEM_NOT_READY);
	/* WHEN it is there, THEN the next attempt succeeds */
	scheduler_listen();
	pthread_t attaching = start_attach(0);
	accept_client(NVS_SCHED_ON);
	CHECK(result_of(attaching) == CUDA_SUCCESS);
}

static void a_refusal_for_the_version_is_final(void)
{
	struct hello hello;
	scheduler_listen();
	pthread_t attaching = start_attach(0);
	scheduler_accept();
	scheduler_expect(NVS_REGISTER, &hello, sizeof(hello.fields));
	SCHEDULER_SEND(NVS_REFUSED,
		struct nvs_refused message = {.version = 9, .code = NVS_REFUSAL_VERSION, .reason = "too old"});
	CHECK(result_of(attaching) == CUDA_SUCCESS);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	struct nvs_sleepable sleepable;
	char byte;
	scheduler_expect(NVS_SLEEPABLE, &sleepable, sizeof(sleepable)); /* it followed REGISTER */
	CHECK(recv(scheduler.client, &byte, 1, 0) == 0);                /* and hangs up */
	fcntl(scheduler.listening, F_SETFL, O_NONBLOCK);
	nvs_sleep_ns(300 * NVS_NS_PER_MS);
	CHECK(accept(scheduler.listening, NULL, NULL) < 0); /* and does not come back */
}

/* ---- turns ---- */

static void nothing_is_submitted_before_the_grant(void)
{
	registered(NVS_SCHED_ON);
	/* GIVEN a submitter without a grant */
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(3);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	CHECK(atomic_load(&landed) == 0);
	scheduler_expect_silence(20); /* asked once */
	/* WHEN it is granted, THEN it goes, and goes on */
	grant(0, 7, 0, 0);
	pthread_join(submitter, NULL);
	CHECK(atomic_load(&landed) == 3 && nvs_gate_state() == NVS_GATE_OPEN);
}

static void a_drop_is_answered_when_all_work_is_done(void)
{
	registered(NVS_SCHED_ON);
	running(7, 0, 0);
	fake.cost = 30 * NVS_NS_PER_MS;
	fake_submit(NULL);
	/* WHEN the scheduler drops a grant that was never given, THEN nothing happens */
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = 6, .deadline_ms = 60000});
	/* WHEN it drops the real one, THEN the answer comes after the work */
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = 7, .deadline_ms = 60000});
	expect_release(7, NVS_RELEASE_TOLD);
	CHECK(fake_all_done());
	/* AND the next submission asks again */
	struct nvs_req_lock asked;
	int before = atomic_load(&landed);
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	CHECK(atomic_load(&landed) == before);
	grant(0, 8, 0, 0);
	pthread_join(submitter, NULL);
}

static void work_that_does_not_end_is_reported_as_stuck_and_goes_on(void)
{
	registered(NVS_SCHED_ON);
	running(7, NVS_FLAG_EXCLUSIVE, 0);
	CHECK(nvs_gate_state() == NVS_GATE_PACED);
	fake.cost = FAKE_HELD;
	fake_submit(NULL);
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = 7, .deadline_ms = 5});
	expect_release(7, NVS_RELEASE_STUCK);
	CHECK(nvs_gate_state() == NVS_GATE_OPEN);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	/* WHEN the scheduler tries again, THEN it may succeed */
	fake_let_go();
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = 7, .deadline_ms = 60000});
	expect_release(7, NVS_RELEASE_TOLD);
}

static void an_idle_holder_gives_up_its_turn_only_when_others_wait(void)
{
	registered(NVS_SCHED_ON);
	running(7, 0, 0);
	scheduler_expect_silence(60);
	grant(0, 7, NVS_FLAG_CONTENDED, 0); /* the same grant on new terms */
	expect_release(7, NVS_RELEASE_IDLE);
}

static void patience_grows_with_turns_given_up_in_vain_and_shrinks_with_others(void)
{
	struct nvs_patience patience = {0};
	uint64_t now = NVS_NS_PER_S, switching = NVS_NS_PER_S;
	CHECK(nvs_patience(&patience) == 20 * NVS_NS_PER_MS);
	nvs_patience_back(&patience, now, switching); /* it was not gone */
	CHECK(nvs_patience(&patience) == 20 * NVS_NS_PER_MS);
	/* WHEN it is back at once, again and again, THEN it waits longer, for half of a switch at most */
	uint64_t expected[] = {40, 80, 160, 320, 500, 500};
	for (int i = 0; i < 6; i++) {
		nvs_patience_gone(&patience, now);
		nvs_patience_back(&patience, now += 30 * NVS_NS_PER_MS, switching);
		CHECK(nvs_patience(&patience) == expected[i] * NVS_NS_PER_MS);
	}
	/* AND when it stays away for longer than a switch, it waits less */
	nvs_patience_gone(&patience, now);
	nvs_patience_back(&patience, now += 2 * NVS_NS_PER_S, switching);
	CHECK(nvs_patience(&patience) == 250 * NVS_NS_PER_MS);
	/* AND where switches take little, it never waits for long */
	nvs_patience_gone(&patience, now);
	nvs_patience_back(&patience, now += NVS_NS_PER_MS, 30 * NVS_NS_PER_MS);
	CHECK(nvs_patience(&patience) == 20 * NVS_NS_PER_MS);
}

static void who_gave_its_turn_up_for_short_pauses_keeps_it_in_the_next_ones(void)
{
	atomic_store(&fake_switch_ns, 40 * NVS_NS_PER_S);
	registered(NVS_SCHED_ON);
	for (uint64_t turn = 7; turn < 12; turn++) {
		struct nvs_req_lock asked;
		pthread_t submitter = start_submitting(1);
		scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
		grant(0, turn, NVS_FLAG_CONTENDED, 0);
		pthread_join(submitter, NULL);
		expect_release(turn, NVS_RELEASE_IDLE); /* after 20, 40, 80, 160 and 320 ms */
	}
	pthread_t submitter = start_submitting(1);
	struct nvs_req_lock asked;
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	grant(0, 12, NVS_FLAG_CONTENDED, 0);
	pthread_join(submitter, NULL);
	scheduler_expect_silence(100);
	expect_release(12, NVS_RELEASE_IDLE);
	atomic_store(&fake_switch_ns, 0);
}

static void a_contended_turn_ends_by_itself_after_its_quantum(void)
{
	registered(NVS_SCHED_ON);
	fake.cost = FAKE_HELD; /* busy all the time: not idle */
	running(7, NVS_FLAG_EXCLUSIVE | NVS_FLAG_CONTENDED, 100);
	pthread_t submitter = start_submitting(2 * NVS_WINDOW_MAX);
	wait_for_gate(NVS_GATE_SHUT);
	fake_let_go();
	expect_release(7, NVS_RELEASE_ENDED);
	struct nvs_req_lock asked; /* the submitter is still at it */
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	grant(0, 8, 0, 0);
	pthread_join(submitter, NULL);
}

static void sched_off_lets_everything_through(void)
{
	registered(NVS_SCHED_OFF);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	/* WHEN it is switched on, THEN a grant is needed */
	SCHEDULER_SEND(NVS_SCHED_ON, struct nvs_sched_on message = {.client_id = ID});
	wait_for_gate(NVS_GATE_SHUT);
	running(7, 0, 0);
	/* WHEN it is switched off, THEN not */
	pthread_t submitter;
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.grant = 7, .deadline_ms = 60000});
	expect_release(7, NVS_RELEASE_TOLD);
	submitter = start_submitting(1);
	struct nvs_req_lock asked;
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	SCHEDULER_SEND(NVS_SCHED_OFF, struct nvs_sched_off message = {.client_id = ID});
	pthread_join(submitter, NULL);
}

static void a_gang_needs_all_of_its_gpus(void)
{
	registered(NVS_SCHED_ON);
	running(7, 0, 0);
	/* WHEN a second GPU is attached, THEN the gate shuts until it is granted too */
	struct {
		struct nvs_attach attach;
		struct nvs_gpu_entry gpu;
	} further;
	pthread_t attaching = start_attach(1);
	scheduler_expect(NVS_ATTACH, &further, sizeof(further));
	CHECK(further.attach.gpu_count == 1);
	CHECK(strcmp(further.gpu.uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f") == 0);
	send_limit(1, 0, 15000 * MIB);
	CHECK(result_of(attaching) == CUDA_SUCCESS);
	CHECK(nvs_link_card(1) == 15000 * MIB);
	int before = atomic_load(&landed);
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	CHECK(asked.gpu == 1 && atomic_load(&landed) == before);
	grant(1, 9, 0, 0);
	pthread_join(submitter, NULL);
	/* WHEN one of them is dropped, THEN both are released */
	SCHEDULER_SEND(NVS_DROP_LOCK, struct nvs_drop_lock message = {.gpu = 1, .grant = 9, .deadline_ms = 60000});
	expect_release(7, NVS_RELEASE_TOLD);
	expect_release(9, NVS_RELEASE_TOLD);
}

/* ---- memory ---- */

struct request {
	uint64_t bytes;
	CUresult result;
	bool resident;
};

static void *request_memory(void *argument)
{
	struct request *request = argument;
	request->result = nvs_link_request(0, request->bytes, false, &request->resident);
	return NULL;
}

static void requests_are_answered_one_by_one_in_any_order(void)
{
	registered(NVS_SCHED_ON);
	/* GIVEN two threads that ask at once */
	struct request requests[2] = {{.bytes = 10 * MIB}, {.bytes = 20 * MIB}};
	struct nvs_mem_request asked[2];
	pthread_t askers[2];
	for (int i = 0; i < 2; i++) {
		pthread_create(&askers[i], NULL, request_memory, &requests[i]);
		scheduler_expect(NVS_MEM_REQUEST, &asked[i], sizeof(asked[i]));
		CHECK(asked[i].bytes == requests[i].bytes);
	}
	CHECK(asked[0].request != asked[1].request);
	/* WHEN the second is granted after a while and the first denied */
	SCHEDULER_SEND(NVS_WAIT_FOR_MEM, struct nvs_wait_for_mem message = {.request = asked[1].request});
	SCHEDULER_SEND(NVS_MEM_AVAILABLE, struct nvs_mem_available message = {.request = asked[1].request});
	pthread_join(askers[1], NULL);
	CHECK(requests[1].result == CUDA_SUCCESS && nvs_link_allocated(0) == 20 * MIB);
	SCHEDULER_SEND(NVS_MEM_DENIED,
		struct nvs_mem_denied message = {.request = asked[0].request, .reason = NVS_DENY_QUOTA});
	pthread_join(askers[0], NULL);
	CHECK(requests[0].result == CUDA_ERROR_OUT_OF_MEMORY && nvs_link_allocated(0) == 20 * MIB);
	/* WHEN some is released and asked for again, THEN the release is told first */
	struct nvs_mem_update update;
	nvs_link_pinned(0, 4 * MIB);
	nvs_link_release(0, 5 * MIB, 5 * MIB);
	requests[0].bytes = 1 * MIB;
	pthread_create(&askers[0], NULL, request_memory, &requests[0]);
	scheduler_expect(NVS_MEM_UPDATE, &update, sizeof(update));
	while (update.released != 5 * MIB) /* the pinning may have been told by itself */
		scheduler_expect(NVS_MEM_UPDATE, &update, sizeof(update));
	CHECK(update.resident == 15 * MIB && update.pinned == 4 * MIB);
	scheduler_expect(NVS_MEM_REQUEST, &asked[0], sizeof(asked[0]));
	/* WHEN the scheduler vanishes meanwhile, THEN the last known limit decides */
	scheduler_vanish();
	pthread_join(askers[0], NULL);
	CHECK(requests[0].result == CUDA_SUCCESS && nvs_link_allocated(0) == 16 * MIB);
	CHECK(nvs_link_request(0, 1024 * MIB, false, &resident) == CUDA_ERROR_OUT_OF_MEMORY);
}

static bool granted_request(uint64_t bytes)
{
	struct request request = {.bytes = bytes};
	struct nvs_mem_request asked;
	pthread_t asker;
	pthread_create(&asker, NULL, request_memory, &request);
	scheduler_expect(NVS_MEM_REQUEST, &asked, sizeof(asked));
	SCHEDULER_SEND(NVS_MEM_AVAILABLE, struct nvs_mem_available message = {.request = asked.request});
	pthread_join(asker, NULL);
	CHECK(request.result == CUDA_SUCCESS);
	struct nvs_mem_update told; /* where it is now follows by itself */
	scheduler_expect(NVS_MEM_UPDATE, &told, sizeof(told));
	return request.resident;
}

static void a_release_alone_is_told_soon(void)
{
	registered(NVS_SCHED_ON);
	struct nvs_mem_update update;
	CHECK(granted_request(10 * MIB));
	nvs_link_release(0, 10 * MIB, 10 * MIB);
	scheduler_expect(NVS_MEM_UPDATE, &update, sizeof(update));
	CHECK(update.released == 10 * MIB && update.resident == 0);
	nvs_link_release(0, 10 * MIB, 10 * MIB); /* more than there is: counted no further */
	CHECK(nvs_link_allocated(0) == 0);
}

/* ---- residency ---- */

static void send_target(uint64_t number, uint64_t target)
{
	SCHEDULER_SEND(NVS_RESIDENCY, struct nvs_residency message = {.number = number, .target = target});
}

static struct nvs_mem_update expect_update(uint64_t applied, uint64_t known_resident)
{
	struct nvs_mem_update update;
	scheduler_expect(NVS_MEM_UPDATE, &update, sizeof(update));
	CHECK(update.applied == applied && update.resident == known_resident);
	return update;
}

static void a_target_is_told_back_at_once_and_bounds_what_comes(void)
{
	struct hello hello = registered(NVS_SCHED_ON);
	CHECK(hello.fields.flags == NVS_FLAG_CAN_SWAP);
	CHECK(granted_request(10 * MIB)); /* no target yet */
	send_target(1, 16 * MIB);
	expect_update(1, 10 * MIB);
	CHECK(granted_request(6 * MIB));
	CHECK(!granted_request(1 * MIB));
	send_target(2, 4 * MIB); /* lowered: kept to from now on, though nothing has moved */
	expect_update(2, 16 * MIB);
	CHECK(atomic_load(&fake_kicks) > 0);
}

static void the_gate_waits_for_memory_that_is_away(void)
{
	registered(NVS_SCHED_ON);
	send_target(1, 0);
	expect_update(1, 0);
	CHECK(!granted_request(8 * MIB));
	/* WHEN the turn comes first, THEN nothing goes before the memory is there */
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	grant(0, 7, 0, 0);
	scheduler_expect_silence(20);
	CHECK(atomic_load(&landed) == 0 && nvs_gate_state() == NVS_GATE_SHUT);
	/* as the mover does */
	nvs_residency_forget(0, 0, 8 * MIB);
	nvs_link_moved(0);
	pthread_join(submitter, NULL);
	/* WHEN it grows while it runs, THEN that may be on the card: it was granted because there is room */
	expect_update(1, 0);
	CHECK(granted_request(2 * MIB));
}

static void a_task_whose_memory_is_away_waits_when_the_scheduler_vanishes(void)
{
	registered(NVS_SCHED_ON);
	CHECK(granted_request(4 * MIB));
	send_target(1, 4 * MIB);
	expect_update(1, 4 * MIB);
	CHECK(!granted_request(8 * MIB));
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	scheduler_vanish();
	nvs_sleep_ns(50 * NVS_NS_PER_MS);
	CHECK(atomic_load(&landed) == 0 && nvs_gate_state() == NVS_GATE_SHUT);
	/* WHEN it is back, THEN it hears what is where, and that may stay */
	scheduler_listen();
	struct hello hello = accept_client(NVS_SCHED_ON);
	CHECK(hello.gpus[0].allocated == 12 * MIB && hello.gpus[0].resident == 4 * MIB);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	struct nvs_holding view;
	nvs_residency_view(0, &view);
	CHECK(view.target == 4 * MIB && view.number == 0);
	/* WHEN it runs without targets, THEN all may come */
	grant(0, 9, 0, 0);
	while (view.target != NVS_UNLIMITED)
		nvs_residency_view(0, &view);
	nvs_residency_forget(0, 0, 8 * MIB);
	nvs_link_moved(0);
	pthread_join(submitter, NULL);
}

static void what_is_moved_is_part_of_the_usage(void)
{
	struct nvs_usage usage;
	registered(NVS_SCHED_ON);
	pthread_mutex_lock(&nvs_holdings.lock);
	nvs_holdings.devices[0].swapped_out = 5 * MIB;
	nvs_holdings.devices[0].swapped_in = 3 * MIB;
	pthread_mutex_unlock(&nvs_holdings.lock);
	nvs_link_moved(0);
	expect_update(0, 0);
	scheduler_expect(NVS_USAGE, &usage, sizeof(usage));
	CHECK(usage.swapped_out == 5 * MIB && usage.swapped_in == 3 * MIB);
}

static void swapping_can_be_switched_off(void)
{
	setenv("NVSHARE_DISABLE_SWAP", "1", 1);
	CHECK(registered(NVS_SCHED_ON).fields.flags == 0);
}

/* ---- a scheduler that goes away, comes back, or is none ---- */

static void work_goes_on_without_the_scheduler_and_is_told_when_it_is_back(void)
{
	registered(NVS_SCHED_ON);
	CHECK(granted_request(10 * MIB));
	running(7, NVS_FLAG_EXCLUSIVE, 0);
	/* WHEN it vanishes, THEN submissions go through */
	scheduler_vanish();
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	wait_for_gate(NVS_GATE_OPEN);
	nvs_link_release(0, 4 * MIB, 4 * MIB);
	/* WHEN it is back, THEN it is told who this is and what is held, and the turn goes on */
	scheduler_listen();
	struct hello hello = accept_client(NVS_SCHED_ON);
	CHECK(hello.fields.previous_id == ID);
	CHECK(hello.gpus[0].allocated == 6 * MIB && hello.gpus[0].resident == 6 * MIB && hello.gpus[0].grant == 7);
	wait_for_gate(NVS_GATE_PACED);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
}

static void a_submitter_that_waits_is_let_go_when_the_scheduler_vanishes(void)
{
	registered(NVS_SCHED_ON);
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	scheduler_vanish();
	pthread_join(submitter, NULL);
	/* WHEN it is back, THEN a turn is needed again */
	scheduler_listen();
	struct hello hello = accept_client(NVS_SCHED_ON);
	CHECK(hello.gpus[0].grant == 0);
	wait_for_gate(NVS_GATE_SHUT);
	running(1, 0, 0);
}

static void rubbish_ends_the_connection_not_the_program(void)
{
	registered(NVS_SCHED_ON);
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	/* unknown messages, and messages for threads that do not wait, are skipped */
	scheduler_send(999, "what?", 5);
	SCHEDULER_SEND(NVS_MEM_AVAILABLE, struct nvs_mem_available message = {.request = 77});
	/* a GPU that is not there is not the protocol */
	grant(5, 7, 0, 0);
	pthread_join(submitter, NULL);
	close(scheduler.client);
	accept_client(NVS_SCHED_ON);
	char noise[64];
	memset(noise, 'x', sizeof(noise));
	CHECK(send(scheduler.client, noise, sizeof(noise), MSG_NOSIGNAL) == sizeof(noise));
	close(scheduler.client);
	accept_client(NVS_SCHED_ON);
	scheduler_send(NVS_LOCK_OK, "short", 5);
	close(scheduler.client);
	accept_client(NVS_SCHED_ON);
	wait_for_gate(NVS_GATE_SHUT);
	running(1, 0, 0);
}

static void a_forked_child_shares_nothing(void)
{
	registered(NVS_SCHED_ON);
	running(7, 0, 0);
	pid_t child = fork();
	if (child == 0) {
		fake_after_fork();
		/* the child has no socket, no gate, no memory; it registers anew when it makes a context */
		CHECK(nvs_link.fd == -1 && !nvs_link.running && nvs_link_allocated(0) == 0);
		CHECK(fake_submit(NULL) == CUDA_SUCCESS);
		_exit(nvs_link_attach(0) == CUDA_SUCCESS ? 0 : 1);
	}
	int parent_connection = scheduler.client;
	struct hello hello = accept_client(NVS_SCHED_ON);
	CHECK(hello.fields.previous_id == 0 && hello.gpus[0].grant == 0);
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(parent_connection != scheduler.client && fake_submit(NULL) == CUDA_SUCCESS);
}

/* Which of the submissions are measured is for the library to choose: the last ones may be told with those that follow.
 */
static void usage_is_reported_while_work_is_done(void)
{
	registered(NVS_SCHED_ON);
	fake.cost = 2 * NVS_NS_PER_MS;
	uint64_t begun = nvs_now_ns(), submitted = 51;
	running(7, 0, 0);
	for (int i = 0; i < 50; i++)
		fake_submit(NULL);
	struct nvs_usage usage = {0};
	while (usage.submissions < submitted)
		scheduler_expect(NVS_USAGE, &usage, sizeof(usage));
	while (usage.occupied_us < 50000) {
		fake_submit(NULL);
		submitted++;
		while (usage.submissions < submitted)
			scheduler_expect(NVS_USAGE, &usage, sizeof(usage));
	}
	CHECK(usage.submissions == submitted && usage.window == NVS_WINDOW_MAX);
	CHECK(usage.occupied_us <= (nvs_now_ns() - begun) / NVS_NS_PER_US);
}

/* True when the link is awake and was told to look, since it was asked last. */
static bool awake(void)
{
	uint64_t count = 0;
	bool told = read(nvs_link.wake_fd, &count, sizeof(count)) == sizeof(count);
	return !atomic_load(&nvs_link.asleep) && nvs_link.meter_at == 0 && told;
}

static bool sleeps_after(uint64_t submissions)
{
	awake();
	nvs_link_fall_asleep(submissions);
	return !awake();
}

/* Without the link thread, so that each of its moments is this test's. */
static void no_submission_is_missed_by_a_link_that_falls_asleep(void)
{
	nvs_link.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	CHECK(sleeps_after(nvs_gate_submissions()) && fake_submit(NULL) == CUDA_SUCCESS && awake());

	/* one came after they were counted */
	CHECK(!sleeps_after(nvs_gate_submissions() - 1));

	/* one is between gate and GPU, under the old word */
	atomic_store(&nvs_self->in_call, NVS_IN_CALL);
	CHECK(!sleeps_after(nvs_gate_submissions()));
	atomic_store(&nvs_self->in_call, 0);

	/* the next one is not measured, for the one after it is */
	nvs_gate_open(NVS_GATE_PACED);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	nvs_self->next_sample = nvs_gate_submissions() + 2;
	CHECK(sleeps_after(nvs_gate_submissions()) && fake_submit(NULL) == CUDA_SUCCESS && awake());

	/* the gate opens with a word under which this thread has passed before */
	nvs_gate_open(NVS_GATE_OPEN);
	CHECK(fake_submit(NULL) == CUDA_SUCCESS);
	nvs_gate_shut();
	CHECK(sleeps_after(nvs_gate_submissions()));
	nvs_gate_open(NVS_GATE_OPEN);
	CHECK(awake());
}

int main(void)
{
	char directory[] = "/tmp/nvshare-test-XXXXXX";
	CHECK(mkdtemp(directory) != NULL);
#define RUN(test) run(#test, test, directory)
	RUN(registers_with_uuid_and_environment);
	RUN(sends_the_floor_of_the_environment_in_the_flags);
	RUN(runs_natively_without_a_scheduler);
	RUN(a_required_scheduler_that_is_missing_is_an_error);
	RUN(a_refusal_for_the_version_is_final);
	RUN(nothing_is_submitted_before_the_grant);
	RUN(a_drop_is_answered_when_all_work_is_done);
	RUN(work_that_does_not_end_is_reported_as_stuck_and_goes_on);
	RUN(an_idle_holder_gives_up_its_turn_only_when_others_wait);
	RUN(patience_grows_with_turns_given_up_in_vain_and_shrinks_with_others);
	RUN(who_gave_its_turn_up_for_short_pauses_keeps_it_in_the_next_ones);
	RUN(a_contended_turn_ends_by_itself_after_its_quantum);
	RUN(sched_off_lets_everything_through);
	RUN(a_gang_needs_all_of_its_gpus);
	RUN(requests_are_answered_one_by_one_in_any_order);
	RUN(a_release_alone_is_told_soon);
	RUN(a_target_is_told_back_at_once_and_bounds_what_comes);
	RUN(the_gate_waits_for_memory_that_is_away);
	RUN(a_task_whose_memory_is_away_waits_when_the_scheduler_vanishes);
	RUN(what_is_moved_is_part_of_the_usage);
	RUN(swapping_can_be_switched_off);
	RUN(work_goes_on_without_the_scheduler_and_is_told_when_it_is_back);
	RUN(a_submitter_that_waits_is_let_go_when_the_scheduler_vanishes);
	RUN(rubbish_ends_the_connection_not_the_program);
	RUN(a_forked_child_shares_nothing);
	RUN(usage_is_reported_while_work_is_done);
	RUN(no_submission_is_missed_by_a_link_that_falls_asleep);
	rmdir(directory);
	return 0;
}
