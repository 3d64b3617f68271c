/* The wire protocol for C. src/nvshare/wire/messages.py is the same definition for Python and says what each message
 * means; tests/integration/test_protocol_layout.py proves the two equal. All integers little-endian, all fields
 * naturally aligned. */
#ifndef NVSHARE_PROTOCOL_H
#define NVSHARE_PROTOCOL_H

#include <stdint.h>

#define NVS_MAGIC 0x4853564eu /* "NVSH" */
#define NVS_VERSION 1
#define NVS_MAX_REQUEST (64u * 1024u)
#define NVS_MAX_GPUS 16
#define NVS_MAX_PROCESSES 4000
#define NVS_ALL_GPUS 0xffffffffu

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
};

enum nvs_release_reason { NVS_RELEASE_TOLD = 0, NVS_RELEASE_IDLE = 1, NVS_RELEASE_ENDED = 2, NVS_RELEASE_STUCK = 3 };
enum nvs_turn_reason { NVS_TURN_ENDED = 0, NVS_TURN_IDLE = 1, NVS_TURN_TOLD = 2, NVS_TURN_STUCK = 3 };
enum nvs_deny_reason { NVS_DENY_QUOTA = 1, NVS_DENY_CARD = 2, NVS_DENY_HOST = 3 };

#define NVS_FLAG_CAN_SWAP 1u  /* REGISTER */
#define NVS_FLAG_OVERSIZE 2u  /* REGISTER: runs with as much of its memory on the card as there is room for */
#define NVS_FLAG_EXCLUSIVE 1u /* LOCK_OK */
#define NVS_FLAG_CONTENDED 2u /* LOCK_OK */
#define NVS_FLAG_STAYS 1u     /* MEM_REQUEST: these bytes can never be moved */
#define NVS_FLAG_COUNTED 2u   /* MEM_REQUEST, with STAYS: the client has them already */
#define NVS_FLAG_TURNS 1u     /* TERMS */
#define NVS_FLAG_ALONE 1u     /* TURN_OK */

struct nvs_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t length; /* of the payload */
	uint32_t sequence;
};

struct nvs_gpu_entry {
	char uuid[48];
	uint64_t allocated;
	uint64_t resident;
	uint64_t grant;
};

struct nvs_register {
	uint64_t previous_id;
	uint64_t mem_limit;
	uint32_t core_limit;
	uint32_t priority;
	uint32_t flags;
	uint32_t gpu_count;
	char name[32];
	char pod_name[256];
	char pod_namespace[64];
	char library[16];
	/* struct nvs_gpu_entry gpus[gpu_count] */
};

struct nvs_sched_on {
	uint64_t client_id;
	uint32_t flags;
	uint32_t reserved;
};

struct nvs_sched_off {
	uint64_t client_id;
	uint32_t flags;
	uint32_t reserved;
};

struct nvs_req_lock {
	uint32_t gpu;
	uint32_t flags;
	uint64_t need;
};

struct nvs_lock_ok {
	uint32_t gpu;
	uint32_t flags;
	uint64_t grant;
	uint32_t quantum_ms;
	uint32_t running;
};

struct nvs_drop_lock {
	uint32_t gpu;
	uint32_t deadline_ms;
	uint64_t grant;
};

struct nvs_lock_released {
	uint32_t gpu;
	uint32_t reason;
	uint64_t grant;
	uint64_t occupied_us;
	uint64_t drain_us;
};

struct nvs_set_tq {
	uint32_t seconds;
	uint32_t reserved;
};

struct nvs_mem_update {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t released;
	uint64_t resident;
	uint64_t host;
	uint64_t pinned;
	uint64_t applied;
};

struct nvs_wait_for_mem {
	uint32_t gpu;
	uint32_t request;
	uint64_t bytes;
};

struct nvs_mem_available {
	uint32_t gpu;
	uint32_t request;
	uint64_t bytes;
};

struct nvs_prepare_swap_out {
	uint32_t gpu;
	uint32_t flags;
	uint64_t bytes;
};

struct nvs_update_limit {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t mem_limit;
	uint64_t card;
};

struct nvs_update_core_limit {
	uint32_t gpu;
	uint32_t percent;
};

struct nvs_refused {
	uint32_t version;
	uint32_t code;
	char reason[256];
};

struct nvs_attach {
	uint32_t gpu_count;
	uint32_t reserved;
	/* struct nvs_gpu_entry gpus[gpu_count] */
};

struct nvs_mem_request {
	uint32_t gpu;
	uint32_t request;
	uint64_t bytes;
	uint32_t flags;
	uint32_t reserved;
};

struct nvs_mem_denied {
	uint32_t gpu;
	uint32_t request;
	uint64_t bytes;
	uint64_t limit;
	uint32_t reason;
	uint32_t reserved;
};

struct nvs_usage {
	uint32_t gpu;
	uint32_t window;
	uint64_t occupied_us;
	uint64_t submissions;
	uint64_t swapped_out;
	uint64_t swapped_in;
};

struct nvs_residency {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t number;
	uint64_t target;
};

struct nvs_terms {
	uint32_t gpu;
	uint32_t flags; /* without NVS_FLAG_TURNS a turn under way is void, and no TURN_OVER follows */
	uint32_t in_flight_us;
	uint32_t reserved;
};

struct nvs_req_turn {
	uint32_t gpu;
	uint32_t flags;
};

struct nvs_turn_ok {
	uint32_t gpu;
	uint32_t flags;
	uint64_t number;
	uint32_t length_us;
	uint32_t reserved;
};

struct nvs_end_turn {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t number;
};

struct nvs_turn_over {
	uint32_t gpu;
	uint32_t reason;
	uint64_t number;
	uint64_t used_us;
	uint64_t busy_us;
	uint32_t pending_us; /* 0: the last word on this turn */
	uint32_t wants;      /* counts as REQ_TURN */
};

struct nvs_share {
	char uuid[48];
};

struct nvs_process_entry {
	uint32_t pid;
	uint32_t reserved;
	uint64_t allocated;
};

struct nvs_share_reply {
	uint64_t card;
	uint64_t used;
	uint32_t process_count;
	uint32_t reserved;
	/* struct nvs_process_entry processes[process_count] */
};

#endif
