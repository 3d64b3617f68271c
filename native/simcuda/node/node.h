/* The state of a simulated node, shared by every process that uses it: one file, mapped by all, guarded by one robust
 * lock.
 *
 * Nobody runs in the background. Whoever touches the node first brings it up to the present (nvs_node_advance), so what
 * a process sees is always what a driver that never sleeps would have done. Time in here is simulated: nanoseconds
 * since the node was made, `speed` times as fast as the wall clock.
 *
 * Rules: fields are read and written with the lock held, except where a comment says otherwise. A process that dies
 * with the lock held leaves at worst a step half done; the next one to lock repairs the sums (nvs_node_lock). */
#ifndef NVS_SIM_NODE_H
#define NVS_SIM_NODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NVS_NODE_MAGIC 0x65726168736e7673ull
#define NVS_NODE_VERSION 4u /* of the layout below; sim.py checks the same number */
#define NVS_GPUS 16
#define NVS_SLOTS 256
#define NVS_ACCOUNTS 1024
#define NVS_MEMBERS 1024
#define NVS_MANAGED_PART ((uint64_t)2 << 20) /* managed memory moves by such parts */
#define NVS_RING 1024                        /* submissions in flight per context */
#define NVS_QUEUES 64                        /* more streams than this share a queue, as on hardware */
#define NVS_UUID_SIZE 41
#define NVS_BUSY_BUCKETS 16
#define NVS_BUSY_BUCKET_WALL_NS 62.5e6 /* sixteen of them: the last second */

/* What a card can do; the fields mean what profiles.py says. Rates are per second, launch_overhead is in seconds. */
struct nvs_profile {
	char name[32], display_name[64];
	uint64_t memory_bytes, context_bytes;
	double memory_bandwidth, flops;
	double link_h2d, link_d2h, link_duplex, pageable_h2d, pageable_d2h;
	double prefetch_h2d, prefetch_d2h, fault_bandwidth;
	double timeslice_efficiency, launch_overhead;
	double host_register_per_gib, host_alloc_per_gib;
	double mem_create, mem_map, mem_set_access, mem_unmap, mem_release;
	double checkpoint_out, checkpoint_in, checkpoint_d2h, checkpoint_h2d;
	uint64_t checkpointed_bytes;
	int32_t compute_major, compute_minor, multiprocessors, reserved;
};

/* How an administrator has set the node up; all zero as it comes. */
struct nvs_setup {
	int32_t compute_mode;  /* as in NVML: 0 default, 2 prohibited, 3 exclusive to one process */
	int32_t mig_mode;      /* 1: on, without instances, so that CUDA shows no card */
	int32_t cuda_reversed; /* 1: CUDA counts the cards from the last, unless CUDA_DEVICE_ORDER is PCI_BUS_ID */
	int32_t older_driver;  /* 1: that of CUDA 12.4, which has no checkpoint calls */
};

/* What is counted, in the order in which sim.py reads it. */
enum nvs_count {
	NVS_COUNT_NOTHING,
	NVS_COUNT_LAUNCH,
	NVS_COUNT_GRAPH,
	NVS_COUNT_H2D, /* from here on: bytes */
	NVS_COUNT_D2H,
	NVS_COUNT_D2D,
	NVS_COUNT_MEMSET,
	NVS_COUNT_FAULTED, /* managed memory that came to the card because work touched it */
	NVS_COUNT_EVICTED, /* managed memory that had to make room */
	NVS_COUNTS,
};

struct nvs_traffic {
	uint64_t of[NVS_COUNTS - 1]; /* without NVS_COUNT_NOTHING */
};

struct nvs_counters {
	struct nvs_traffic traffic;
	uint64_t busy_ns; /* some context computed */
	uint64_t contexts_created;
};

struct nvs_gpu {
	char uuid[NVS_UUID_SIZE], pad[7];
	uint64_t used; /* bytes, all processes, contexts included */
	struct nvs_counters counters;
	double busy; /* exact form of counters.busy_ns */
	struct {
		uint64_t index; /* simulated time / width of a bucket */
		double busy;
	} buckets[NVS_BUSY_BUCKETS];
};

