/* What processes that share memory tell each other: only what is whole and makes sense is believed. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/wire.h"
#include "ipc_answers.h"

#define MIB (1ull << 20)

static void test_only_handles_of_ours_are_read_as_such(void)
{
	const uint8_t name[NVS_IPC_SECRET] = {1}, secret[NVS_IPC_SECRET] = {2};
	struct nvs_ipc_handle made = nvs_ipc_handle_make(name, secret, 0x7000, 9), read;
	CUipcMemHandle bytes, zeros = {{0}};
	memcpy(&bytes, &made, sizeof(bytes));
	assert(nvs_ipc_handle_read(&bytes, &read) && memcmp(&read, &made, sizeof(made)) == 0);
	assert(read.base == 0x7000 && read.id == 9 && read.pid == (uint32_t)getpid());
	assert(!nvs_ipc_handle_read(&zeros, &read));
	for (size_t i = 0; i < sizeof(made.magic); i++) {
		CUipcMemHandle other = bytes;
		other.reserved[i] ^= 1;
		assert(!nvs_ipc_handle_read(&other, &read));
	}
	made.version++;
	memcpy(&bytes, &made, sizeof(bytes));
	assert(!nvs_ipc_handle_read(&bytes, &read));
}

static void test_a_question_is_whole_and_knows_the_secret(void)
{
	const uint8_t name[NVS_IPC_SECRET] = {1}, secret[NVS_IPC_SECRET] = {2, 3};
	struct nvs_ipc_handle handle = nvs_ipc_handle_make(name, secret, 0x7000, 9);
	struct nvs_ipc_ask asks[2] = {nvs_ipc_ask_make(&handle, 5)};
	assert(nvs_ipc_ask_is_good(&asks[0], sizeof(asks[0]), secret));
	for (size_t length = 0; length < sizeof(asks[0]); length++)
		assert(!nvs_ipc_ask_is_good(&asks[0], length, secret));
	assert(!nvs_ipc_ask_is_good(&asks[0], sizeof(asks[0]) + 1, secret));
	for (size_t i = 0; i < NVS_IPC_SECRET; i++) {
		struct nvs_ipc_ask other = asks[0];
		other.secret[i] ^= 0x80;
		assert(!nvs_ipc_ask_is_good(&other, sizeof(other), secret));
	}
}

static bool is_sound(struct nvs_ipc_answer answer)
{
	return nvs_ipc_answer_is_sound(&answer, sizeof(answer), answer.count, 0);
}

#define UNSOUND(change)                                                                                                \
	do {                                                                                                           \
		struct nvs_ipc_answer answer = sound_answer();                                                         \
		change;                                                                                                \
		assert(!is_sound(answer));                                                                             \
	} while (0)

static void test_an_answer_that_contradicts_itself_is_found_out(void)
{
	struct nvs_ipc_answer good = sound_answer();
	assert(is_sound(good));
	assert(!nvs_ipc_answer_is_sound(&good, sizeof(good) - 1, 2, 0));
	assert(!nvs_ipc_answer_is_sound(&good, sizeof(good), 1, 0)); /* a descriptor is missing */
	assert(!nvs_ipc_answer_is_sound(&good, sizeof(good), 2, 1)); /* not what was asked for */
	UNSOUND(answer.magic++);
	UNSOUND(answer.whole = 0);
	UNSOUND(answer.whole = NVS_IPC_LARGEST + 1);
	UNSOUND(answer.offset = 4 * MIB);
	UNSOUND(answer.size = 0);
	UNSOUND(answer.size = 4 * MIB);
	UNSOUND(answer.size = UINT64_MAX);
	UNSOUND(answer.chunk_count = 0);
	UNSOUND(answer.chunk_count = 1);
	UNSOUND(answer.chunk_count = NVS_IPC_CHUNKS + 1);
	UNSOUND(answer.count = 0);
	UNSOUND((answer.count = NVS_IPC_BATCH + 1, answer.chunk_count = NVS_IPC_CHUNKS));
	UNSOUND(answer.sizes[1] = 0);
	UNSOUND(answer.sizes[1] = 3 * MIB);
	UNSOUND(answer.sizes[1] = UINT64_MAX);
	struct nvs_ipc_answer refusal = nvs_ipc_answer_make(NVS_IPC_UNKNOWN);
	assert(nvs_ipc_answer_is_sound(&refusal, sizeof(refusal), 0, 7));
	assert(!nvs_ipc_answer_is_sound(&refusal, sizeof(refusal), 1, 7));
}

int main(void)
{
	test_only_handles_of_ours_are_read_as_such();
	test_a_question_is_whole_and_knows_the_secret();
	test_an_answer_that_contradicts_itself_is_found_out();
	puts("PASS");
	return 0;
}
