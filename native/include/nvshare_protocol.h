/* Generated from src/nvshare/wire by `make generate`: do not edit.
 *
 * The wire protocol for C. All integers are little-endian, all fields naturally aligned; text is UTF-8 in fixed fields
 * padded with zero bytes. Reserved bytes are sent as zeros and ignored when received. */
#ifndef NVSHARE_PROTOCOL_H
#define NVSHARE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

/* "NVSH" as little-endian bytes */
#define NVS_MAGIC 0x4853564eu
/* of the frame and of the rules in docs/protocol.md; the two sides of a connection have the same one */
#define NVS_VERSION 1u
/* the largest payload that the scheduler and libnvshare.so accept, in bytes */
#define NVS_MAX_REQUEST 65536u
/* the largest payload that nvsharectl accepts: the status of a full node */
#define NVS_MAX_REPLY 16777216u
/* the GPUs that one process may attach */
#define NVS_MAX_GPUS 16u
/* the entries of one SHARE_REPLY, which stays below MAX_REQUEST */
#define NVS_MAX_PROCESSES 4000u
/* as the gpu of a message from the scheduler: each GPU that the client has attached */
#define NVS_ALL_GPUS 0xffffffffu
/* REGISTER: the client can move its memory to the host */
#define NVS_FLAG_CAN_SWAP 1u
/* REGISTER: the client may be larger than the card and runs with as much of its memory there as fits */
#define NVS_FLAG_OVERSIZE 2u
/* REGISTER: the client's contexts are off its cards; it never registers on the way out or in */
#define NVS_FLAG_ASLEEP 4u
/* REGISTER: the 7 bits of the flags from this one on are the percent that is guaranteed; 0: nothing */
#define NVS_FLOOR_SHIFT 8u
/* LOCK_OK: no other client runs on this GPU; keep little work in flight, so that a drain is short */
#define NVS_FLAG_EXCLUSIVE 1u
/* LOCK_OK: others wait; release as soon as idle */
#define NVS_FLAG_CONTENDED 2u
/* MEM_REQUEST: these bytes can never be moved */
#define NVS_FLAG_STAYS 1u
/* MEM_REQUEST, with FLAG_STAYS: the client has these bytes already */
#define NVS_FLAG_COUNTED 2u
/* TERMS: work on this GPU needs a slice; without this flag the grant is enough */
#define NVS_FLAG_TURNS 1u

/* What a payload is. Users know the names of 1 to 14. A receiver skips a type that it does not know. */
enum nvs_message_type {
	NVS_REGISTER = 1,
	NVS_SCHED_ON = 2,
	NVS_SCHED_OFF = 3,
	NVS_REQ_LOCK = 4,
	NVS_LOCK_OK = 5,
	NVS_DROP_LOCK = 6,
	NVS_LOCK_RELEASED = 7,
	NVS_SET_TQ = 8,
	NVS_MEM_UPDATE = 9,
	NVS_WAIT_FOR_MEM = 10,
	NVS_MEM_AVAILABLE = 11,
	NVS_PREPARE_SWAP_OUT = 12,
	NVS_UPDATE_LIMIT = 13,
	NVS_UPDATE_CORE_LIMIT = 14,
	NVS_REFUSED = 15,
	NVS_ATTACH = 16,
	NVS_MEM_REQUEST = 17,
	NVS_MEM_DENIED = 18,
	NVS_USAGE = 19,
	NVS_CONTROL = 20,
	NVS_CONTROL_REPLY = 21,
	NVS_RESIDENCY = 22,
	NVS_TERMS = 23,
	NVS_REQ_TURN = 24,
	NVS_TURN_OK = 25,
	NVS_END_TURN = 26,
	NVS_TURN_OVER = 27,
	NVS_SHARE = 28,
	NVS_SHARE_REPLY = 29,
	NVS_SLEEPABLE = 30,
	NVS_SLEEP = 31,
	NVS_SLEPT = 32,
	NVS_REQ_WAKE = 33,
	NVS_WAKE = 34,
	NVS_AWAKE = 35,
};