enum nvs_engine { NVS_COMPUTE, NVS_H2D, NVS_D2H, NVS_ENGINES, NVS_NO_ENGINE = NVS_ENGINES, NVS_OWNER };
enum nvs_op_state {
	NVS_OP_RETIRED, /* its effects happened; the place in the ring is free */
	NVS_OP_QUEUED,
	NVS_OP_READY, /* NVS_OWNER only: its turn has come, the owning process must act */
	NVS_OP_DONE,  /* finished in time; the owning process has yet to carry out its effects */
};
/* How a copy goes over the link: each way has a speed of its own. */
enum nvs_path { NVS_PATH_PINNED, NVS_PATH_PAGEABLE, NVS_PATH_PREFETCH, NVS_PATHS };

/* "The submission `seq` of slot `slot` is done"; seq 0: no condition. */
struct nvs_dep {
	uint64_t seq;
	uint32_t slot, reserved;
};

struct nvs_op {
	uint64_t seq, next; /* next in the same queue, 0: last */
	double gap;  /* ns before the engine is needed (launch latency, page faults); 0 where there is no engine */
	double work; /* NVS_COMPUTE: ns when alone; copies: bytes */
	double done_at;
	uint64_t done_order;
	uint64_t bytes; /* for the counters */
	uint8_t state, engine, count, path;
	uint32_t queue;
	struct nvs_dep dep[2];
	uint64_t leaving; /* bytes of managed memory that are off the card when it is done */
	uint32_t leaving_slot, reserved;
};

/* What one process has on one GPU: a context with its queue of work, or only memory that belongs to no context. */
struct nvs_slot {
	int32_t pid; /* 0: free */
	uint32_t gpu;
	uint64_t start_time; /* of the process, tells it from a later one with the same pid */
	uint64_t bytes;      /* charged to the GPU, without managed memory */
	uint32_t has_context, assigned;
	/* Managed memory on the GPU. Anybody who needs room takes from it, and the owner finds out that it has less. */
	uint64_t managed;
	uint64_t leaving; /* managed memory on its way to the host; still takes its place */
	uint64_t pinned;  /* host memory that the process has page-locked */
	double managed_used_at;
	uint32_t account, reserved;
	uint64_t context; /* of `bytes` and `away`: what the context itself takes */
	uint64_t away;    /* bytes that a checkpoint took off the card */
	uint64_t tail;    /* last submission; numbers never repeat, not even over owners */
	uint64_t retired; /* every submission up to this one is retired */
	uint64_t done_total, ready_total;
	uint64_t current[NVS_ENGINES];
	uint64_t busy_queues; /* bit set: queue not empty */
	struct {
		uint64_t first, last;
	} queues[NVS_QUEUES];
	struct nvs_op ring[NVS_RING];
};

/* What one process did on one GPU; kept when it is gone. */
struct nvs_account {
	int32_t pid; /* 0: never used */
	uint32_t gpu;
	uint64_t start_time;
	struct nvs_traffic traffic;
};

/* Where a process is with its checkpoint; the first four are those of CUprocessState. */
enum nvs_stage {
	NVS_RUNNING,
	NVS_LOCKED,
	NVS_CHECKPOINTED,
	NVS_FAILED,
	NVS_MOVING, /* from here on: under way, whoever asked for it */
	NVS_LOCKING = NVS_MOVING,
	NVS_CHECKPOINTING,
	NVS_RESTORING,
};

enum nvs_operation { NVS_LOCK, NVS_CHECKPOINT, NVS_RESTORE, NVS_UNLOCK, NVS_OPERATIONS };

/* What a test planted for an operation. */
struct nvs_fault {
	enum { NVS_NO_FAULT, NVS_RETURN, NVS_BREAK, NVS_KILL } kind;
	int32_t code; /* NVS_RETURN: a CUresult */
	uint32_t at;  /* the how manieth operation of its kind, 0: each */
};

