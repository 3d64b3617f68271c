/* The sockets between two processes that share memory: abstract, so that nothing is left of them when a process is
 * killed, and they do not reach beyond the network namespace; packets, so that a message is there whole or not at all.
 */
#ifndef NVS_IPC_SOCKET_H
#define NVS_IPC_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/wire.h"

/* A listening socket of this name, non-blocking and closed on exec; -1: errno says why not. */
int nvs_ipc_listen(const uint8_t name[NVS_IPC_SECRET]);
/* Connected to the one of this name, with an end to all waiting; -1: errno says why not. */
int nvs_ipc_connect(const uint8_t name[NVS_IPC_SECRET]);
/* Does a process of the same user hold the other end? The kernel says so. */
bool nvs_ipc_is_same_user(int fd);

/* False when it was not sent, whole and at once. */
bool nvs_ipc_send(int fd, const void *bytes, size_t size, const int *descriptors, uint32_t count);
/* The length of what came, at most `size`, and the descriptors that came with it, at most NVS_IPC_BATCH; they are
 * closed on exec, and the caller's. 0: the other end is closed. -1: nothing came in time, or too much; then there are
 * none. */
ssize_t nvs_ipc_receive(int fd, void *bytes, size_t size, int descriptors[NVS_IPC_BATCH], uint32_t *count);

#endif
