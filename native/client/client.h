/* The client: what the library decides about its gate, its turns (memory, seconds), its slices (compute, milliseconds)
 * and its bill. Events go in, actions come out. There is no clock, thread, driver, socket, memory allocation or global
 * here; time is a field of each event. The link thread is the shell around it, and so are the model and the tests.
 *
 * The cards of a process form a gang: its gate is open when all are granted, its submissions need a slice on each card
 * whose terms say so, and turns and slices end on all of them together. */
#ifndef NVS_CLIENT_H
#define NVS_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/patience.h"
#include "client/slice_table.h"
#include "compute_constants.h"
#include "nvshare_protocol.h"

/* ---- what goes in ---- */

enum nvs_event_type {
	/* The scheduler says; `card` is the card that is meant. */
	NVS_EVENT_CONTROL, /* flags: 1, submissions need a grant; 0, nothing does */
	NVS_EVENT_LOST,    /* there is no scheduler any more */
	NVS_EVENT_CARD,    /* the scheduler was told of this card */
	NVS_EVENT_GRANT,   /* number, flags, length of the quantum or 0 */
	NVS_EVENT_DROP,    /* number, length of the drain's deadline or 0 */
	NVS_EVENT_TERMS,   /* flags, length of the work that may be in flight */
	NVS_EVENT_GIVE,    /* number, length or 0, patience or 0 */
	NVS_EVENT_END,     /* number */
	/* The shell sees. */
	NVS_EVENT_WANT,    /* a submitter waits at the gate; length of the last switch of memory */
	NVS_EVENT_WORK,    /* something was submitted, the first of it at `at` */
	NVS_EVENT_IDLE,    /* nothing was submitted since `at`, and nothing runs */
	NVS_EVENT_PENDING, /* the gate is shut for a slice's end, and work of this length is in flight */
	NVS_EVENT_ENDED, /* all of it ended at `at`; length by the GPU's clock, from the slice's first submission; or 0
			  */
	NVS_EVENT_PLACE, /* flags: 1, all memory is in its place and stays; 0, it is on its way */
	NVS_EVENT_DRAINED, /* flags: 1, the gate is shut and nothing runs; 0, the deadline passed, the gate is open */
	NVS_EVENT_TIME,    /* time passes; facts that changed were told before */
	/* Of sleep. The scheduler says: */
	NVS_EVENT_SLEEP, /* number of the order; length: the time-out of the driver's lock; flags: an nvs_bar_reason */
	NVS_EVENT_WAKE,  /* number of the order */
	/* The shell sees. */
	NVS_EVENT_CALL, /* a thread waits at the entry, whatever it calls */
	NVS_EVENT_HELD, /* flags: 1, nobody is inside the held entry; 0, not yet. number: an nvs_bar_reason */
	NVS_EVENT_LEFT, /* number: 0, the contexts are off the cards, or the driver's error; flags: it stays locked */
	NVS_EVENT_ROOM, /* flags: 1, the contexts have room */
	NVS_EVENT_RETURNED, /* number: 0, or the driver's error */
	NVS_EVENT_TYPES,
};

struct nvs_event {
	uint32_t type;
	uint32_t card;
	uint64_t now;
	uint64_t number;
	uint64_t at;
	uint64_t length;
	uint64_t patience;
	uint32_t flags;
	uint32_t waits; /* a thread of this process waits for the GPU, and submits more when it wakes: with every event
			 */
	uint32_t names; /* a call needs memory where it is, or is about to: with every event */
	uint32_t unused;
};

/* ---- what comes out ---- */

