#include "link/share.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "link/state.h"

#define PATIENCE_MS 500

/* The entries follow the fixed part; a count that the payload cannot hold is not ours. */
static bool read_reply(const struct nvs_header *header, const void *payload, struct nvs_group_share *share)
{
	struct nvs_share_reply reply;
	if (header->type != NVS_SHARE_REPLY || header->length < sizeof(reply))
		return false;
	memcpy(&reply, payload, sizeof(reply));
	size_t size = (size_t)reply.process_count * sizeof(struct nvs_process_entry);
	if (reply.card == 0 || reply.process_count > NVS_MAX_PROCESSES || header->length - sizeof(reply) < size)
		return false;
	struct nvs_process_entry *processes = malloc(size + 1);
	if (processes == NULL)
		return false;
	memcpy(processes, (const uint8_t *)payload + sizeof(reply), size);
	*share = (struct nvs_group_share){reply.card, reply.used, reply.process_count, processes};
	return true;
}

/* The answer is the only frame that comes. */
static bool await_reply(int fd, struct nvs_frames *frames, struct nvs_group_share *share)
{
	uint64_t until = nvs_now_ns() + PATIENCE_MS * NVS_NS_PER_MS;
	for (;;) {
		struct nvs_header header;
		const void *payload;
		enum nvs_frame_result next = nvs_frames_next(frames, &header, &payload);
		if (next != NVS_FRAME_NONE)
			return next == NVS_FRAME_READY && read_reply(&header, payload, share);
		uint64_t now = nvs_now_ns();
		struct pollfd answer = {.fd = fd, .events = POLLIN};
		int ready = now < until ? poll(&answer, 1, (int)((until - now) / NVS_NS_PER_MS + 1)) : 0;
		if (ready == 0 || (ready < 0 && errno != EINTR) || (ready > 0 && !nvs_socket_receive(fd, frames)))
			return false;
	}
}

bool nvs_share_ask(const char *uuid, struct nvs_group_share *share)
{
	struct nvs_share question = {{0}};
	int fd;
	struct nvs_frames *frames = calloc(1, sizeof(*frames));
	if (frames == NULL || nvs_socket_connect(nvs_env()->socket_path, &fd) != 0) {
		free(frames);
		return false;
	}
	snprintf(question.uuid, sizeof(question.uuid), "%s", uuid);
	bool told = nvs_socket_send(fd, NVS_SHARE, 1, &question, sizeof(question), NULL, 0) &&
		    await_reply(fd, frames, share);
	close(fd);
	free(frames);
	return told;
}
