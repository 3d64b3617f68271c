#include "ipc/wire.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define IPC_VERSION 1u
#define IPC_MAGIC 0x6e767369u

static const uint8_t handle_magic[8] = {'n', 'v', 's', 'h', 'a', 'r', 'e', 0xc3};

struct nvs_ipc_handle nvs_ipc_handle_make(
	const uint8_t name[NVS_IPC_SECRET], const uint8_t secret[NVS_IPC_SECRET], CUdeviceptr base, uint64_t id)
{
	struct nvs_ipc_handle handle = {.base = base, .id = id, .pid = (uint32_t)getpid(), .version = IPC_VERSION};
	memcpy(handle.magic, handle_magic, sizeof(handle.magic));
	memcpy(handle.name, name, sizeof(handle.name));
	memcpy(handle.secret, secret, sizeof(handle.secret));
	return handle;
}

bool nvs_ipc_handle_read(const CUipcMemHandle *bytes, struct nvs_ipc_handle *handle)
{
	memcpy(handle, bytes, sizeof(*handle));
	return memcmp(handle->magic, handle_magic, sizeof(handle_magic)) == 0 && handle->version == IPC_VERSION;
}

struct nvs_ipc_ask nvs_ipc_ask_make(const struct nvs_ipc_handle *handle, uint32_t first)
{
	struct nvs_ipc_ask ask = {
		.magic = IPC_MAGIC, .version = IPC_VERSION, .base = handle->base, .id = handle->id, .first = first};
	memcpy(ask.secret, handle->secret, sizeof(ask.secret));
	return ask;
}

bool nvs_ipc_ask_is_good(const void *bytes, size_t length, const uint8_t secret[NVS_IPC_SECRET])
{
	const struct nvs_ipc_ask *ask = bytes;
	if (length != sizeof(*ask) || ask->magic != IPC_MAGIC || ask->version != IPC_VERSION)
		return false;
	uint8_t differs = 0; /* all of it, so that the time taken tells nothing */
	for (size_t i = 0; i < NVS_IPC_SECRET; i++)
		differs |= ask->secret[i] ^ secret[i];
	return differs == 0;
}

struct nvs_ipc_answer nvs_ipc_answer_make(enum nvs_ipc_status status)
{
	return (struct nvs_ipc_answer){.magic = IPC_MAGIC, .status = status};
}

static bool gives_what_it_says(const struct nvs_ipc_answer *answer, uint32_t descriptors, uint32_t first)
{
	if (answer->whole == 0 || answer->whole > NVS_IPC_LARGEST || answer->offset >= answer->whole ||
		answer->size == 0 || answer->size > answer->whole - answer->offset)
		return false;
	if (answer->chunk_count == 0 || answer->chunk_count > NVS_IPC_CHUNKS || answer->first != first ||
		first >= answer->chunk_count)
		return false;
	if (answer->count == 0 || answer->count > NVS_IPC_BATCH || answer->count > answer->chunk_count - first ||
		answer->count != descriptors)
		return false;
	uint64_t given = 0;
	for (uint32_t i = 0; i < answer->count; i++) {
		if (answer->sizes[i] == 0 || answer->sizes[i] > answer->whole - given)
			return false;
		given += answer->sizes[i];
	}
	return true;
}

bool nvs_ipc_answer_is_sound(const void *bytes, size_t length, uint32_t descriptors, uint32_t first)
{
	const struct nvs_ipc_answer *answer = bytes;
	if (length != sizeof(*answer) || answer->magic != IPC_MAGIC)
		return false;
	return answer->status != NVS_IPC_GIVEN ? descriptors == 0 : gives_what_it_says(answer, descriptors, first);
}

bool nvs_ipc_answers_agree(const struct nvs_ipc_answer *a, const struct nvs_ipc_answer *b)
{
	return a->whole == b->whole && a->offset == b->offset && a->size == b->size && a->chunk_count == b->chunk_count;
}

void nvs_ipc_address(const uint8_t name[NVS_IPC_SECRET], char text[NVS_IPC_ADDRESS_BYTES])
{
	int used = snprintf(text, NVS_IPC_ADDRESS_BYTES, "nvshare-ipc-");
	for (size_t i = 0; i < NVS_IPC_SECRET && used < NVS_IPC_ADDRESS_BYTES; i++)
		used += snprintf(text + used, NVS_IPC_ADDRESS_BYTES - (size_t)used, "%02x", name[i]);
}
