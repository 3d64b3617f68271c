#include "ipc/socket.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* An exporter answers at once, unless it is stopped or its machine is. */
#define PATIENCE_S 10
#define BACKLOG 64

union control {
	char bytes[CMSG_SPACE(sizeof(int) * NVS_IPC_BATCH)];
	struct cmsghdr aligned;
};

static socklen_t address_of(const uint8_t name[NVS_IPC_SECRET], struct sockaddr_un *address)
{
	char text[NVS_IPC_ADDRESS_BYTES];
	nvs_ipc_address(name, text);
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(address->sun_path + 1, text, strlen(text));
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
}

/* The errno of what failed is kept. */
static int give_up(int fd)
{
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

int nvs_ipc_listen(const uint8_t name[NVS_IPC_SECRET])
{
	struct sockaddr_un address;
	socklen_t length = address_of(name, &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (bind(fd, (const struct sockaddr *)&address, length) != 0 || listen(fd, BACKLOG) != 0)
		return give_up(fd);
	return fd;
}

int nvs_ipc_connect(const uint8_t name[NVS_IPC_SECRET])
{
	struct sockaddr_un address;
	socklen_t length = address_of(name, &address);
	struct timeval patience = {.tv_sec = PATIENCE_S};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), connected;
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	do
		connected = connect(fd, (const struct sockaddr *)&address, length);
	while (connected != 0 && errno == EINTR);
	return connected == 0 ? fd : give_up(fd);
}

bool nvs_ipc_is_same_user(int fd)
{
	struct ucred other;
	socklen_t length = sizeof(other);
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == geteuid();
}

bool nvs_ipc_send(int fd, const void *bytes, size_t size, const int *descriptors, uint32_t count)
{
	union control control = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t sent;
	if (count > 0) {
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(header), descriptors, sizeof(int) * count);
	}
	do
		sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)size;
}

static uint32_t take_descriptors(struct msghdr *message, int descriptors[NVS_IPC_BATCH])
{
	uint32_t count = 0;
	for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each != NULL; each = CMSG_NXTHDR(message, each)) {
		if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= each->cmsg_len && count < NVS_IPC_BATCH;
			at += sizeof(int))
			memcpy(&descriptors[count++], CMSG_DATA(each) + at, sizeof(int));
	}
	return count;
}

ssize_t nvs_ipc_receive(int fd, void *bytes, size_t size, int descriptors[NVS_IPC_BATCH], uint32_t *count)
{
	union control control;
	struct iovec part = {.iov_base = bytes, .iov_len = size};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
	ssize_t length;
	do
		length = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	while (length < 0 && errno == EINTR);
	*count = length < 0 ? 0 : take_descriptors(&message, descriptors);
	if (length < 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
		return length;
	while (*count > 0)
		close(descriptors[--*count]);
	return -1;
}
