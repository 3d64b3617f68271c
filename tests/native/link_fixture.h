/* The link and all below it against a scripted scheduler: a process with a GPU, registered, granted, submitting. */
#ifndef LINK_FIXTURE_H
#define LINK_FIXTURE_H

#include "fake_scheduler.h"

#include <sys/wait.h>

#include "gate/gate.h"
#include "link/link.h"
#include "link/state.h"

#define MIB 1048576ull
#define ID 0x1234abcd5678ef00ull

struct hello {
	struct nvs_register fields;
	struct nvs_gpu_entry gpus[2];
};

static void *attach_device(void *device)
{
	return (void *)(intptr_t)nvs_link_attach((CUdevice)(intptr_t)device);
}

static pthread_t start_attach(CUdevice device)
{
	pthread_t thread_of_test;
	CHECK(pthread_create(&thread_of_test, NULL, attach_device, (void *)(intptr_t)device) == 0);
	return thread_of_test;
}

static CUresult result_of(pthread_t thread_of_test)
{
	void *result;
	CHECK(pthread_join(thread_of_test, &result) == 0);
	return (CUresult)(intptr_t)result;
}

static void send_limit(uint32_t gpu, uint64_t limit, uint64_t card)
{
	SCHEDULER_SEND(
		NVS_UPDATE_LIMIT, struct nvs_update_limit message = {.gpu = gpu, .mem_limit = limit, .card = card});
}

static inline struct hello accept_client(uint16_t answer)
{
	struct hello hello = {0};
	scheduler_accept();
	scheduler_expect(NVS_REGISTER, &hello, sizeof(hello.fields) + sizeof(hello.gpus[0]));
	SCHEDULER_SEND(answer, struct nvs_sched_on message = {.client_id = ID});
	send_limit(0, 1024 * MIB, 15000 * MIB);
	return hello;
}

/* A process with one GPU, registered. */
static inline struct hello registered(uint16_t answer)
{
	scheduler_listen();
	pthread_t attaching = start_attach(0);
	struct hello hello = accept_client(answer);
	CHECK(result_of(attaching) == CUDA_SUCCESS);
	return hello;
}

static _Atomic int landed;

static void *submit_and_count(void *count)
{
	for (intptr_t i = 0; i < (intptr_t)count; i++) {
		CHECK(fake_submit(NULL) == CUDA_SUCCESS);
		atomic_fetch_add(&landed, 1);
	}
	return NULL;
}

static inline pthread_t start_submitting(intptr_t count)
{
	pthread_t submitter;
	CHECK(pthread_create(&submitter, NULL, submit_and_count, (void *)count) == 0);
	return submitter;
}

static void grant(uint32_t gpu, uint64_t number, uint32_t flags, uint32_t quantum_ms)
{
	SCHEDULER_SEND(NVS_LOCK_OK,
		struct nvs_lock_ok message = {.gpu = gpu, .grant = number, .flags = flags, .quantum_ms = quantum_ms});
}

/* Registered, granted and with one submission behind it. */
static inline void running(uint64_t number, uint32_t flags, uint32_t quantum_ms)
{
	struct nvs_req_lock asked;
	pthread_t submitter = start_submitting(1);
	scheduler_expect(NVS_REQ_LOCK, &asked, sizeof(asked));
	CHECK(asked.gpu == 0);
	grant(0, number, flags, quantum_ms);
	pthread_join(submitter, NULL);
}

static inline void wait_for_gate(enum nvs_gate_state state)
{
	while (nvs_gate_state() != state)
		nvs_sleep_ns(100 * NVS_NS_PER_US);
}

static inline void expect_release(uint64_t number, uint32_t reason)
{
	struct nvs_lock_released released;
	scheduler_expect(NVS_LOCK_RELEASED, &released, sizeof(released));
	CHECK(released.grant == number && released.reason == reason);
}

/* The thread sanitizer gives up on a forked child that starts threads, unless told otherwise. */
NVS_EXPORT const char *__tsan_default_options(void);
NVS_EXPORT const char *__tsan_default_options(void)
{
	return "die_after_fork=0:atexit_sleep_ms=0";
}

/* In the address sanitizer's run. Without it there are none to be found. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static inline bool nothing_leaks(void)
{
	return __lsan_do_recoverable_leak_check == NULL || __lsan_do_recoverable_leak_check() == 0;
}

/* Each in a process of its own, for the library reads its environment once. */
static inline void run(const char *name, void (*test)(void), const char *directory)
{
	pid_t child = fork();
	if (child == 0) {
		snprintf(scheduler.path, sizeof(scheduler.path), "%s/scheduler.sock", directory);
		unlink(scheduler.path);
		setenv("NVSHARE_SOCK", scheduler.path, 1);
		fake_install(0);
		alarm(60);
		test();
		unlink(scheduler.path);
		CHECK(nothing_leaks());
		_exit(0);
	}
	int status = -1;
	waitpid(child, &status, 0);
	if (status != 0)
		fprintf(stderr, "failed: %s\n", name);
	CHECK(status == 0);
}

#endif
