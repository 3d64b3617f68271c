/* The simulated driver inside one process: objects behind the handles, and what its files call of each other.
 *
 * One lock guards everything local (nvs_begin .. nvs_end). The node's lock is taken inside it for moments. A thread
 * that waits for the GPU holds neither. Work is submitted with its cost to the shared queue of its context and with its
 * effect to this process; effects are carried out in order of completion, by whichever call looks next (nvs_catch_up).
 */
#ifndef NVS_SIM_H
#define NVS_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "node/node.h"

#define NVS_API __attribute__((visibility("default"))) CUresult

/* Every function of the list is defined with exactly the listed parameters. */
#define NVS_FUNCTION(ret, name, params) __attribute__((visibility("default"))) ret name params;
#include "hooks.def"

/* The variant of a function whose NULL stream is the thread's own. */
#define NVS_PT(name, suffix, params, args)                                                                             \
	NVS_API name##suffix params                                                                                    \
	{                                                                                                              \
		nvs_thread.per_thread_stream++;                                                                        \
		CUresult result = name args;                                                                           \
		nvs_thread.per_thread_stream--;                                                                        \
		return result;                                                                                         \
	}

#define NVS_GRANULARITY ((size_t)2 << 20)
#define NVS_CONTEXT_STACK 32

static inline size_t nvs_round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- objects ---- */

enum nvs_magic {
	NVS_DEAD = 0,
	NVS_CONTEXT = 0x6e767801,
	NVS_STREAM,
	NVS_EVENT,
	NVS_GRAPH,
	NVS_EXEC,
	NVS_MODULE,
	NVS_POOL
};

enum nvs_function {
	NVS_ADD_F32,
	NVS_SCALE_F32,
	NVS_SPIN,
	NVS_FUNCTIONS,
};

enum nvs_effect_kind {
	NVS_EFFECT_NONE,
	NVS_EFFECT_KERNEL,
	NVS_EFFECT_COPY,
	NVS_EFFECT_SET,
	NVS_EFFECT_HOST,
	NVS_EFFECT_EVENT,
	NVS_EFFECT_FREE,
	NVS_EFFECT_WAIT,
};

struct nvs_effect {
	enum nvs_effect_kind kind;
	union {
		struct {
			enum nvs_function function;
			uint64_t args[4];
		} kernel;
		struct {
			uint64_t dst, src;
			size_t dst_pitch, src_pitch, width, height;
		} copy;
		struct {
			uint64_t dst;
			size_t pitch, width, height; /* width in bytes */
			uint32_t pattern;            /* repeated to 32 bits */
		} set;
		struct {
			CUhostFn function;
			CUstreamCallback callback;
			CUstream stream;
			void *data;
		} host;
		struct {
			CUevent event;
			uint64_t record;
		} event;
		uint64_t free;
		struct {
			uint64_t address, value;
			size_t size;
			unsigned condition;
		} wait;
	};
};

/* One submission: what it costs and what it does. */
struct nvs_work {
	enum nvs_engine engine;
	enum nvs_count count;
	enum nvs_path path;
	double gap, work; /* as in struct nvs_op */
	uint64_t bytes, leaving;
	int leaving_slot;
	struct nvs_effect effect;
};

/* Bytes that decide what a context takes beyond what every context has. */
struct nvs_growth {
	uint64_t code;  /* of loaded modules */
	uint64_t stack; /* of each thread */
	uint64_t heap;
};

struct CUctx_st {
	uint32_t magic;
	CUdevice device;
	unsigned gpu, flags;
	int slot;
	bool primary;
	int retained;   /* primary: references */
	uint64_t peers; /* bit set: memory of that GPU may be used */
	CUresult sticky;
	uint64_t retired_total;
	CUstream streams, legacy;
	struct nvs_effect *effects; /* ring, beside the shared one */
	struct nvs_growth growth;
	CUcontext next;
};

struct CUstream_st {
	uint32_t magic;
	unsigned flags;
	int priority;
	uint32_t queue;
	uint64_t id, last; /* last submission, 0: none */
	CUcontext ctx;
	CUgraph capture; /* being filled, NULL: not capturing */
	bool capture_origin;
	uint64_t thread; /* per-thread streams: whose */
	CUstream next;
};

struct CUevent_st {
	uint32_t magic;
	unsigned flags;
	CUcontext ctx;
	struct nvs_dep at; /* seq 0: never recorded, or in a capture */
	uint64_t record;   /* number of the latest record */
	bool done;
	double done_at;
	uint64_t capture; /* number of the capture it was recorded in, 0: none */
	CUevent next;
};

struct CUgraph_st {
	uint32_t magic;
	uint64_t capture; /* its number as a capture */
	struct nvs_work *nodes;
	size_t count, room;
	CUresult broken; /* the capture was invalidated by this */
	CUstreamCaptureMode mode;
	uint64_t thread;
	CUcontext ctx;
	CUgraph next; /* of those being captured */
};

struct nvs_process {
	struct nvs_node *node; /* NULL before cuInit */
	struct nvs_member *member;
	int device_count;
	unsigned devices[NVS_GPUS]; /* ordinal to GPU of the node */
	CUcontext contexts, primary[NVS_GPUS];
	CUgraph capturing;
	int memory_slot[NVS_GPUS]; /* for memory that belongs to no context, -1: none yet */
	bool forked;
};