/* A process that has initialised the driver. */
struct nvs_member {
	int32_t pid; /* 0: free */
	uint32_t stage;
	uint64_t start_time;
	double until;       /* LOCKING: gives up then; CHECKPOINTING, RESTORING: is done then */
	uint32_t shut;      /* atomic. Not 0: calls wait, or fail */
	uint32_t inside;    /* atomic: threads in a call */
	uint32_t held;      /* threads that wait for the stage RUNNING */
	uint32_t immovable; /* atomic: pieces of memory that no checkpoint can take */
	uint32_t stuck;     /* a restore failed: no other one works */
	uint32_t asked[NVS_OPERATIONS];
	struct nvs_fault faults[NVS_OPERATIONS];
};

struct nvs_node {
	uint64_t magic;
	uint32_t version, gpu_count;
	/* Where the parts are, for readers that are not C. */
	uint32_t gpus_offset, gpu_stride, used_offset, counters_offset;
	uint32_t slots_offset, slot_stride, slot_count;
	uint32_t accounts_offset, account_stride, account_count;
	uint32_t next_account, reserved;
	double speed;
	char boot_id[40];
	char name[64];
	struct nvs_profile profile;
	struct nvs_setup setup;
	union { /* as large as on arm64, so that an emulated process can join */
		pthread_mutex_t lock;
		char lock_room[48];
	};
	uint32_t wake;     /* futex: bumped when waiting longer than was computed may be wrong */
	uint32_t slot_top; /* no slot in use at or above */
	uint32_t member_top, reserved_too;
	int64_t epoch_wall_ns, reaped_wall_ns;
	double time; /* all work is done as far as it can be by then */
	uint64_t done_order;
	struct nvs_gpu gpus[NVS_GPUS];
	struct nvs_slot slots[NVS_SLOTS];
	struct nvs_account accounts[NVS_ACCOUNTS];
	struct nvs_member members[NVS_MEMBERS];
};

/* ---- node.c: opening, locking ---- */

/* Map the node that NVSHARE_SIM_NODE names, making its state from node.conf when it is the first. NULL after a line on
 * stderr that says what to do. */
struct nvs_node *nvs_node_open(void);
/* Lock, repair what a dead holder left, bring the time to the present. */
void nvs_node_lock(struct nvs_node *node);
void nvs_node_unlock(struct nvs_node *node);
double nvs_node_now(const struct nvs_node *node);
/* Sleep without the lock until simulated time `until`, `node->wake` differs from `seen`, or 20 ms of wall time passed.
 */
void nvs_node_sleep(struct nvs_node *node, double until, uint32_t seen);
/* Let every sleeper look again. */
void nvs_node_wake(struct nvs_node *node);
void nvs_sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- config.c ---- */
/* Read `directory`/node.conf into a zeroed node: name, speed, profile, setup, UUIDs. False with the reason in `error`.
 */
bool nvs_config_read(const char *directory, struct nvs_node *node, char *error, size_t size);

/* ---- slots.c: what processes have on cards ---- */

/* Where the process table is that all processes of the node look at. */
const char *nvs_process_table(void);
/* Start time of a process in clock ticks since boot; 0: it is gone. */
uint64_t nvs_process_start(int pid);

/* The number by which the node knows this process: that of the process table which NVSHARE_SIM_PROC names, or /proc. */
int nvs_node_pid(void);

/* Claim a slot for this process, charged with `bytes`. -1: no room on the card (or in the table). Lock held. */
int nvs_slot_claim(struct nvs_node *node, unsigned gpu, bool has_context, uint64_t bytes);
void nvs_slot_release(struct nvs_node *node, int slot);
/* Is there room for so many bytes, even without the dead and without managed memory? */
bool nvs_gpu_has_room(struct nvs_node *node, unsigned gpu, uint64_t bytes);
/* Charge bytes to the slot's GPU; false when it has no room.
 * `evicted` grows by the managed memory, of whomever, that had to go; the longest unused first. */
