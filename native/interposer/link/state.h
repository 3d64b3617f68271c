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

/* What link/slices.c knows of a GPU. Link thread only. */
struct nvs_compute {
	bool needed;        /* submissions need a slice */
	uint32_t in_flight; /* work that may be in flight in a slice, us; 0: not said */
	bool asked;
	uint64_t number;    /* of the slice; 0: none */
	uint64_t over;      /* of the last one that was over, since registration */
	uint64_t overrun;   /* of one that is over, but whose work runs on; 0: none */
	uint64_t since;     /* the slice was given, ns */
	uint64_t length;    /* ns from then; 0: until told */
	uint64_t busy_at;   /* what the meter said when it began, us */
	uint64_t behind_at; /* the same of the pace, us */
	uint64_t marks_at;  /* and how many marks it had */
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
	bool asked;
	uint64_t grant;      /* 0: none */
	uint64_t given_back; /* the last one released, since registration */
	uint32_t grant_flags;
	uint64_t granted_at; /* ns */
	uint64_t quantum;    /* ns from then; 0: until told */
	struct nvs_compute compute;
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

/* ---- link/slices.c: slices, below the grants; link thread only ---- */

/* A thread that waited submits something within this time. */
#define NVS_WAKE_NS (5 * NVS_NS_PER_MS)
/* At most so much time passes unseen: a thread that waited wakes up, work ends between two looks. */
#define NVS_UNSEEN_NS (2 * NVS_NS_PER_MS)

void nvs_slice_terms(struct nvs_gpu *gpu, const struct nvs_terms *message);
void nvs_slice_given(struct nvs_gpu *gpu, const struct nvs_turn_ok *message);
void nvs_slice_told(struct nvs_gpu *gpu, const struct nvs_end_turn *message);
/* How the gate stands while all GPUs are granted: PACED in a slice, REST without one, OPEN where none is needed. */
enum nvs_gate_state nvs_slice_gate(void);
/* Work in flight in a slice, us; 0: as anywhere. */
uint64_t nvs_slice_budget(void);
/* The grants are gone, after a drain or without one: so are the slices. */
void nvs_slice_dropped(bool drained);
/* There is no scheduler any more, or it lets everything through: no terms. */
void nvs_slice_forget(void);
/* Ask for slices, if a submitter waits. The link's lock is held. */
void nvs_slice_ask(void);
/* End a slice whose time is over or that is not used, and follow what is still in flight. Returns when to look again, 0
 * for not at all. */
uint64_t nvs_slice_due(uint64_t now);
void nvs_slice_after_fork(void);

/* ---- link/turns.c: grants, and what they do to the gate; link thread only ---- */
void nvs_turn_granted(struct nvs_gpu *gpu, const struct nvs_lock_ok *message);
void nvs_turn_dropped(struct nvs_gpu *gpu, const struct nvs_drop_lock *message);
/* Registered: submissions need a grant (SCHED_ON), or nothing (SCHED_OFF). */
void nvs_turn_control(bool scheduled);
/* There is no scheduler any more. What was granted stays granted: it is told at the next registration. */
void nvs_turn_uncontrolled(void);
/* A further GPU: nothing goes until it is granted as well. */
void nvs_turn_extended(void);
/* Ask for what is not granted, if a submitter waits. */
void nvs_turn_ask(void);
/* Slices came, went or changed their terms: set the gate accordingly, if all GPUs are granted. */
void nvs_turn_refresh(void);
/* What waited for memory to move or work to end, and what has waited long enough without a scheduler. Returns when to
 * look again, 0 for not at all. */
uint64_t nvs_turn_proceed(uint64_t now);
/* End a turn whose time is over, or that is not used while others wait. Returns when to look again, 0 for not at all.
 */
uint64_t nvs_turn_end_due(uint64_t now);
void nvs_turn_after_fork(void);

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