/* Why a client gives up its grant. */
enum nvs_release_reason {
	/* it was sent DROP_LOCK */
	NVS_RELEASE_TOLD = 0,
	/* it has submitted nothing and run nothing for a while, and others wait */
	NVS_RELEASE_IDLE = 1,
	/* the quantum that came with the grant is over */
	NVS_RELEASE_ENDED = 2,
	/* the drain passed its deadline: the client's work still runs */
	NVS_RELEASE_STUCK = 3,
};

/* Why a slice is over. */
enum nvs_turn_reason {
	/* its time is used up */
	NVS_TURN_ENDED = 0,
	/* the client has had nothing to do for a while */
	NVS_TURN_IDLE = 1,
	/* it was sent END_TURN */
	NVS_TURN_TOLD = 2,
	/* work did not end in time; it runs on beside the work of others */
	NVS_TURN_STUCK = 3,
};

/* What stands against a memory request. */
enum nvs_deny_reason {
	/* the memory quota of the client's group */
	NVS_DENY_QUOTA = 1,
	/* the card: what cannot move leaves too little room */
	NVS_DENY_CARD = 2,
	/* the host: it has no room for what would have to leave the card */
	NVS_DENY_HOST = 3,
};

/* Why the scheduler ends a connection. */
enum nvs_refusal_code {
	/* the client speaks another VERSION; it does not try again */
	NVS_REFUSAL_VERSION = 1,
	/* a message does not parse, or cannot be meant */
	NVS_REFUSAL_MALFORMED = 2,
	/* the scheduler does not have this GPU */
	NVS_REFUSAL_UNKNOWN_GPU = 3,
	/* too many connections, or the core expelled the client */
	NVS_REFUSAL_LIMIT = 4,
};

/* Why a client cannot sleep. */
enum nvs_bar_reason {
	/* it can */
	NVS_BAR_NONE = 0,
	/* the driver has no checkpoint calls */
	NVS_BAR_DRIVER = 1,
	/* the process has managed memory */
	NVS_BAR_MANAGED = 2,
	/* memory is shared with another process, or exported */
	NVS_BAR_IPC = 3,
	/* the process runs under MPS */
	NVS_BAR_MPS = 4,
	/* external or mapped memory of a graphics API */
	NVS_BAR_GRAPHICS = 5,
	/* the program has driver functions that do not pass the gate */
	NVS_BAR_UNGATED = 6,
	/* a debugger or profiler is attached */
	NVS_BAR_DEBUGGER = 7,
	/* memory that cannot leave the card */
	NVS_BAR_PINNED = 8,
	/* contexts of a kind that the driver cannot restore */
	NVS_BAR_CONTEXTS = 9,
};

/* How a SLEEP ended. After all but the first the client is awake, with its contexts where they were. */
enum nvs_slept_outcome {
	/* the contexts are off all cards */
	NVS_SLEPT_ASLEEP = 0,
	/* the client cannot sleep: nothing was tried */
	NVS_SLEPT_DECLINED = 1,
	/* the driver refused */
	NVS_SLEPT_FAILED = 2,
	/* a thread wanted the driver before the lock: nothing was tried */
	NVS_SLEPT_WOKE = 3,
};

/* The header of a frame. The payload follows. */
struct nvs_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	/* of the payload, in bytes */
	uint32_t length;
	/* 1, 2, 3 ... per connection and direction */
	uint32_t sequence;
};

/* One GPU of a client, at the end of REGISTER and ATTACH. Later messages name it by its index there. */
struct nvs_gpu_entry {
	char uuid[48];
	/* bytes held now; not zero only when the process registers again */
	uint64_t allocated;
	/* bytes of them on the card */
	uint64_t resident;
	/* number of the grant that the client still holds; 0: none */
	uint64_t grant;
};

/* Client to scheduler, once per connection: the process makes its first CUDA context.
 *
 * Names and limits are what the process says of itself, from its environment. Where the kernel says otherwise the
 * scheduler believes the kernel. A limit from here never raises one that an operator set. */