bool nvs_slot_charge(struct nvs_node *node, int slot, uint64_t bytes, uint64_t *evicted);
void nvs_slot_refund(struct nvs_node *node, int slot, uint64_t bytes);
/* The same for managed memory, which others may take away again. */
bool nvs_slot_charge_managed(struct nvs_node *node, int slot, uint64_t bytes, uint64_t *evicted);
void nvs_slot_refund_managed(struct nvs_node *node, int slot, uint64_t bytes);
/* Managed memory starts on its way to the host; an op's `leaving` says when it is there. */
void nvs_slot_leave(struct nvs_node *node, int slot, uint64_t bytes);
void nvs_slot_left(struct nvs_node *node, const struct nvs_op *op, int pid);
/* All that the slot takes of its GPU. */
static inline uint64_t nvs_slot_total(const struct nvs_slot *slot)
{
	return slot->bytes + slot->managed + slot->leaving;
}
/* Add to the counters of the slot's GPU and process. */
void nvs_slot_count(struct nvs_node *node, const struct nvs_slot *slot, enum nvs_count what, uint64_t n);
void nvs_slot_recount(struct nvs_node *node);

/* ---- members.c: processes and their checkpoints; lock held ---- */

/* A record for this process; NULL: the table is full. */
struct nvs_member *nvs_member_claim(struct nvs_node *node);
/* The record of a living process; NULL: it never initialised the driver. */
struct nvs_member *nvs_member_find(struct nvs_node *node, int pid);
/* The process is gone: so is what it had on cards. */
void nvs_member_release(struct nvs_node *node, struct nvs_member *member);
/* Drop what dead processes left; looks at most every 20 ms unless `now`. */
void nvs_members_reap(struct nvs_node *node, bool now);
/* Carry out what is due by now. */
void nvs_members_advance(struct nvs_node *node);
/* After a death with the lock held. */
void nvs_members_repair(struct nvs_node *node);
void nvs_member_set(struct nvs_node *node, struct nvs_member *member, enum nvs_stage stage);
/* ns that it takes to bring what the process has off its cards, or back. */
double nvs_checkpoint_ns(struct nvs_node *node, const struct nvs_member *member);
double nvs_restore_ns(struct nvs_node *node, const struct nvs_member *member);
/* Take the room of all that a checkpoint took off; false, and nothing taken: a card has too little. */
bool nvs_member_take_room(struct nvs_node *node, const struct nvs_member *member);

/* ---- fluid.c: work and time ---- */

/* Bring the node up to simulated time `now`. */
void nvs_node_advance(struct nvs_node *node, double now);
static inline struct nvs_op *nvs_slot_op(struct nvs_slot *slot, uint64_t seq)
{
	return &slot->ring[seq % NVS_RING];
}
/* True when the submission finished; older ones than the ring remembers have. */
bool nvs_dep_done(struct nvs_node *node, const struct nvs_dep *dep);
/* Append; the caller made sure that the ring has room and filled all but seq, next and state. Returns seq. */
uint64_t nvs_slot_push(struct nvs_node *node, int slot, const struct nvs_op *op);
/* An NVS_OWNER submission that was ready has been carried out. */
void nvs_slot_owner_done(struct nvs_node *node, int slot, uint64_t seq);
/* No earlier than this will the submission, or a large copy before it, be done, as far as is known now; at least the
 * present. */
double nvs_slot_earliest(struct nvs_node *node, int slot, uint64_t seq);
/* Forget all queued work, as when a context ends. */
void nvs_slot_clear(struct nvs_node *node, int slot);
/* Share of the last wall second in which the GPU computed, 0 to 1. */
double nvs_gpu_utilization(const struct nvs_node *node, unsigned gpu);
/* ns that a kernel keeps its card busy when alone; Profile.kernel_seconds in profiles.py without the launch overhead.
 */
double nvs_kernel_ns(const struct nvs_profile *profile, double bytes, double flops);

#endif