/* To be carried out in order. SEND_* are messages for `card`; what they say is in the fields named here. */
enum nvs_action_type {
	NVS_DO_SET_GATE,        /* gate, length of the work that may be in flight or 0 */
	NVS_DO_SEND_REQ_LOCK,   /* */
	NVS_DO_SEND_RELEASED,   /* number, reason */
	NVS_DO_SEND_REQ_TURN,   /* */
	NVS_DO_SEND_TURN_OVER,  /* number, reason, used, length still in flight, wants; the shell adds what was busy */
	NVS_DO_BEGIN_SLICE,     /* used since `at`, or from the next submission (0): tell of it with WORK */
	NVS_DO_WATCH_IDLE,      /* tell of the next submission with WORK, at once */
	NVS_DO_CLOSE_SLICE,     /* its gate is shut: follow what is in flight, with PENDING and ENDED. reason */
	NVS_DO_COUNT_USED,      /* `used` more of this card, as part of what is reported as occupied */
	NVS_DO_COUNT_BY,        /* wants: what this card is occupied is what COUNT_USED says; or no longer */
	NVS_DO_TAKE_GRANT,      /* this card is granted anew or on new terms */
	NVS_DO_DRAIN_TURN,      /* shut the gate and wait for all work, for `length` at most; then DRAINED */
	NVS_DO_LOOK_DRAINED,    /* has all work ended that went through the shut gate? If so, DRAINED */
	NVS_DO_OPEN_MEMORY,     /* let nothing leave any more; then PLACE */
	NVS_DO_SHUT_MEMORY,     /* it may leave */
	NVS_DO_FREE_MEMORY,     /* nobody tells any more where it is to be: bring all of it. wants: after a long wait */
	NVS_DO_TELL_STUCK,      /* a drain, or with `wants` the end of a slice, passed its deadline of `length`: warn */
	NVS_DO_REPORT,          /* a change that the table does not know: warn, with nvs_client_story */
	NVS_DO_SET_ENTRY,       /* gate: an nvs_client_entry; length: the error where it is BROKEN */
	NVS_DO_LOOK_HELD,       /* is anybody inside the held entry? Then HELD */
	NVS_DO_LEAVE_CARDS,     /* shut the entry; lock, for `length` at most, and checkpoint; then LEFT */
	NVS_DO_RETURN_TO_CARDS, /* shut the entry; restore and unlock; then RETURNED */
	NVS_DO_LOOK_ROOM,       /* have the contexts room on all cards? Then ROOM */
	NVS_DO_SEND_SLEPT,    /* number of the order, reason: an nvs_slept_outcome, used: the bar, length: the error */
	NVS_DO_SEND_REQ_WAKE, /* number of the order */
	NVS_DO_SEND_AWAKE,    /* number of the order, length: the error */
};

/* As in the gate: OPEN and PACED let submissions through, SHUT waits for a turn, REST for a slice. */
enum nvs_client_gate { NVS_CLIENT_OPEN, NVS_CLIENT_PACED, NVS_CLIENT_SHUT, NVS_CLIENT_REST };

/* As in the entry: calls pass, wait until all are out, wait while the contexts are away, or get an error. */
enum nvs_client_entry { NVS_CLIENT_ENTRY_OPEN, NVS_CLIENT_ENTRY_HELD, NVS_CLIENT_ENTRY_SHUT, NVS_CLIENT_ENTRY_BROKEN };

struct nvs_action {
	uint32_t type;
	uint32_t card;
	uint64_t number;
	uint64_t at;
	uint64_t used;
	uint64_t length;
	uint32_t reason;
	uint32_t gate; /* enum nvs_client_gate */
	uint32_t wants;
	uint32_t unused;
};

#define NVS_ACTIONS 128u

struct nvs_actions {
	uint64_t wake_at; /* TIME is due then; 0: not before something else happens */
	uint32_t count;
	uint32_t unused;
	struct nvs_action list[NVS_ACTIONS];
};

/* ---- what it knows ---- */

/* One card of this process. */
struct nvs_card {
	bool known; /* to this scheduler */
	/* its turn */
	bool grant_asked;
	uint32_t grant_flags;
	uint64_t grant;      /* 0: none */
	uint64_t given_back; /* the last one released */
	uint64_t granted_at;
	uint64_t quantum; /* from then; 0: until told */
	/* its slice */
	bool needs_slices;
	bool asked;         /* for a slice, or for the next one while one closes */
	uint8_t state;      /* enum nvs_slice_state */
	uint64_t in_flight; /* work that may be; 0: not said */
	uint64_t number;    /* of the slice; 0: none */
	uint64_t over;      /* of the last one that was over */
	uint64_t overrun;   /* of one that is over, but whose work runs on; 0: none */
	uint64_t since;     /* the slice was given */
	uint64_t length;    /* from then; 0: until told */
	uint64_t patience;  /* it ends after so long without work, when it has a length */
};

#define NVS_STORY 24u

enum nvs_line_kind {
	NVS_LINE_EVENT, /* `what` is an nvs_event_type */
	NVS_LINE_SLICE, /* an nvs_slice_change */
	NVS_LINE_SLEEP, /* an nvs_sleep_change */
};

/* One line of the recent story: an event, or a change of a card's slice or of the client's sleep. */
struct nvs_line {
	uint64_t now;
	uint8_t kind; /* enum nvs_line_kind */
	uint8_t what;
	uint8_t card;
	uint8_t state; /* before */
};