struct nvs_register {
	/* id from an earlier connection of the same process; 0: none */
	uint64_t previous_id;
	/* bytes; 0: none */
	uint64_t mem_limit;
	/* percent; 0: none */
	uint32_t core_limit;
	/* 0: normal, 1: high */
	uint32_t priority;
	uint32_t flags;
	uint32_t gpu_count;
	/* of the program */
	char name[32];
	char pod_name[256];
	char pod_namespace[64];
	/* release of libnvshare.so */
	char library[16];
	/* struct nvs_gpu_entry gpus[gpu_count] */
};

/* Scheduler to client: the client is registered under this id, and needs a grant to run. From nvsharectl: switch
 * anti-thrash on. */
struct nvs_sched_on {
	uint64_t client_id;
	uint8_t reserved[8];
};

/* Scheduler to client: the client is registered under this id, and runs freely, since anti-thrash is off. From
 * nvsharectl: switch anti-thrash off. */
struct nvs_sched_off {
	uint64_t client_id;
	uint8_t reserved[8];
};

/* Client to scheduler: the client has work for this GPU and no grant. */
struct nvs_req_lock {
	uint32_t gpu;
	uint8_t reserved[12];
};

/* Scheduler to client: run. The same grant number again: only flags and quantum changed. */
struct nvs_lock_ok {
	uint32_t gpu;
	uint32_t flags;
	uint64_t grant;
	/* the client ends its turn after this, counted from the first LOCK_OK; 0: when told */
	uint32_t quantum_ms;
	uint8_t reserved[4];
};

/* Scheduler to client: stop submitting, drain, and answer LOCK_RELEASED within the deadline. */
struct nvs_drop_lock {
	uint32_t gpu;
	uint32_t deadline_ms;
	uint64_t grant;
};

/* Client to scheduler: the gate is shut and the client's work on this GPU has ended. With the reason STUCK the work
 * runs on. */
struct nvs_lock_released {
	uint32_t gpu;
	/* ReleaseReason */
	uint32_t reason;
	uint64_t grant;
	uint8_t reserved[16];
};

/* nvsharectl to scheduler: use this fixed quantum. */
struct nvs_set_tq {
	uint32_t seconds;
	uint8_t reserved[4];
};

/* Client to scheduler: what became of the memory that the client was granted.
 *
 * What a client has allocated is what it was granted less what it released. released only grows, so that no order of
 * messages can make the two sides disagree. */
struct nvs_mem_update {
	uint32_t gpu;
	uint8_t reserved[4];
	/* bytes given back since registration */
	uint64_t released;
	/* bytes on the card */
	uint64_t resident;
	/* bytes in host memory */
	uint64_t host;
	/* the part of resident that cannot move */
	uint64_t pinned;
	/* number of the last RESIDENCY that the client keeps to */
	uint64_t applied;
};

/* Scheduler to client: the memory request waits for room; MEM_AVAILABLE or MEM_DENIED follows. */
struct nvs_wait_for_mem {
	uint32_t gpu;
	uint32_t request;
	uint8_t reserved[8];
};

/* Scheduler to client: the memory request is granted. */
struct nvs_mem_available {
	uint32_t gpu;
	uint32_t request;
	uint8_t reserved[8];
};

/* Scheduler to client: this many bytes may have to leave the card when the client's turn ends. The client allocates
 * host memory for them meanwhile. */
struct nvs_prepare_swap_out {
	uint32_t gpu;
	uint8_t reserved[4];
	uint64_t bytes;
};

/* Scheduler to client: the memory quota of the client's group on this GPU, and the declared size of the card. */
struct nvs_update_limit {
	uint32_t gpu;
	uint8_t reserved[4];
	/* bytes; 0: none */
	uint64_t mem_limit;
	/* bytes that all tasks together may allocate */
	uint64_t card;
};

/* Scheduler to client: the compute quota of the client's group, the same on each GPU. */
struct nvs_update_core_limit {
	uint32_t gpu;
	uint32_t percent;
};

/* Scheduler to its peer, as the last message of a connection. Its layout is the same in each VERSION. */
struct nvs_refused {
	/* of the scheduler */
	uint32_t version;
	/* RefusalCode */
	uint32_t code;
	char reason[256];
};

