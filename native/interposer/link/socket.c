#include "link/state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

int nvs_socket_connect(const char *path, int *fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	int connecting = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connecting < 0)
		return errno;
	if (connect(connecting, (struct sockaddr *)&address, sizeof(address)) != 0) {
		int error = errno;
		close(connecting);
		return error;
	}
	*fd = connecting;
	return 0;
}

bool nvs_socket_send(
	int fd, uint16_t type, uint32_t sequence, const void *payload, size_t size, const void *rest, size_t rest_size)
{
	struct nvs_header header = {
		.magic = NVS_MAGIC,
		.version = NVS_VERSION,
		.type = type,
		.length = (uint32_t)(size + rest_size),
		.sequence = sequence,
	};
	struct iovec parts[] = {
		{.iov_base = &header, .iov_len = sizeof(header)},
		{.iov_base = (void *)payload, .iov_len = size},
		{.iov_base = (void *)rest, .iov_len = rest_size},
	};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
	ssize_t sent;
	do
		sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)(sizeof(header) + size + rest_size);
}

bool nvs_socket_receive(int fd, struct nvs_frames *frames)
{
	memmove(frames->bytes, frames->bytes + frames->taken, frames->used - frames->taken);
	frames->used -= frames->taken;
	frames->taken = 0;
	ssize_t got;
	do
		got = recv(fd, frames->bytes + frames->used, sizeof(frames->bytes) - frames->used, MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK;
	frames->used += (size_t)got;
	return got > 0;
}

enum nvs_frame_result nvs_frames_next(struct nvs_frames *frames, struct nvs_header *header, const void **payload)
{
	size_t left = frames->used - frames->taken;
	if (left < sizeof(*header))
		return NVS_FRAME_NONE;
	memcpy(header, frames->bytes + frames->taken, sizeof(*header));
	/* A refusal can be read across versions: it is what a scheduler of another version answers. */
	bool readable = header->version == NVS_VERSION || header->type == NVS_REFUSED;
	if (header->magic != NVS_MAGIC || !readable || header->length > NVS_MAX_REQUEST ||
		header->sequence != frames->expected + 1)
		return NVS_FRAME_BAD;
	if (left < sizeof(*header) + header->length)
		return NVS_FRAME_NONE;
	*payload = frames->bytes + frames->taken + sizeof(*header);
	frames->taken += sizeof(*header) + header->length;
	frames->expected++;
	return NVS_FRAME_READY;
}
