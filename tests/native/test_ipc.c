/* Memory that several processes use. The exporter is asked over its socket by a peer of the test's own; the importer
 * asks an exporter of the test's own, which says what the test wants. */
#include "fake_memory.h"
#include "ipc_answers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "ipc/server.h"
#include "ipc/socket.h"

static CUdeviceptr must_alloc(size_t n)
{
	CUdeviceptr p = 0;
	assert(cuMemAlloc_v2(&p, n) == CUDA_SUCCESS);
	return p;
}

static CUipcMemHandle must_share(CUdeviceptr p)
{
	CUipcMemHandle handle;
	assert(cuIpcGetMemHandle(&handle, p) == CUDA_SUCCESS);
	return handle;
}

static struct nvs_ipc_handle opened_up(CUipcMemHandle handle)
{
	struct nvs_ipc_handle ours;
	assert(nvs_ipc_handle_read(&handle, &ours));
	return ours;
}

static bool is_same(CUipcMemHandle a, CUipcMemHandle b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

static uint64_t pinned_bytes(void)
{
	struct nvs_holding view;
	nvs_residency_view(0, &view);
	return view.pinned;
}

static size_t open_descriptors(void)
{
	size_t count = 0;
	DIR *directory = opendir("/proc/self/fd");
	for (struct dirent *each; (each = readdir(directory)) != NULL;)
		count += each->d_name[0] != '.';
	closedir(directory);
	return count;
}

static uint64_t attribute_of(CUdeviceptr p, CUpointer_attribute attribute)
{
	uint64_t value = 0;
	assert(cuPointerGetAttribute(&value, attribute, p) == CUDA_SUCCESS);
	return value;
}

/* ---- exporting ---- */

static void test_exported_memory_stays_on_the_card_and_counts_as_pinned(void)
{
	fake_descriptors = 1;
	CUdeviceptr large = must_alloc(300 * MIB), small = must_alloc(700), neighbour = must_alloc(700);
	assert(fake_last_prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	assert(attribute_of(large, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 1);
	assert(attribute_of(large, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) == 0);
	CUipcMemHandle handle = must_share(large);
	assert(pinned_bytes() == 300 * MIB);
	assert(is_same(handle, must_share(large)) && is_same(handle, must_share(large + 200 * MIB)));
	CUipcMemHandle piece = must_share(small);
	assert(pinned_bytes() == 302 * MIB); /* with its whole slab */
	assert(!is_same(piece, must_share(neighbour)) && pinned_bytes() == 302 * MIB);
	cuMemFree_v2(large);
	assert(pinned_bytes() == 2 * MIB);
	cuMemFree_v2(small);
	cuMemFree_v2(neighbour);
}

static void test_what_would_keep_others_from_running_is_not_exported(void)
{
	CUipcMemHandle handle;
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(4 * MIB);
	fake_keep_denied = true;
	assert(cuIpcGetMemHandle(&handle, p) == CUDA_ERROR_OUT_OF_MEMORY && pinned_bytes() == 0);
	fake_keep_denied = false;
	assert(cuIpcGetMemHandle(&handle, p) == CUDA_SUCCESS && pinned_bytes() == 4 * MIB);
	cuMemFree_v2(p);
}

static void test_memory_of_other_kinds_is_the_drivers_business(void)
{
	CUipcMemHandle handle;
	CUdeviceptr ordered;
	fake_descriptors = 1;
	assert(cuIpcGetMemHandle(&handle, 0x5000) == CUDA_SUCCESS); /* the fake's answer */
	assert(cuMemAllocAsync(&ordered, 5 * MIB, NULL) == CUDA_SUCCESS);
	assert(attribute_of(ordered, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 0);
	assert(cuIpcGetMemHandle(&handle, ordered) == CUDA_SUCCESS);
	assert(cuMemFree_v2(ordered) == CUDA_SUCCESS);
	CUdeviceptr p;
	CUipcMemHandle of_driver = {{1, 2, 3}};
	assert(cuIpcOpenMemHandle_v2(&p, of_driver, 1) == CUDA_ERROR_ALREADY_MAPPED);
	assert(cuIpcCloseMemHandle(0x5000) == CUDA_ERROR_ALREADY_MAPPED);
}

static void test_a_process_cannot_open_what_it_exported_itself(void)
{
	CUdeviceptr opened;
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(4 * MIB);
	assert(cuIpcOpenMemHandle_v2(&opened, must_share(p), 1) == CUDA_ERROR_INVALID_CONTEXT);
	assert(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
	cuMemFree_v2(p);
}

/* ---- the server ---- */

/* One question from a peer of its own; descriptors are counted and closed. -1: the server hung up. */
static int question(int peer, const struct nvs_ipc_handle *handle, uint32_t first, struct nvs_ipc_answer *answer)
{
	int descriptors[NVS_IPC_BATCH];
	uint32_t count;
	struct nvs_ipc_ask ask = nvs_ipc_ask_make(handle, first);
	if (!nvs_ipc_send(peer, &ask, sizeof(ask), NULL, 0))
		return -1;
	ssize_t length = nvs_ipc_receive(peer, answer, sizeof(*answer), descriptors, &count);
	if (length <= 0)
		return -1;
	assert(nvs_ipc_answer_is_sound(answer, (size_t)length, count, first));
	for (uint32_t i = 0; i < count; i++)
		close(descriptors[i]);
	return (int)count;
}

static enum nvs_ipc_status asked_once(const struct nvs_ipc_handle *handle)
{
	struct nvs_ipc_answer answer;
	int peer = nvs_ipc_connect(handle->name);
	assert(peer >= 0 && nvs_ipc_is_same_user(peer));
	assert(question(peer, handle, 0, &answer) >= 0);
	close(peer);
	return answer.status;
}

static void test_the_server_gives_all_chunks_in_portions(void)
{
	struct nvs_ipc_answer answer;
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(40 * nvs_chunk_bytes + 7), small = must_alloc(600);
	struct nvs_ipc_handle handle = opened_up(must_share(p)), piece = opened_up(must_share(small));
	int peer = nvs_ipc_connect(handle.name);
	assert(question(peer, &handle, 0, &answer) == 32);
	assert(answer.chunk_count == 41 && answer.size == 40 * nvs_chunk_bytes + 7 && answer.offset == 0);
	assert(answer.whole == 40 * nvs_chunk_bytes + 2 * MIB && answer.sizes[31] == nvs_chunk_bytes);
	assert(question(peer, &handle, 32, &answer) == 9 && answer.sizes[8] == 2 * MIB);
	assert(question(peer, &piece, 0, &answer) == 1);
	assert(answer.whole == 2 * MIB && answer.size == 600 && answer.offset == small % (2 * MIB));
	assert(question(peer, &handle, 41, &answer) == 0 && answer.status == NVS_IPC_UNKNOWN);
	close(peer);
	cuMemFree_v2(p);
	assert(asked_once(&handle) == NVS_IPC_UNKNOWN && asked_once(&piece) == NVS_IPC_GIVEN);
	cuMemFree_v2(small);
	assert(asked_once(&piece) == NVS_IPC_UNKNOWN);
}

static void test_who_does_not_know_is_given_nothing(void)
{
	struct nvs_ipc_answer answer;
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(4 * MIB), never = must_alloc(4 * MIB);
	struct nvs_ipc_handle right = opened_up(must_share(p)), wrong = right;
	wrong.secret[15] ^= 1;
	int peer = nvs_ipc_connect(right.name);
	assert(question(peer, &wrong, 0, &answer) == 0 && answer.status == NVS_IPC_UNKNOWN);
	assert(question(peer, &right, 0, &answer) == -1); /* it does not get a second try */
	close(peer);
	wrong = right;
	wrong.id++;
	assert(asked_once(&wrong) == NVS_IPC_UNKNOWN);
	wrong = right;
	wrong.base = never; /* live, but not exported */
	wrong.id++;
	assert(asked_once(&wrong) == NVS_IPC_UNKNOWN);
	peer = nvs_ipc_connect(right.name);
	char noise[4096] = {0};
	assert(nvs_ipc_send(peer, noise, sizeof(noise), NULL, 0));
	assert(question(peer, &right, 0, &answer) == -1 || answer.status == NVS_IPC_UNKNOWN);
	close(peer);
	assert(asked_once(&right) == NVS_IPC_GIVEN);
	cuMemFree_v2(p);
	cuMemFree_v2(never);
}

/* GIVEN more silent peers than there are places WHEN another one asks THEN it is answered. */
static void test_silent_peers_keep_nobody_from_being_served(void)
{
	int silent[3 * NVS_IPC_PEERS];
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(4 * MIB);
	struct nvs_ipc_handle handle = opened_up(must_share(p));
	for (size_t i = 0; i < 3 * NVS_IPC_PEERS; i++)
		assert((silent[i] = nvs_ipc_connect(handle.name)) >= 0);
	assert(asked_once(&handle) == NVS_IPC_GIVEN);
	for (size_t i = 0; i < 3 * NVS_IPC_PEERS; i++)
		close(silent[i]);
	cuMemFree_v2(p);
}

static void test_a_driver_that_does_not_export_is_an_answer_and_leaves_nothing_open(void)
{
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(300 * MIB);
	struct nvs_ipc_handle handle = opened_up(must_share(p));
	assert(asked_once(&handle) == NVS_IPC_GIVEN);
	fake_export_fails = true;
	assert(asked_once(&handle) == NVS_IPC_FAILED);
	fake_export_fails = false;
	cuMemFree_v2(p);
}

static void *asks_again_and_again(void *handle)
{
	struct nvs_ipc_answer answer;
	int peer = nvs_ipc_connect(((struct nvs_ipc_handle *)handle)->name);
	for (int i = 0; i < 300; i++)
		assert(question(peer, handle, 0, &answer) >= 0);
	close(peer);
	return NULL;
}

/* GIVEN peers that ask all the time WHEN memory is freed and made anew at the same addresses THEN nobody gets what he
 * did not ask for, and nothing is freed under the driver's hands. */
static void test_memory_is_freed_while_it_is_asked_for(void)
{
	pthread_t peers_of_it[2];
	fake_descriptors = 1;
	CUdeviceptr kept = must_alloc(600), p = must_alloc(700);
	must_share(kept);
	struct nvs_ipc_handle handle = opened_up(must_share(p));
	for (int i = 0; i < 2; i++)
		pthread_create(&peers_of_it[i], NULL, asks_again_and_again, &handle);
	for (int i = 0; i < 200; i++) {
		cuMemFree_v2(p);
		CUdeviceptr large = must_alloc(130 * MIB);
		must_share(large);
		cuMemFree_v2(large);
		p = must_alloc(700);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(peers_of_it[i], NULL);
	cuMemFree_v2(p);
	cuMemFree_v2(kept);
}

/* GIVEN a program that closes every descriptor it does not know THEN what it exports later can be opened again. */
static void test_a_closed_socket_is_noticed_and_replaced(void)
{
	struct nvs_ipc_answer answer;
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(4 * MIB);
	struct nvs_ipc_handle before = opened_up(must_share(p));
	int peer = nvs_ipc_connect(before.name), other = open("/dev/null", O_RDONLY);
	assert(question(peer, &before, 0, &answer) == 1);
	dup2(other, nvs_ipc_server.listener);
	question(peer, &before, 0, &answer); /* a socket lives while it is waited on; this ends the wait */
	while (nvs_ipc_is_own(before.name))
		nvs_sleep_ns(NVS_NS_PER_MS);
	struct nvs_ipc_handle after = opened_up(must_share(p));
	assert(memcmp(before.name, after.name, sizeof(after.name)) != 0 && asked_once(&after) == NVS_IPC_GIVEN);
	assert(!nvs_ipc_is_own(before.name) && nvs_ipc_is_own(after.name));
	close(peer);
	close(other);
	cuMemFree_v2(p);
}

static void test_a_forked_child_neither_serves_nor_keeps_the_socket(void)
{
	fake_descriptors = 1;
	CUdeviceptr p = must_alloc(4 * MIB);
	struct nvs_ipc_handle handle = opened_up(must_share(p));
	pthread_mutex_lock(&nvs_ipc_server.lock); /* as if the thread were at work */
	pid_t child = fork();
	if (child == 0) {
		int listener = nvs_ipc_server.listener;
		nvs_ipc_after_fork();
		_exit(fcntl(listener, F_GETFD) < 0 && !nvs_ipc_is_own(handle.name) ? 0 : 1);
	}
	pthread_mutex_unlock(&nvs_ipc_server.lock);
	int status;
	assert(waitpid(child, &status, 0) == child && status == 0);
	assert(asked_once(&handle) == NVS_IPC_GIVEN);
	cuMemFree_v2(p);
}

/* ---- importing ---- */

struct fake_exporter {
	int listener;
	struct nvs_ipc_handle handle;
	struct nvs_ipc_answer answers[3];
	uint32_t descriptors[3]; /* that come with each */
	int answer_count;        /* then it hangs up */
	pthread_t thread;
};

static void *plays_exporter(void *argument)
{
	struct fake_exporter *exporter = argument;
	int peer = accept(exporter->listener, NULL, NULL), descriptors[NVS_IPC_BATCH];
	uint32_t count;
	for (int i = 0; i < exporter->answer_count; i++) {
		struct nvs_ipc_ask ask;
		if (nvs_ipc_receive(peer, &ask, sizeof(ask), descriptors, &count) != sizeof(ask))
			break;
		assert(nvs_ipc_ask_is_good(&ask, sizeof(ask), exporter->handle.secret));
		for (uint32_t k = 0; k < exporter->descriptors[i]; k++)
			assert(fake_cuMemExport(&descriptors[k], 1, 1, 0) == CUDA_SUCCESS);
		nvs_ipc_send(peer, &exporter->answers[i], sizeof(exporter->answers[i]), descriptors,
			exporter->descriptors[i]);
		for (uint32_t k = 0; k < exporter->descriptors[i]; k++)
			close(descriptors[k]);
	}
	close(peer);
	return NULL;
}

/* Each one has a name of its own. */
static CUipcMemHandle begin_exporter(struct fake_exporter *exporter)
{
	static uint8_t number;
	uint8_t name[NVS_IPC_SECRET] = {0xee, ++number}, secret[NVS_IPC_SECRET] = {7};
	CUipcMemHandle handle;
	pid_t self = getpid();
	memcpy(name + 4, &self, sizeof(self));
	exporter->handle = nvs_ipc_handle_make(name, secret, 0x7000, number);
	exporter->listener = nvs_ipc_listen(name);
	assert(exporter->listener >= 0);
	fcntl(exporter->listener, F_SETFL, 0);
	pthread_create(&exporter->thread, NULL, plays_exporter, exporter);
	memcpy(&handle, &exporter->handle, sizeof(handle));
	return handle;
}

static void end_exporter(struct fake_exporter *exporter)
{
	pthread_join(exporter->thread, NULL);
	close(exporter->listener);
}

static struct fake_exporter sound_exporter(void)
{
	return (struct fake_exporter){.answers = {sound_answer()}, .descriptors = {2}, .answer_count = 1};
}

/* A chunk in each answer. */
static struct fake_exporter exporter_in_portions(void)
{
	struct fake_exporter exporter = {
		.answers = {sound_answer(), sound_answer()}, .descriptors = {1, 1}, .answer_count = 2};
	exporter.answers[1].first = exporter.answers[0].count = exporter.answers[1].count = 1;
	return exporter;
}

static void test_opened_memory_is_mapped_as_a_whole_and_nobody_pays(void)
{
	CUdeviceptr p, again, base;
	size_t size;
	struct fake_exporter exporter = sound_exporter();
	CUipcMemHandle handle = begin_exporter(&exporter);
	assert(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
	end_exporter(&exporter);
	assert(p % MIB == MIB / 2 && fake_maps == 2 && fake_handles == 0 && fake_allocated[0] == 0);
	for (CUdeviceptr at = p - MIB / 2; at < p + 3 * MIB; at += 2 * MIB)
		assert(fake_at(fake_mapped, at)->accessors == 1);
	/* opened again it is the same, without its exporter */
	assert(cuIpcOpenMemHandle(&again, handle, 0) == CUDA_SUCCESS && again == p && fake_maps == 2);
	assert(cuMemGetAddressRange_v2(&base, &size, p + 5) == CUDA_SUCCESS && base == p && size == 3 * MIB);
	assert(attribute_of(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 0);
	assert(cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE && cuMemUnmap(p, 2 * MIB) == CUDA_ERROR_INVALID_VALUE);
	assert(cuIpcCloseMemHandle(p + 1) == CUDA_ERROR_INVALID_VALUE);
	/* it goes with the last close, after the work that may use it */
	unsigned drains = fake_drains;
	assert(cuIpcCloseMemHandle(p) == CUDA_SUCCESS && fake_maps == 2 && fake_drains == drains);
	fake_drain_fails = true;
	assert(cuIpcCloseMemHandle(p) == CUDA_SUCCESS && fake_maps == 2);
	assert(cuIpcCloseMemHandle(p) == CUDA_ERROR_ALREADY_MAPPED); /* the driver knows nothing of it */
	fake_drain_fails = false;
	nvs_memory_reap(1);
	assert(fake_maps == 0 && fake_reservations == 0 && fake_drains > drains);
}

static void test_another_context_has_addresses_of_its_own_and_they_end_with_it(void)
{
	CUdeviceptr first, second;
	struct fake_exporter exporter = sound_exporter();
	CUipcMemHandle handle = begin_exporter(&exporter);
	assert(cuIpcOpenMemHandle_v2(&first, handle, 1) == CUDA_SUCCESS);
	pthread_join(exporter.thread, NULL);
	pthread_create(&exporter.thread, NULL, plays_exporter, &exporter);
	fake_current = &fake_contexts[1];
	assert(cuIpcOpenMemHandle_v2(&second, handle, 1) == CUDA_SUCCESS && second != first && fake_maps == 4);
	end_exporter(&exporter);
	assert(cuCtxDestroy_v2(&fake_contexts[1]) == CUDA_SUCCESS && fake_maps == 2);
	fake_current = &fake_contexts[0];
	assert(cuIpcCloseMemHandle(first) == CUDA_SUCCESS && fake_maps == 0);
}

static void test_memory_comes_in_as_many_portions_as_it_has(void)
{
	CUdeviceptr p;
	struct fake_exporter exporter = exporter_in_portions();
	CUipcMemHandle handle = begin_exporter(&exporter);
	assert(cuIpcOpenMemHandle_v2(&p, handle, 1) == CUDA_SUCCESS && fake_maps == 2);
	end_exporter(&exporter);
	assert(cuIpcCloseMemHandle(p) == CUDA_SUCCESS);
}

/* The exporter says something wrong: nothing is left of what was begun. */
static void expect_refused(struct fake_exporter *exporter, CUresult wanted)
{
	CUdeviceptr p = 1;
	size_t before = open_descriptors();
	CUipcMemHandle handle = begin_exporter(exporter);
	assert(cuIpcOpenMemHandle_v2(&p, handle, 1) == wanted && p == 1);
	end_exporter(exporter);
	assert(fake_maps == 0 && fake_reservations == 0 && fake_handles == 0 && open_descriptors() == before);
}

static void test_an_exporter_that_says_nonsense_gets_nothing_mapped(void)
{
	struct fake_exporter exporter = sound_exporter();
	exporter.answer_count = 0;
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
	exporter = sound_exporter();
	exporter.descriptors[0] = 1;
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
	exporter = sound_exporter();
	exporter.descriptors[0] = NVS_IPC_BATCH;
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
	exporter = sound_exporter();
	exporter.answers[0].sizes[1] = MIB; /* in all less than it says */
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
	exporter = (struct fake_exporter){.answers = {nvs_ipc_answer_make(NVS_IPC_UNKNOWN)}, .answer_count = 1};
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
	exporter.answers[0].status = NVS_IPC_FAILED;
	expect_refused(&exporter, CUDA_ERROR_MAP_FAILED);
	/* the second portion is of something else */
	exporter = exporter_in_portions();
	exporter.answers[1].whole = 6 * MIB;
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
	/* or does not come */
	exporter.answer_count = 1;
	expect_refused(&exporter, CUDA_ERROR_INVALID_HANDLE);
}

/* Import and map each fail once, for each chunk, and access: whatever fails, nothing is left and the error is told. */
static void test_what_the_driver_refuses_is_undone(void)
{
	for (int at = 1; at <= 6; at++) {
		struct fake_exporter exporter = sound_exporter();
		fake_fail_at = at;
		expect_refused(&exporter, CUDA_ERROR_UNKNOWN);
		assert(fake_fail_at == 0);
	}
}

static void test_an_exporter_that_is_gone_is_said_so(void)
{
	CUdeviceptr p;
	struct fake_exporter exporter = sound_exporter();
	CUipcMemHandle handle = begin_exporter(&exporter);
	assert(cuIpcOpenMemHandle_v2(&p, handle, 1) == CUDA_SUCCESS && cuIpcCloseMemHandle(p) == CUDA_SUCCESS);
	end_exporter(&exporter);
	assert(cuIpcOpenMemHandle_v2(&p, handle, 1) == CUDA_ERROR_INVALID_HANDLE);
	assert(cuIpcOpenMemHandle_v2(&p, handle, 2) == CUDA_ERROR_INVALID_VALUE);
	assert(cuIpcOpenMemHandle_v2(NULL, handle, 1) == CUDA_ERROR_INVALID_VALUE);
	fake_current = NULL;
	assert(cuIpcOpenMemHandle_v2(&p, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
	fake_current = &fake_contexts[0];
}

int main(void)
{
	RUN(test_exported_memory_stays_on_the_card_and_counts_as_pinned);
	RUN(test_what_would_keep_others_from_running_is_not_exported);
	RUN(test_memory_of_other_kinds_is_the_drivers_business);
	RUN(test_a_process_cannot_open_what_it_exported_itself);
	RUN(test_the_server_gives_all_chunks_in_portions);
	RUN(test_who_does_not_know_is_given_nothing);
	RUN(test_silent_peers_keep_nobody_from_being_served);
	RUN(test_a_driver_that_does_not_export_is_an_answer_and_leaves_nothing_open);
	RUN(test_memory_is_freed_while_it_is_asked_for);
	RUN(test_a_closed_socket_is_noticed_and_replaced);
	RUN(test_a_forked_child_neither_serves_nor_keeps_the_socket);
	RUN(test_opened_memory_is_mapped_as_a_whole_and_nobody_pays);
	RUN(test_another_context_has_addresses_of_its_own_and_they_end_with_it);
	RUN(test_memory_comes_in_as_many_portions_as_it_has);
	RUN(test_an_exporter_that_says_nonsense_gets_nothing_mapped);
	RUN(test_what_the_driver_refuses_is_undone);
	RUN(test_an_exporter_that_is_gone_is_said_so);
	puts("PASS");
	return 0;
}