/* Client to scheduler: the client uses these GPUs too. They are appended to the list of REGISTER. */
struct nvs_attach {
	uint32_t gpu_count;
	uint8_t reserved[4];
	/* struct nvs_gpu_entry gpus[gpu_count] */
};

/* Client to scheduler: may the client allocate this many bytes on this GPU? */
struct nvs_mem_request {
	uint32_t gpu;
	/* a number that the answer repeats */
	uint32_t request;
	uint64_t bytes;
	uint32_t flags;
	uint8_t reserved[4];
};

/* Scheduler to client: the memory request is denied. The application gets the CUDA out-of-memory error. */
struct nvs_mem_denied {
	uint32_t gpu;
	uint32_t request;
	uint8_t reserved[16];
	/* DenyReason */
	uint32_t reason;
	uint8_t reserved_end[4];
};

/* Client to scheduler: counters of this GPU since registration, and the window as it is now. */
struct nvs_usage {
	uint32_t gpu;
	/* the most submissions that may be in flight */
	uint32_t window;
	/* time with unfinished work */
	uint64_t occupied_us;
	uint64_t submissions;
	/* bytes */
	uint64_t swapped_out;
	/* bytes */
	uint64_t swapped_in;
};

/* Scheduler to client: how many bytes the client may have on this GPU from now on.
 *
 * Below what is resident: the client moves the rest to the host, a chunk at a time, and reports each with MEM_UPDATE.
 * Above: it brings back what is missing. The target of a client with a grant is never below what it has allocated. */
struct nvs_residency {
	uint32_t gpu;
	uint8_t reserved[4];
	/* 1, 2, 3 ... per client and GPU; MEM_UPDATE repeats it */
	uint64_t number;
	/* bytes */
	uint64_t target;
};

/* Scheduler to client: how the client runs on this GPU while it holds the grant. Before the first TERMS: freely.
 *
 * With FLAG_TURNS work needs a slice too, and work in flight stays within in_flight_us, so that a slice ends soon after
 * END_TURN. Memory stays where it is. Without the flag a slice that the client has is void, and no TURN_OVER follows.
 * Terms outlive the grant; they end with SCHED_OFF and with the connection. */
struct nvs_terms {
	uint32_t gpu;
	uint32_t flags;
	/* GPU time; 0: no bound */
	uint32_t in_flight_us;
	uint8_t reserved[4];
};

/* Client to scheduler: the client holds the grant of this GPU and has work, but no slice.
 *
 * Sent once for each slice, and not after a TURN_OVER that said it already. Work of the slice before may still be in
 * flight. */
struct nvs_req_turn {
	uint32_t gpu;
	uint8_t reserved[4];
};

/* Scheduler to client: here is a slice. The same number again: its length changed.
 *
 * A slice with a length ends early when the client has been idle for patience_us. A slice without one lasts until
 * END_TURN. */
struct nvs_turn_ok {
	uint32_t gpu;
	uint8_t reserved[4];
	uint64_t number;
	/* counted from the first TURN_OK with this number; 0: until told */
	uint32_t length_us;
	/* 0: a millisecond */
	uint32_t patience_us;
};

/* Scheduler to client: the slice is over now. */
struct nvs_end_turn {
	uint32_t gpu;
	uint8_t reserved[4];
	uint64_t number;
};

/* Client to scheduler: the client's gate is shut, and its slice is over.
 *
 * Sent once or twice for a slice. The first time work is still in flight, so that the next slice can begin without a
 * gap. The last time pending_us is 0 and the figures are final: all work has ended, or the client is given another
 * slice before that. Work that does not end within a second is reported every second with the reason STUCK: it runs on,
 * and its client may have another slice meanwhile. The slices of a gang end together, each with a TURN_OVER of its own,
 * and before LOCK_RELEASED. */
