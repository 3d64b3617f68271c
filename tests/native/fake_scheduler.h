/* The scheduler's side of the socket, driven by a test step by step. */
#ifndef FAKE_SCHEDULER_H
#define FAKE_SCHEDULER_H

#include "fake_gpu.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "nvshare_protocol.h"

static struct {
	char path[108];
	int listening, client;
	uint32_t sent, received;
} scheduler = {.listening = -1, .client = -1};

static inline void scheduler_listen(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", scheduler.path);
	unlink(scheduler.path);
	scheduler.listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(scheduler.listening, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(scheduler.listening, 8) == 0);
}

static inline void scheduler_accept(void)
{
	struct timeval patience = {.tv_sec = 20};
	setsockopt(scheduler.listening, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	scheduler.client = accept(scheduler.listening, NULL, NULL);
	CHECK(scheduler.client >= 0);
	setsockopt(scheduler.client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	scheduler.sent = scheduler.received = 0;
}

static inline void scheduler_send(uint16_t type, const void *payload, size_t size)
{
	struct nvs_header header = {.magic = NVS_MAGIC,
		.version = NVS_VERSION,
		.type = type,
		.length = (uint32_t)size,
		.sequence = ++scheduler.sent};
	CHECK(send(scheduler.client, &header, sizeof(header), MSG_NOSIGNAL) == sizeof(header));
	CHECK(size == 0 || send(scheduler.client, payload, size, MSG_NOSIGNAL) == (ssize_t)size);
}
#define SCHEDULER_SEND(type, ...)                                                                                      \
	do {                                                                                                           \
		__VA_ARGS__;                                                                                           \
		scheduler_send(type, &message, sizeof(message));                                                       \
	} while (0)

/* The next frame of this type; USAGE may come at any time and is skipped, anything else out of order fails. */
static inline void scheduler_expect(uint16_t type, void *payload, size_t size)
{
	struct nvs_header header;
	uint8_t bytes[4096];
	do {
		CHECK(recv(scheduler.client, &header, sizeof(header), MSG_WAITALL) == sizeof(header));
		CHECK(header.magic == NVS_MAGIC && header.version == NVS_VERSION && header.length <= sizeof(bytes));
		CHECK(header.sequence == ++scheduler.received);
		CHECK(header.length == 0 || recv(scheduler.client, bytes, header.length, MSG_WAITALL) == (ssize_t)header.length);
	} while (header.type == NVS_USAGE && type != NVS_USAGE);
	if (header.type != type)
		fprintf(stderr, "expected message %u, got %u\n", type, header.type);
	CHECK(header.type == type && header.length >= size);
	memcpy(payload, bytes, size);
}

/* True when the client hung up, or anything else came. */
static inline bool scheduler_hears_something(int within_ms)
{
	struct timeval patience = {.tv_usec = within_ms * 1000};
	char byte;
	setsockopt(scheduler.client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	ssize_t got = recv(scheduler.client, &byte, 1, MSG_PEEK);
	patience = (struct timeval){.tv_sec = 20};
	setsockopt(scheduler.client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return got >= 0;
}

static inline void scheduler_vanish(void)
{
	close(scheduler.client);
	close(scheduler.listening);
	unlink(scheduler.path);
	scheduler.client = scheduler.listening = -1;
}

#endif
