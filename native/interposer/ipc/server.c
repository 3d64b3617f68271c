/* Who asks is one of a few peers at a time, each question and answer is one packet, and nothing here waits for a peer:
 * one that is silent or slow keeps nobody from being served. */
#include "ipc/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/helper_thread.h"
#include "base/log.h"
#include "gate/streams.h"
#include "ipc/socket.h"
#include "ipc/state.h"
#include "memory/swap/backing.h"
#include "memory/swap/residency.h"
#include "memory/table.h"
#include "resolve/resolve.h"

#define SHORTAGE_NS (10 * NVS_NS_PER_MS) /* the system has no descriptors or memory left: look again then */

struct nvs_ipc_server nvs_ipc_server = {.lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1};

/* A socket in somebody else's program, which may close it with all it does not know and give its number away. */
struct own_socket {
	int fd;
	ino_t inode;
};

/* Of the thread alone: the first that came first. */
static struct own_socket peer_sockets[NVS_IPC_PEERS];
static uint32_t peer_count;

/* ---- giving ---- */

/* The live, exported allocation that is asked for, with its backing lent. */
static struct nvs_backing *lend_what_is_asked(const struct nvs_ipc_ask *ask, struct nvs_allocation *found)
{
	if (!nvs_table_find(ask->base, found) || found->id != ask->id || !found->exported)
		return NULL;
	struct nvs_backing *backing = nvs_residency_lend(found->device, found->home);
	struct nvs_allocation still;
	if (backing == NULL || (nvs_table_find(ask->base, &still) && still.id == ask->id))
		return backing;
	nvs_residency_unlend(backing); /* freed before it was lent: this is somebody else's by now */
	return NULL;
}

static void describe_allocation(struct nvs_ipc_answer *answer, const struct nvs_backing *backing,
	const struct nvs_allocation *found, uint32_t first)
{
	answer->whole = backing->size;
	answer->offset = found->home - backing->base;
	answer->size = found->size;
	answer->chunk_count = (uint32_t)backing->chunk_count;
	answer->first = first;
}