struct nvs_turn_over {
	uint32_t gpu;
	/* TurnReason */
	uint32_t reason;
	uint64_t number;
	/* time with unfinished work so far, including gaps below a millisecond */
	uint64_t used_us;
	/* the part of it in which the GPU was seen at work for this client */
	uint64_t busy_us;
	/* about what is still in flight; 0: nothing, and this is the last TURN_OVER of the slice */
	uint32_t pending_us;
	/* 1: a submitter waits already; counts as REQ_TURN */
	uint32_t wants;
};

/* Any process to scheduler: what does the group of this process have of this GPU? Needs no REGISTER. */
struct nvs_share {
	char uuid[48];
};

/* One process, at the end of SHARE_REPLY. */
struct nvs_process_entry {
	/* as the asking process sees it; 0: it cannot */
	uint32_t pid;
	uint8_t reserved[4];
	/* bytes */
	uint64_t allocated;
};

/* Scheduler to the sender of SHARE. */
struct nvs_share_reply {
	/* bytes: the size of the card as the asking process's group sees it; 0: the scheduler knows no group */
	uint64_t card;
	/* bytes that all processes of the group have allocated */
	uint64_t used;
	uint32_t process_count;
	uint8_t reserved[4];
	/* struct nvs_process_entry processes[process_count] */
};

/* Client to scheduler: can the client sleep? Sent after each REGISTER, and when the answer changes.
 *
 * A client that never sends it is never sent SLEEP. */
struct nvs_sleepable {
	/* BarReason */
	uint32_t bar;
	uint8_t reserved[4];
	/* bytes, from a client that registered asleep: as SLEEP said it; 0: not known */
	uint64_t context;
};

/* Scheduler to client: take your contexts off all cards. The client has no grant, and its targets are 0. */
struct nvs_sleep {
	/* 1, 2, 3 ... per registration; the answers repeat it */
	uint64_t order;
	/* the time-out of the driver's lock */
	uint32_t lock_ms;
	uint8_t reserved[4];
	/* bytes that the client's context takes on a card at most; 0: not known */
	uint64_t context;
};

/* Client to scheduler: how the SLEEP with this number ended. */
struct nvs_slept {
	uint64_t order;
	/* SleptOutcome */
	uint32_t outcome;
	/* BarReason, with DECLINED */
	uint32_t bar;
	/* CUresult, with FAILED */
	uint32_t error;
	uint8_t reserved[4];
};

/* Client to scheduler: the client is asleep, and a thread of it wants the driver. */
struct nvs_req_wake {
	/* of the SLEEP; 0: the client registered asleep */
	uint64_t order;
};

/* Scheduler to client: the room of your contexts is reserved on all your cards: restore and unlock. */
struct nvs_wake {
	/* of the SLEEP; 0: the client registered asleep */
	uint64_t order;
};

/* Client to scheduler: the contexts are back. With an error they are not: the client stays asleep, and tries again only
 * after another WAKE. */
struct nvs_awake {
	uint64_t order;
	/* CUresult of the restore */
	uint32_t error;
	uint8_t reserved[4];
};

/* The bytes of each struct that the previous release sends too. Fields behind them may be missing: read as zeros. */
enum {
	nvs_header_least = 16,
	nvs_gpu_entry_least = 72,
	nvs_register_least = 400,
	nvs_sched_on_least = 16,
	nvs_sched_off_least = 16,
	nvs_req_lock_least = 16,
	nvs_lock_ok_least = 24,
	nvs_drop_lock_least = 16,
	nvs_lock_released_least = 32,
	nvs_set_tq_least = 8,
	nvs_mem_update_least = 48,
	nvs_wait_for_mem_least = 16,
	nvs_mem_available_least = 16,
	nvs_prepare_swap_out_least = 16,
	nvs_update_limit_least = 24,
	nvs_update_core_limit_least = 8,
	nvs_refused_least = 264,
	nvs_attach_least = 8,
	nvs_mem_request_least = 24,
	nvs_mem_denied_least = 32,
	nvs_usage_least = 40,
	nvs_residency_least = 24,
	nvs_terms_least = 16,
	nvs_req_turn_least = 8,
	nvs_turn_ok_least = 24,
	nvs_end_turn_least = 16,
	nvs_turn_over_least = 40,
	nvs_share_least = 48,
	nvs_process_entry_least = 16,
	nvs_share_reply_least = 24,
	nvs_sleepable_least = 16,
	nvs_sleep_least = 24,
	nvs_slept_least = 24,
	nvs_req_wake_least = 8,
	nvs_wake_least = 8,
	nvs_awake_least = 16,
};

