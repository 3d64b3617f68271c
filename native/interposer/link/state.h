/* What the files of the link share: its state, and the socket below it. */
#ifndef NVS_LINK_STATE_H
#define NVS_LINK_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "base/clock.h"
#include "gate/gate.h"
#include "gate/meter.h"
#include "nvshare_protocol.h"

enum nvs_link_phase {
	NVS_LINK_CONNECTING, /* not decided yet */
	NVS_LINK_ABSENT,     /* no scheduler, or it went away: run as if there were none, and keep looking */
	NVS_LINK_REGISTERING,
	NVS_LINK_REGISTERED,
	NVS_LINK_REFUSED, /* it does not want us */
};

struct nvs_gpu {
	CUdevice device;
	char uuid[48];
	bool can_swap;
	/* Guarded by nvs_link.lock. */
	bool announced;       /* the scheduler of this connection knows it */
	bool limit_known;     /* and has told its limits */
	uint64_t allocated;   /* bytes */
	uint64_t released;    /* bytes, since registration */
	uint64_t mem_limit;   /* 0: none */
	uint64_t card;        /* 0: not known */
	uint64_t dirty_since; /* something to tell since, ns; 0: nothing */
	/* Link thread only. */
	struct nvs_usage_counters told;
	uint64_t told_swapped; /* bytes, both ways */
};

/* A thread that waits for the answer to its request, on its own stack. */
struct nvs_waiter {
	uint32_t request;
	struct nvs_gpu *gpu;
	uint64_t bytes;
	bool keeps; /* they are counted already, and are to stay on the card */
	bool answered;
	bool told_to_wait; /* the scheduler knows of it, and will answer */
	uint32_t denied;   /* enum nvs_deny_reason; 0: granted */
	bool resident;     /* granted, and may be on the card now */
	struct nvs_waiter *next;
};

struct nvs_link {
	pthread_mutex_t
		lock; /* short: held for bookkeeping and one non-blocking send, never for a log line or a driver call */
	pthread_cond_t changed;
	enum nvs_link_phase phase;
	bool running; /* the thread */
	int fd;       /* -1: not connected. Only the link thread opens and closes it */
	bool broken;  /* a send failed; the link thread will close it */
	uint32_t frames_sent;
	int wake_fd;
	uint64_t client_id;
	_Atomic uint32_t gpu_count; /* grows under the lock; the entries below it stay */
	struct nvs_gpu gpus[NVS_MAX_GPUS];
	uint32_t requests;
	struct nvs_waiter *waiters;
	_Atomic bool wanted; /* a submitter waits at the gate */
	_Atomic bool asleep; /* the thread waits for something to happen */
	uint64_t meter_at;   /* when it looks at submissions next, ns; 0: it was just woken. Link thread only */
};

extern struct nvs_link nvs_link __attribute__((visibility("hidden")));

/* ---- link/link.c ---- */
/* Answer every waiter from what is known here. The lock is held. */
void nvs_link_answer_all(void);
/* Answer one, 0 or an nvs_deny_reason; nothing happens when nobody waits for this request. The lock is held. */
void nvs_link_answer(uint32_t request, uint32_t denied);
/* The answer to this request will take its time. The lock is held. */
void nvs_link_hold(uint32_t request);

/* False when there is no connection, or none any more. */
bool nvs_link_send(uint16_t type, const void *payload, size_t size);
bool nvs_link_send_locked(uint16_t type, const void *payload, size_t size);

/* ---- link/thread.c ---- */
void *nvs_link_thread(void *unused);
void nvs_link_thread_after_fork(void);
/* Follow submissions no more until the next one, if there were `submissions` so far. */
void nvs_link_fall_asleep(uint64_t submissions);
/* Tell the scheduler what was released, at once; the lock is held. */
void nvs_link_send_memory(struct nvs_gpu *gpu);

/* ---- link/socket.c ---- */

/* Frames as they come in, whatever the portions. */
struct nvs_frames {
	uint32_t expected; /* number of the next frame, less one */
	size_t used, taken;
	_Alignas(8) uint8_t bytes[sizeof(struct nvs_header) + NVS_MAX_REQUEST];
};

enum nvs_frame_result { NVS_FRAME_NONE, NVS_FRAME_READY, NVS_FRAME_BAD };
/* The next complete frame; its payload stays valid until the next call. BAD: this is not our protocol. */
enum nvs_frame_result nvs_frames_next(struct nvs_frames *frames, struct nvs_header *header, const void **payload);

/* 0, or the errno that tells why not. On success *fd is connected, non-blocking and closed on exec. */
int nvs_socket_connect(const char *path, int *fd);
/* False when the peer is gone. */
bool nvs_socket_receive(int fd, struct nvs_frames *frames);
/* One frame of one or two parts. False when it could not be sent whole, at once. */
bool nvs_socket_send(
	int fd, uint16_t type, uint32_t sequence, const void *payload, size_t size, const void *rest, size_t rest_size);

#endif