/* The lock is held. Chunks that are held do not move, and what is lent is not freed: their handles stay. */
static enum nvs_ipc_status fill_answer(struct nvs_ipc_answer *answer, const struct nvs_backing *backing, uint32_t first)
{
	if (first >= backing->chunk_count)
		return NVS_IPC_UNKNOWN;
	size_t left = backing->chunk_count - first;
	uint32_t count = left < NVS_IPC_BATCH ? (uint32_t)left : NVS_IPC_BATCH;
	for (uint32_t i = 0; i < count; i++) {
		const struct nvs_chunk *chunk = &backing->chunks[first + i];
		int fd = -1;
		CUresult result = nvs_real.cuMemExportToShareableHandle(
			&fd, chunk->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (result != CUDA_SUCCESS) {
			NVS_DEBUG("memory for another process: the driver answered %d", (int)result);
			return NVS_IPC_FAILED;
		}
		fcntl(fd, F_SETFD, FD_CLOEXEC); /* a program started meanwhile would keep the memory */
		nvs_ipc_server.in_hand[nvs_ipc_server.in_hand_count++] = fd;
		answer->sizes[answer->count++] = chunk->size;
	}
	return NVS_IPC_GIVEN;
}

/* The lock is held. */
static void drop_descriptors(void)
{
	while (nvs_ipc_server.in_hand_count > 0)
		close(nvs_ipc_server.in_hand[--nvs_ipc_server.in_hand_count]);
}

/* The lock is held. */
static bool give_to(int fd, const struct nvs_ipc_ask *ask)
{
	struct nvs_allocation found;
	struct nvs_ipc_answer answer = nvs_ipc_answer_make(NVS_IPC_UNKNOWN);
	struct nvs_backing *backing = lend_what_is_asked(ask, &found);
	if (backing != NULL) {
		describe_allocation(&answer, backing, &found, ask->first);
		answer.status = fill_answer(&answer, backing, ask->first);
		nvs_residency_unlend(backing);
	}
	if (answer.status != NVS_IPC_GIVEN) {
		drop_descriptors();
		answer = nvs_ipc_answer_make(answer.status);
	}
	bool sent = nvs_ipc_send(fd, &answer, sizeof(answer), nvs_ipc_server.in_hand, nvs_ipc_server.in_hand_count);
	drop_descriptors();
	return sent;
}

static bool turn_away(int fd)
{
	struct nvs_ipc_answer answer = nvs_ipc_answer_make(NVS_IPC_UNKNOWN);
	nvs_ipc_send(fd, &answer, sizeof(answer), NULL, 0);
	return false;
}

/* False: done with this peer. What it may send is one question, of one size. */
static bool hear_peer(int fd)
{
	_Alignas(8) uint8_t bytes[sizeof(struct nvs_ipc_ask) + 1];
	ssize_t length = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	if (length < 0)
		return errno == EINTR || errno == EAGAIN;
	if (length == 0)
		return false;
	if (!nvs_ipc_ask_is_good(bytes, (size_t)length, nvs_ipc_server.secret))
		return turn_away(fd);
	pthread_mutex_lock(&nvs_ipc_server.lock);
	bool given = !nvs_ipc_server.ended && give_to(fd, (const struct nvs_ipc_ask *)bytes);
	pthread_mutex_unlock(&nvs_ipc_server.lock);
	return given;
}

/* ---- peers ---- */

static struct own_socket own_socket_of(int fd)
{
	struct stat status = {0};
	fstat(fd, &status);
	return (struct own_socket){.fd = fd, .inode = status.st_ino};
}

static bool is_still_own(const struct own_socket *socket)
{
	struct stat status;
	return fstat(socket->fd, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == socket->inode;
}

static void drop_peer(uint32_t index)
{
	if (is_still_own(&peer_sockets[index]))
		close(peer_sockets[index].fd);
	peer_count--;
	memmove(&peer_sockets[index], &peer_sockets[index + 1], (peer_count - index) * sizeof(peer_sockets[0]));
}

static void welcome(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			nvs_sleep_ns(SHORTAGE_NS);
		return;
	}
	if (!nvs_ipc_is_same_user(fd)) {
		close(fd);
		return;
	}
	if (peer_count == NVS_IPC_PEERS)
		drop_peer(0);
	peer_sockets[peer_count++] = own_socket_of(fd);
}

/* The program has closed our socket. What is exported from now on has a server of its own. */
static void give_up_serving(void)
{
	while (peer_count > 0)
		drop_peer(0);
	pthread_mutex_lock(&nvs_ipc_server.lock);
	nvs_ipc_server.running = false;
	nvs_ipc_server.listener = -1;
	pthread_mutex_unlock(&nvs_ipc_server.lock);
	NVS_WARN("the program closed the socket over which other processes ask for its memory: handles that it gave "
		 "away "
		 "so far cannot be opened any more");
}

static void *serve_peers(void *unused)
{
	pthread_setname_np(pthread_self(), "nvshare-ipc");
	nvs_inside++;
	nvs_relax();
	struct own_socket listener = own_socket_of(nvs_ipc_server.listener); /* set before this thread began */
	while (is_still_own(&listener)) {
		struct pollfd polled[NVS_IPC_PEERS + 1] = {{.fd = listener.fd, .events = POLLIN}};
		uint32_t count = peer_count;
		for (uint32_t i = 0; i < count; i++)
			polled[i + 1] = (struct pollfd){.fd = peer_sockets[i].fd, .events = POLLIN};
		if (poll(polled, count + 1, -1) < 0) {
			nvs_sleep_ns(SHORTAGE_NS);
			continue;
		}
		for (uint32_t i = count; i-- > 0;) /* from the end: those before stay where they are */
			if (polled[i + 1].revents != 0 &&
				!(is_still_own(&peer_sockets[i]) && hear_peer(peer_sockets[i].fd)))
				drop_peer(i);
		if (polled[0].revents != 0 && is_still_own(&listener))
			welcome(listener.fd);
	}
	give_up_serving();
	return unused;
}

/* ---- life ---- */

/* What the driver is asked for now is the last: at exit it goes before this thread does. */
static void end_server(void)
{
	pthread_mutex_lock(&nvs_ipc_server.lock);
	nvs_ipc_server.ended = true;
	pthread_mutex_unlock(&nvs_ipc_server.lock);
}

static void register_end_of_server(void)
{
	atexit(end_server);
}

/* The lock is held. */
static bool start_server(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	if (syscall(SYS_getrandom, nvs_ipc_server.name, sizeof(nvs_ipc_server.name), 0) !=
			sizeof(nvs_ipc_server.name) ||
		syscall(SYS_getrandom, nvs_ipc_server.secret, sizeof(nvs_ipc_server.secret), 0) !=
			sizeof(nvs_ipc_server.secret))
		return false;
	nvs_ipc_server.listener = nvs_ipc_listen(nvs_ipc_server.name);
	if (nvs_ipc_server.listener < 0)
		return false;
	pthread_once(&once, register_end_of_server);
	nvs_ipc_server.running = nvs_helper_start(serve_peers);
	if (!nvs_ipc_server.running) {
		close(nvs_ipc_server.listener);
		nvs_ipc_server.listener = -1;
		errno = EAGAIN;
	}
	return nvs_ipc_server.running;
}

bool nvs_ipc_serve(uint8_t name[NVS_IPC_SECRET], uint8_t secret[NVS_IPC_SECRET])
{
	pthread_mutex_lock(&nvs_ipc_server.lock);
	bool runs = nvs_ipc_server.running || start_server();
	memcpy(name, nvs_ipc_server.name, NVS_IPC_SECRET);
	memcpy(secret, nvs_ipc_server.secret, NVS_IPC_SECRET);
	pthread_mutex_unlock(&nvs_ipc_server.lock);
	return runs;
}

bool nvs_ipc_is_own(const uint8_t name[NVS_IPC_SECRET])
{
	pthread_mutex_lock(&nvs_ipc_server.lock);
	bool own = nvs_ipc_server.running && memcmp(name, nvs_ipc_server.name, NVS_IPC_SECRET) == 0;
	pthread_mutex_unlock(&nvs_ipc_server.lock);
	return own;
}

/* The child has all of these open too, and must neither answer in its parent's place nor keep the memory alive. */
void nvs_ipc_server_after_fork(void)
{
	pthread_mutex_init(&nvs_ipc_server.lock, NULL);
	if (nvs_ipc_server.listener >= 0)
		close(nvs_ipc_server.listener);
	for (uint32_t i = 0; i < peer_count; i++)
		close(peer_sockets[i].fd);
	drop_descriptors();
	peer_count = 0;
	nvs_ipc_server.listener = -1;
	nvs_ipc_server.running = false;
}