/* Of all cards together. */
struct nvs_sleep_life {
	uint8_t state;      /* enum nvs_sleep_state */
	bool heard;         /* a scheduler knows of this client, and of the order */
	bool called;        /* a thread waited since the entry was shut */
	bool asked;         /* the scheduler was told so */
	bool granted;       /* a turn, by a scheduler that knows nothing of sleep */
	uint64_t order;     /* 0: of another connection */
	uint64_t since;     /* the state changed */
	uint64_t patience;  /* of the driver's lock, and of HOLDING */
	uint64_t look_at;   /* without a scheduler: for room, if nobody calls */
	uint64_t looked_at; /* the last time */
};

struct nvs_client {
	struct nvs_card cards[NVS_MAX_GPUS];
	uint32_t count; /* of cards */
	/* turns */
	bool scheduled;       /* submissions need a grant */
	bool opening;         /* the gate would be open, but for memory that is not there yet */
	bool draining;        /* the gate is shut, but work that went through before may still run */
	bool wanted;          /* a submitter waits at the gate */
	uint8_t gate;         /* enum nvs_client_gate */
	uint8_t drained_from; /* what it was before the drain under way */
	uint8_t shut_for;     /* why it drains: an nvs_release_reason, or of control */
	uint64_t budget;
	uint64_t idle_turn; /* a pause after which a turn is given up; 0: as `pauses` says. Set by the shell */
	uint64_t drain_for; /* the deadline of the drain under way; 0: none */
	uint64_t alone_since;
	struct nvs_patience pauses;
	/* slices */
	uint8_t phase;  /* enum nvs_slice_state, of all cards that need one together: NONE, HELD or CLOSING */
	bool leftover;  /* work from before the next slice may still run in it */
	bool joined;    /* work from before this slice ran on in it */
	bool worked;    /* something was submitted in it */
	bool told;      /* what was in flight when it closed */
	uint8_t reason; /* why it closes, enum nvs_turn_reason */
	uint64_t used;  /* in earlier stretches of the slice */
	uint64_t used_since;
	uint64_t accounted; /* what COUNT_USED said of it */
	uint64_t shut_at;
	uint64_t told_at; /* that its work runs on */
	uint64_t idle_since;
	bool idle_wakes; /* somebody waited for the GPU then, and is about to wake */
	struct nvs_sleep_life sleep;
	/* of the last event */
	uint64_t now;
	bool waits, names;
	struct nvs_actions *out;
	struct nvs_line story[NVS_STORY];
	uint32_t lines;
};

/* A client of no cards that nobody schedules: all bytes zero, but for `idle_turn`. */
#ifdef NVS_CLIENT_SHARED
#define NVS_CLIENT_API __attribute__((visibility("default")))
#else
#define NVS_CLIENT_API
#endif

/* Bytes of a struct nvs_client, for who cannot see it. */
NVS_CLIENT_API size_t nvs_client_size(void);
/* `actions` holds what is to be done when it returns, and nothing else. */
NVS_CLIENT_API void nvs_client_handle(
	struct nvs_client *client, const struct nvs_event *event, struct nvs_actions *actions);
/* The recent events and changes as text of one line, cut off where it is full. Always ends in a zero byte. */
NVS_CLIENT_API void nvs_client_story(const struct nvs_client *client, char *text, size_t size);

/* Work is in flight behind a gate that a slice's end has shut, or runs on after it: PENDING and ENDED are news. */
bool nvs_client_follows(const struct nvs_client *client);
/* A slice is held whose length ends it, so that a pause is worth to be seen at once. */
bool nvs_client_may_end(const struct nvs_client *client);

/* The contexts are on the cards, or nobody ever moved them. */
bool nvs_client_is_awake(const struct nvs_client *client);
/* They are off the cards, and nothing is under way. */
bool nvs_client_is_away(const struct nvs_client *client);

/* ---- the bill ---- */

/* What the card was used for a slice: `clock` by this process's clock, from the first submission to the end, and `gpu`
 * by the GPU's, or 0. */
NVS_CLIENT_API uint64_t nvs_bill_used(uint64_t clock, uint64_t gpu);

/* What was seen of a card since a slice began. */
struct nvs_seen {
	uint64_t samples;   /* the GPU was at work, as estimated from samples */
	uint64_t in_flight; /* work was in flight at every look */
	bool marked;        /* there was something to see it by */
};

/* The part of `used` in which the GPU was at work for this client. */
NVS_CLIENT_API uint64_t nvs_bill_busy(const struct nvs_seen *seen, uint64_t used);

#endif