/* The compiler's layout is that of Python: where each field begins and ends, and the size of each struct. */
#define NVS_END(t, f) (offsetof(struct t, f) + sizeof(((struct t *)0)->f))
#define NVS_FIELD(t, f, at, end) _Static_assert(offsetof(struct t, f) == at && NVS_END(t, f) == end, #t "." #f)
#define NVS_SIZE(t, size) _Static_assert(sizeof(struct t) == size, #t)
NVS_FIELD(nvs_header, magic, 0, 4);
NVS_FIELD(nvs_header, version, 4, 6);
NVS_FIELD(nvs_header, type, 6, 8);
NVS_FIELD(nvs_header, length, 8, 12);
NVS_FIELD(nvs_header, sequence, 12, 16);
NVS_SIZE(nvs_header, 16);
NVS_FIELD(nvs_gpu_entry, uuid, 0, 48);
NVS_FIELD(nvs_gpu_entry, allocated, 48, 56);
NVS_FIELD(nvs_gpu_entry, resident, 56, 64);
NVS_FIELD(nvs_gpu_entry, grant, 64, 72);
NVS_SIZE(nvs_gpu_entry, 72);
NVS_FIELD(nvs_register, previous_id, 0, 8);
NVS_FIELD(nvs_register, mem_limit, 8, 16);
NVS_FIELD(nvs_register, core_limit, 16, 20);
NVS_FIELD(nvs_register, priority, 20, 24);
NVS_FIELD(nvs_register, flags, 24, 28);
NVS_FIELD(nvs_register, gpu_count, 28, 32);
NVS_FIELD(nvs_register, name, 32, 64);
NVS_FIELD(nvs_register, pod_name, 64, 320);
NVS_FIELD(nvs_register, pod_namespace, 320, 384);
NVS_FIELD(nvs_register, library, 384, 400);
NVS_SIZE(nvs_register, 400);
NVS_FIELD(nvs_sched_on, client_id, 0, 8);
NVS_FIELD(nvs_sched_on, reserved, 8, 16);
NVS_SIZE(nvs_sched_on, 16);
NVS_FIELD(nvs_sched_off, client_id, 0, 8);
NVS_FIELD(nvs_sched_off, reserved, 8, 16);
NVS_SIZE(nvs_sched_off, 16);
NVS_FIELD(nvs_req_lock, gpu, 0, 4);
NVS_FIELD(nvs_req_lock, reserved, 4, 16);
NVS_SIZE(nvs_req_lock, 16);
NVS_FIELD(nvs_lock_ok, gpu, 0, 4);
NVS_FIELD(nvs_lock_ok, flags, 4, 8);
NVS_FIELD(nvs_lock_ok, grant, 8, 16);
NVS_FIELD(nvs_lock_ok, quantum_ms, 16, 20);
NVS_FIELD(nvs_lock_ok, reserved, 20, 24);
NVS_SIZE(nvs_lock_ok, 24);
NVS_FIELD(nvs_drop_lock, gpu, 0, 4);
NVS_FIELD(nvs_drop_lock, deadline_ms, 4, 8);
NVS_FIELD(nvs_drop_lock, grant, 8, 16);
NVS_SIZE(nvs_drop_lock, 16);
NVS_FIELD(nvs_lock_released, gpu, 0, 4);
NVS_FIELD(nvs_lock_released, reason, 4, 8);
NVS_FIELD(nvs_lock_released, grant, 8, 16);
NVS_FIELD(nvs_lock_released, reserved, 16, 32);
NVS_SIZE(nvs_lock_released, 32);
NVS_FIELD(nvs_set_tq, seconds, 0, 4);
NVS_FIELD(nvs_set_tq, reserved, 4, 8);
NVS_SIZE(nvs_set_tq, 8);
NVS_FIELD(nvs_mem_update, gpu, 0, 4);
NVS_FIELD(nvs_mem_update, reserved, 4, 8);
NVS_FIELD(nvs_mem_update, released, 8, 16);
NVS_FIELD(nvs_mem_update, resident, 16, 24);
NVS_FIELD(nvs_mem_update, host, 24, 32);
NVS_FIELD(nvs_mem_update, pinned, 32, 40);
NVS_FIELD(nvs_mem_update, applied, 40, 48);
NVS_SIZE(nvs_mem_update, 48);
NVS_FIELD(nvs_wait_for_mem, gpu, 0, 4);
NVS_FIELD(nvs_wait_for_mem, request, 4, 8);
NVS_FIELD(nvs_wait_for_mem, reserved, 8, 16);
NVS_SIZE(nvs_wait_for_mem, 16);
NVS_FIELD(nvs_mem_available, gpu, 0, 4);
NVS_FIELD(nvs_mem_available, request, 4, 8);
NVS_FIELD(nvs_mem_available, reserved, 8, 16);
NVS_SIZE(nvs_mem_available, 16);
NVS_FIELD(nvs_prepare_swap_out, gpu, 0, 4);
NVS_FIELD(nvs_prepare_swap_out, reserved, 4, 8);
NVS_FIELD(nvs_prepare_swap_out, bytes, 8, 16);
NVS_SIZE(nvs_prepare_swap_out, 16);
NVS_FIELD(nvs_update_limit, gpu, 0, 4);
NVS_FIELD(nvs_update_limit, reserved, 4, 8);
NVS_FIELD(nvs_update_limit, mem_limit, 8, 16);
NVS_FIELD(nvs_update_limit, card, 16, 24);
NVS_SIZE(nvs_update_limit, 24);
NVS_FIELD(nvs_update_core_limit, gpu, 0, 4);
NVS_FIELD(nvs_update_core_limit, percent, 4, 8);
NVS_SIZE(nvs_update_core_limit, 8);
NVS_FIELD(nvs_refused, version, 0, 4);
NVS_FIELD(nvs_refused, code, 4, 8);
NVS_FIELD(nvs_refused, reason, 8, 264);
NVS_SIZE(nvs_refused, 264);
NVS_FIELD(nvs_attach, gpu_count, 0, 4);
NVS_FIELD(nvs_attach, reserved, 4, 8);
NVS_SIZE(nvs_attach, 8);
NVS_FIELD(nvs_mem_request, gpu, 0, 4);
NVS_FIELD(nvs_mem_request, request, 4, 8);
NVS_FIELD(nvs_mem_request, bytes, 8, 16);
NVS_FIELD(nvs_mem_request, flags, 16, 20);
NVS_FIELD(nvs_mem_request, reserved, 20, 24);
NVS_SIZE(nvs_mem_request, 24);
NVS_FIELD(nvs_mem_denied, gpu, 0, 4);
NVS_FIELD(nvs_mem_denied, request, 4, 8);
NVS_FIELD(nvs_mem_denied, reserved, 8, 24);
NVS_FIELD(nvs_mem_denied, reason, 24, 28);
NVS_FIELD(nvs_mem_denied, reserved_end, 28, 32);
NVS_SIZE(nvs_mem_denied, 32);
NVS_FIELD(nvs_usage, gpu, 0, 4);
NVS_FIELD(nvs_usage, window, 4, 8);
NVS_FIELD(nvs_usage, occupied_us, 8, 16);
NVS_FIELD(nvs_usage, submissions, 16, 24);
NVS_FIELD(nvs_usage, swapped_out, 24, 32);
NVS_FIELD(nvs_usage, swapped_in, 32, 40);
NVS_SIZE(nvs_usage, 40);
NVS_FIELD(nvs_residency, gpu, 0, 4);
NVS_FIELD(nvs_residency, reserved, 4, 8);
NVS_FIELD(nvs_residency, number, 8, 16);
NVS_FIELD(nvs_residency, target, 16, 24);
NVS_SIZE(nvs_residency, 24);
NVS_FIELD(nvs_terms, gpu, 0, 4);
NVS_FIELD(nvs_terms, flags, 4, 8);
NVS_FIELD(nvs_terms, in_flight_us, 8, 12);
NVS_FIELD(nvs_terms, reserved, 12, 16);
NVS_SIZE(nvs_terms, 16);
NVS_FIELD(nvs_req_turn, gpu, 0, 4);
NVS_FIELD(nvs_req_turn, reserved, 4, 8);
NVS_SIZE(nvs_req_turn, 8);
NVS_FIELD(nvs_turn_ok, gpu, 0, 4);
NVS_FIELD(nvs_turn_ok, reserved, 4, 8);
NVS_FIELD(nvs_turn_ok, number, 8, 16);
NVS_FIELD(nvs_turn_ok, length_us, 16, 20);
NVS_FIELD(nvs_turn_ok, patience_us, 20, 24);
NVS_SIZE(nvs_turn_ok, 24);
NVS_FIELD(nvs_end_turn, gpu, 0, 4);
NVS_FIELD(nvs_end_turn, reserved, 4, 8);
NVS_FIELD(nvs_end_turn, number, 8, 16);
NVS_SIZE(nvs_end_turn, 16);
NVS_FIELD(nvs_turn_over, gpu, 0, 4);
NVS_FIELD(nvs_turn_over, reason, 4, 8);
NVS_FIELD(nvs_turn_over, number, 8, 16);
NVS_FIELD(nvs_turn_over, used_us, 16, 24);
NVS_FIELD(nvs_turn_over, busy_us, 24, 32);
NVS_FIELD(nvs_turn_over, pending_us, 32, 36);
NVS_FIELD(nvs_turn_over, wants, 36, 40);
NVS_SIZE(nvs_turn_over, 40);
NVS_FIELD(nvs_share, uuid, 0, 48);
NVS_SIZE(nvs_share, 48);
NVS_FIELD(nvs_process_entry, pid, 0, 4);
NVS_FIELD(nvs_process_entry, reserved, 4, 8);
NVS_FIELD(nvs_process_entry, allocated, 8, 16);
NVS_SIZE(nvs_process_entry, 16);
NVS_FIELD(nvs_share_reply, card, 0, 8);
NVS_FIELD(nvs_share_reply, used, 8, 16);
NVS_FIELD(nvs_share_reply, process_count, 16, 20);
NVS_FIELD(nvs_share_reply, reserved, 20, 24);
NVS_SIZE(nvs_share_reply, 24);
NVS_FIELD(nvs_sleepable, bar, 0, 4);
NVS_FIELD(nvs_sleepable, reserved, 4, 8);
NVS_FIELD(nvs_sleepable, context, 8, 16);
NVS_SIZE(nvs_sleepable, 16);
NVS_FIELD(nvs_sleep, order, 0, 8);
NVS_FIELD(nvs_sleep, lock_ms, 8, 12);
NVS_FIELD(nvs_sleep, reserved, 12, 16);
NVS_FIELD(nvs_sleep, context, 16, 24);
NVS_SIZE(nvs_sleep, 24);
NVS_FIELD(nvs_slept, order, 0, 8);
NVS_FIELD(nvs_slept, outcome, 8, 12);
NVS_FIELD(nvs_slept, bar, 12, 16);
NVS_FIELD(nvs_slept, error, 16, 20);
NVS_FIELD(nvs_slept, reserved, 20, 24);
NVS_SIZE(nvs_slept, 24);
NVS_FIELD(nvs_req_wake, order, 0, 8);
NVS_SIZE(nvs_req_wake, 8);
NVS_FIELD(nvs_wake, order, 0, 8);
NVS_SIZE(nvs_wake, 8);
NVS_FIELD(nvs_awake, order, 0, 8);
NVS_FIELD(nvs_awake, error, 8, 12);
NVS_FIELD(nvs_awake, reserved, 12, 16);
NVS_SIZE(nvs_awake, 16);

#undef NVS_END
#undef NVS_FIELD
#undef NVS_SIZE

#endif
