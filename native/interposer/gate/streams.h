/* The contexts and streams of this process, and which streams capture: what a drain has to wait for. */
#ifndef NVS_STREAMS_H
#define NVS_STREAMS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define NVS_SAMPLES 256u

/* A submission between two events. Free, taken by a submitting thread, or pending: both events recorded, to be reaped.
 */
enum nvs_sample_state { NVS_SAMPLE_FREE = 0, NVS_SAMPLE_TAKEN = 1, NVS_SAMPLE_PENDING = 2 };

struct nvs_sample {
	_Atomic uint32_t state;
	struct nvs_context *context;
	CUevent begin, end; /* made at first use */
	bool empty;         /* nothing between them: what the events themselves cost */
	uint64_t begun_at;  /* `begin` was recorded, ns */
	uint64_t late;      /* the GPU waited so long for the host between them, ns */
	uint64_t count;     /* submissions that this one stands for */
	uint64_t since;     /* when the first of them may have been submitted, ns */
};

/* A marker is free, or in the hands of the thread that was told to record it, or recorded in a stream. */
enum nvs_marker_state { NVS_MARKER_FREE, NVS_MARKER_TAKEN, NVS_MARKER_RECORDED };

#define NVS_MARKERS 8u

struct nvs_marker {
	CUevent event; /* made at first use */
	enum nvs_marker_state state;
	uint32_t count;  /* submissions that it stands for */
	uint64_t before; /* submissions before those */
	uint64_t set_at; /* ns */
};

/* Flow control: so many markers in a window that the GPU has work while one of them is waited for. */
struct nvs_pace {
	pthread_mutex_t lock;
	struct nvs_marker markers[NVS_MARKERS];
	uint64_t admitted;   /* submissions */
	uint64_t average_ns; /* of a submission, while the GPU was behind */
	uint64_t recent_ns;  /* the smaller of the last two of these, as long as it is; else 0 */
	uint64_t latest_ns;  /* the last of them */
	/* The last marker that was waited for, since the GPU had caught up. */
	uint64_t waited;     /* its `before`; 0: none */
	uint64_t reached_at; /* ns */
	uint32_t opening;    /* of the gate, then */
	/* The first submission of a slice. */
	CUevent begun;    /* before it, with the GPU's time */
	uint32_t slice;   /* which */
	bool begun_known; /* the event was recorded */
	/* What the link thread saw when it looked. */
	uint64_t looked_at;    /* ns */
	bool behind;           /* the GPU was, then */
	uint64_t oldest;       /* `before` of the oldest marker ahead of the GPU */
	uint64_t oldest_since; /* at the latest the GPU has been at it, ns */
	struct nvs_context *context;
};

struct nvs_stream {
	CUstream handle; /* NULL: the legacy stream; or a stream destroyed with work under way, when in `orphans` */
	CUevent plain;   /* made at first use, as is `timed` */
	CUevent timed;   /* with the GPU's time */
	CUevent last;    /* that of the two which was recorded last */
	bool pending;    /* and was not yet seen finished */
	struct nvs_stream *next;
};

/* Linked for ever into a list and reused after the context is gone, so that submitters may look without a lock. */
struct nvs_context {
	_Atomic(CUcontext) handle; /* NULL: free for reuse */
	_Atomic int32_t device;
	struct nvs_stream legacy;
	struct nvs_stream *streams; /* guarded by nvs_streams_lock, as is `orphans` */
	struct nvs_stream *orphans;
	_Atomic uint32_t next_sample; /* to be taken; all before `reaped` are free. Both count on, over the ring */
	uint32_t reaped;              /* guarded by nvs_streams_lock */
	_Atomic uint32_t under_way;   /* samples that are not free */
	_Atomic uint32_t calibrated;  /* empty samples begun */
	uint64_t overhead;            /* the least that one of them took, ns. Guarded by nvs_streams_lock */
	struct nvs_sample samples[NVS_SAMPLES];
	struct nvs_pace pace;
	struct nvs_context *next;
};

/* Guards the lists of streams and captures and all use of their events by other threads than the submitting one. Driver
 * calls are made under it, so it is never taken while the link's lock is held, nor on a submitting path. */
extern pthread_mutex_t nvs_streams_lock __attribute__((visibility("hidden")));
extern _Atomic uint32_t nvs_captures __attribute__((visibility("hidden"))); /* captures under way */

/* After the driver made a context, and before it destroys one. Streams made in a context that was never announced are
 * tracked all the same. */
void nvs_context_created(CUcontext context, CUdevice device);
void nvs_context_destroyed(CUcontext context);

struct nvs_context *nvs_context_first(void);
/* The context that a stream belongs to; NULL when it cannot be told. No lock, unless the context is new to us. */
struct nvs_context *nvs_context_of(CUstream stream);

/* A context of the device; NULL when there is none. It stays what it is until nvs_context_destroyed. */
CUcontext nvs_context_on(CUdevice device);

/* Contexts that live on a device, or on any. */
#define NVS_ANY_DEVICE (-1)
uint32_t nvs_context_count(CUdevice device);

/* Visit every context, made current in turn, in the mode in which nothing we do disturbs a capture. The lock is held.
 * True when every visit was. */
bool nvs_each_context(bool (*visit)(struct nvs_context *));

/* Is the stream capturing? The legacy stream never is. */
bool nvs_stream_capturing(CUstream stream);

/* Our own driver calls on an application's thread or ours: legal whatever captures are under way elsewhere. */
CUstreamCaptureMode nvs_relax(void);
void nvs_unrelax(CUstreamCaptureMode before);

/* ---- drain.c ---- */

/* Record an event behind all work submitted so far. False when that cannot be done now: a capture is under way
 * (touching the legacy stream would break it), the process is exiting, or an event could not be made. */
bool nvs_drain_record(void);
/* The same with the GPU's time, which costs more: some microseconds of the GPU for each stream. */
bool nvs_drain_record_timed(void);
/* Is everything that was recorded finished? */
bool nvs_drain_finished(void);
/* Remember the work of a stream about to be destroyed. The lock is held. */
void nvs_drain_orphan(struct nvs_context *context, struct nvs_stream *stream);
/* See nvs_meter_stop. */
extern _Atomic bool nvs_exiting __attribute__((visibility("hidden")));

void nvs_streams_after_fork(void);

#endif
