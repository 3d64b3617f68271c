/* The scheduler's side of the socket, driven by a test step by step. */
#ifndef FAKE_SCHEDULER_H
#define FAKE_SCHEDULER_H

#include "fake_gpu.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "nvshare_protocol.h"

static struct {
	char path[108];
	int listening, client;
	uint32_t sent, received;
	uint32_t length; /* of the last payload received */
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

/* The next frame, whatever it is: its type; of the payload as much as fits. */
static inline uint16_t scheduler_receive(void *payload, size_t size)
{
	struct nvs_header header;
	uint8_t bytes[4096];
	CHECK(recv(scheduler.client, &header, sizeof(header), MSG_WAITALL) == sizeof(header));
	CHECK(header.magic == NVS_MAGIC && header.version == NVS_VERSION && header.length <= sizeof(bytes));
	CHECK(header.sequence == ++scheduler.received);
	CHECK(header.length == 0 ||
		recv(scheduler.client, bytes, header.length, MSG_WAITALL) == (ssize_t)header.length);
	memcpy(payload, bytes, size < header.length ? size : header.length);
	scheduler.length = header.length;
	return header.type;
}

/* The next frame of this type; USAGE and SLEEPABLE may come at any time and are skipped, anything else out of order
 * fails. */
static inline void scheduler_expect(uint16_t type, void *payload, size_t size)
{
	uint16_t got;
	do
		got = scheduler_receive(payload, size);
	while (got != type && (got == NVS_USAGE || got == NVS_SLEEPABLE));
	if (got != type)
		fprintf(stderr, "expected message %u, got %u\n", type, got);
	CHECK(got == type && scheduler.length >= size);
}

/* Nothing comes for a while; USAGE and SLEEPABLE do not count. */
static inline void scheduler_expect_silence(int for_ms)
{
	struct nvs_usage usage;
	uint64_t end = nvs_now_ns() + (uint64_t)for_ms * NVS_NS_PER_MS;
	for (uint64_t now = nvs_now_ns(); now < end; now = nvs_now_ns()) {
		struct pollfd watched = {.fd = scheduler.client, .events = POLLIN};
		if (poll(&watched, 1, (int)((end - now) / NVS_NS_PER_MS) + 1) <= 0)
			continue;
		uint16_t got = scheduler_receive(&usage, sizeof(usage));
		CHECK(got == NVS_USAGE || got == NVS_SLEEPABLE);
	}
}

static inline void scheduler_vanish(void)
{
	close(scheduler.client);
	close(scheduler.listening);
	unlink(scheduler.path);
	scheduler.client = scheduler.listening = -1;
}

#endif