struct nvs_thread_state {
	CUcontext stack[NVS_CONTEXT_STACK];
	int depth;
	int per_thread_stream;
	CUstreamCaptureMode capture_mode;
	double busy_until; /* the thread's driver calls take until then, in simulated time */
	double overslept;
};

extern struct nvs_process nvs_process;
extern __thread struct nvs_thread_state nvs_thread;

/* ---- process.c ---- */
/* Start of a call: lock, check that the driver is initialised. On an error nothing is locked. */
CUresult nvs_begin(void);
/* The same, plus a current context, brought up to date and without a sticky error. */
CUresult nvs_begin_context(CUcontext *ctx);
/* The same, for the context and stream that a handle means. */
CUresult nvs_begin_stream(CUstream handle, CUstream *stream);
/* End of a call: unlock, and let the time pass that the call takes. */
CUresult nvs_end(CUresult result);
/* A whole call that needs nothing of this process's state. */
CUresult nvs_pass(CUresult result);
/* The call takes so many simulated ns of its thread's time, from now on. */
void nvs_takes(double ns);
CUcontext nvs_current(void);
void nvs_lock(void);
void nvs_unlock(void);
uint64_t nvs_thread_id(void);
/* The GPU of the node behind an ordinal; -1: no such device. */
int nvs_gpu_of(CUdevice device);
int nvs_memory_slot(unsigned gpu);
/* A line for programs that need real kernels, once per process. */
void nvs_say_limits(const char *what);

/* ---- checkpoint.c ---- */
/* Enter the driver: waits while the process is locked or away. On an error it is not entered. */
CUresult nvs_enter(void);
void nvs_leave(void);
/* So many more pieces of memory that no checkpoint can take. */
void nvs_immovable(int pieces);

/* ---- faults.c ---- */
/* False after a line on stderr: what is planted makes no sense. */
bool nvs_faults_read(struct nvs_fault faults[NVS_OPERATIONS]);

/* ---- submit.c ---- */
void nvs_catch_up(void);
/* Submit in stream order (or add to the stream's capture); seq may be NULL. Blocks while the queue is full. */
CUresult nvs_submit(CUstream stream, const struct nvs_work *work, uint64_t *seq);
/* The same under the condition that an event's record is done. */
CUresult nvs_submit_after(CUstream stream, const struct nvs_work *work, const struct nvs_dep *dep, uint64_t *seq);
/* Submit and wait until done. */
CUresult nvs_submit_and_wait(CUstream stream, const struct nvs_work *work);
CUresult nvs_wait(CUcontext ctx, uint64_t seq);
bool nvs_is_done(CUcontext ctx, uint64_t seq);
bool nvs_stream_is_done(CUstream stream);
CUresult nvs_wait_stream(CUstream stream);
CUresult nvs_wait_context(CUcontext ctx);

/* ---- effects.c ---- */
/* Carry out; CUDA_ERROR_ILLEGAL_ADDRESS when memory is missing or closed to the context. */
CUresult nvs_effect_run(CUcontext ctx, const struct nvs_effect *effect);
/* The bytes at an address as any work sees them; false when memory is missing. */
bool nvs_memory_look(uint64_t address, void *to, size_t n);

/* ---- waitvalue.c ---- */
/* End the waits whose value has come; false when there are none. */
bool nvs_waits_end(void);

/* ---- hostfn.c ---- */
void nvs_host_functions_expect(void);

/* ---- context.c, stream.c, event.c ---- */
CUresult nvs_stream_new(CUcontext ctx, unsigned flags, int priority, CUstream *stream);
/* The stream that a handle means in ctx, NULL: not a stream. */
CUstream nvs_stream_of(CUcontext ctx, CUstream handle);
bool nvs_stream_blocks(CUstream stream);
void nvs_streams_free(CUcontext ctx);
void nvs_event_done(CUevent event, uint64_t record, double at);

/* ---- growth.c ---- */
extern const struct nvs_growth nvs_no_growth;
/* Take what that is more, or give back what it is less; CUDA_ERROR_OUT_OF_MEMORY: the card has no room for it. */
CUresult nvs_context_grow(CUcontext ctx, struct nvs_growth to);

/* ---- capture.c ---- */
/* May this thread make a call that is unsafe while streams capture? Otherwise the captures concerned are invalidated.
 */
CUresult nvs_capture_forbids(void);
/* The legacy stream is used: an error when a stream that synchronises with it captures. */
CUresult nvs_capture_forbids_legacy(CUcontext ctx);
CUresult nvs_capture_add(CUgraph graph, const struct nvs_work *work);
/* The capture of that number, NULL when it is over. */
CUgraph nvs_capture_find(uint64_t number);
CUresult nvs_capture_break(CUgraph graph, CUresult why);

/* ---- cost.c: what work costs on this card ---- */
struct nvs_work nvs_work_copy(CUcontext ctx, uint64_t dst, uint64_t src, size_t bytes);
struct nvs_work nvs_work_kernel(double bytes, double flops);
struct nvs_work nvs_work_marker(void);

#endif
