/* The thread that gives descriptors of exported memory to other processes. It lives once something was exported. */
#ifndef NVS_IPC_SERVER_H
#define NVS_IPC_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

/* Start it, if it does not run yet; its name, and the secret that those who ask have to know. False: the system does
 * not allow it, errno says why. */
bool nvs_ipc_serve(uint8_t name[NVS_IPC_SECRET], uint8_t secret[NVS_IPC_SECRET]);
/* Is this the name of this process's own? */
bool nvs_ipc_is_own(const uint8_t name[NVS_IPC_SECRET]);

void nvs_ipc_server_after_fork(void);

#endif
