/* Every time and number that decides about compute in the library: when it looks, what it waits for, what it believes.
 * Layouts and protocol limits are elsewhere. */
#ifndef NVS_COMPUTE_CONSTANTS_H
#define NVS_COMPUTE_CONSTANTS_H

#include "nanoseconds.h"

/* ---- times, the shortest first ---- */

/* A submission takes no less, whatever two events say. */
#define NVS_SHORTEST_NS 500u
/* What takes less is over before the host has submitted the next, or has measured it. */
#define NVS_TINY_NS (8 * NVS_NS_PER_US)
/* The GPU answers an event behind nothing, and a call that submits returns, within this time; else it waited. */
#define NVS_SOON_NS (20 * NVS_NS_PER_US)
/* The link thread looks so often where an end may be near; what is in flight for longer keeps the GPU at work; and a
 * foreseen end is watched from so long before. */
#define NVS_OFTEN_NS (100 * NVS_NS_PER_US)
/* A pause up to this is none: it counts as used and ends no slice whose terms do not say less. A thread that waited for
 * the GPU or for the gate submits something within this time; after that the card is idle for nobody's good. */
#define NVS_PAUSE_NS NVS_NS_PER_MS
/* At most so much passes unseen by this process's clock: a thread that waited wakes up, work ends between two looks. */
#define NVS_UNSEEN_NS (2 * NVS_NS_PER_MS)
/* One submission is measured for so much time of the GPU, while what submissions take is not known well. */
#define NVS_SAMPLE_NS (4 * NVS_NS_PER_MS)
/* The link thread looks so often for the end of a turn that others wait for, and of work that runs on. */
#define NVS_TURN_NS (5 * NVS_NS_PER_MS)
/* It looks no more often where no end is near: a task alone is not disturbed. A turn that others wait for is given up
 * after so long without work, at least. */
#define NVS_RARELY_NS (20 * NVS_NS_PER_MS)
/* Work in flight in an exclusive turn. */
#define NVS_BUDGET_NS (50 * NVS_NS_PER_MS)
/* A drain, and a wait for the GPU, take less as a rule; work that is followed is looked at no more rarely. */
#define NVS_LONG_NS (100 * NVS_NS_PER_MS)
/* Work that has not ended so long after its slice runs on beside others', and is reported so often. */
#define NVS_STUCK_NS NVS_NS_PER_S
/* A turn's drain takes no longer, unless the scheduler says otherwise. Without a scheduler, memory that is away comes
 * back by itself after this time. */
#define NVS_DRAIN_NS (10 * NVS_NS_PER_S)

/* ---- numbers ---- */

/* Usual lengths of a submission that a wait may take before it counts as long. */
#define NVS_USUAL 4
/* Moving averages of what submissions take are over so many. */
#define NVS_AVERAGE 16
/* How far one sample may be above the rest and still count in full. */
#define NVS_SPIKE 16
/* Where long and short submissions alternate, typical ones are short: the mean counts by a part. */
#define NVS_MIXED 4
/* Submissions before the next attempt, where nothing can be recorded now: in a capture, or in an unknown context. */
#define NVS_RETRY 16u
/* Submissions of which one is measured when all are looked at more closely. */
#define NVS_CLOSER 8
/* Submissions between two that are measured, while no sample has come back. */
#define NVS_STRIDE_UNKNOWN 64u
/* Submissions that may be in flight, within a small budget: the next may be longer than those before. */
#define NVS_WINDOW_SMALL 256u
/* Bytes that are set in some microseconds. */
#define NVS_SHORT_BYTES (1u << 20)
/* Submissions that are let through a shut gate, before the time between them doubles; and how often it does. */
#define NVS_BURST 16
#define NVS_DOUBLINGS 10
/* Looks without news, before the link thread falls asleep. */
#define NVS_QUIET_LOOKS 3

#endif
