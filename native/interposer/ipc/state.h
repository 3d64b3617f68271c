/* What the files of this folder know, for tests to look into. */
#ifndef NVS_IPC_STATE_H
#define NVS_IPC_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct nvs_import;

/* ---- imports.c ---- */

/* Every import that is open. */
extern struct nvs_import *nvs_imports __attribute__((visibility("hidden")));

/* ---- server.c ---- */

#define NVS_IPC_PEERS 16 /* when another one comes, the one that came first has to go */

struct nvs_ipc_server {
	pthread_mutex_t lock; /* of all this; held while the driver is asked for descriptors */
	bool running, ended;
	int listener;
	uint8_t name[NVS_IPC_SECRET], secret[NVS_IPC_SECRET];
	int in_hand[NVS_IPC_BATCH]; /* descriptors on their way to a peer */
	uint32_t in_hand_count;
};

extern struct nvs_ipc_server nvs_ipc_server __attribute__((visibility("hidden")));

#endif
