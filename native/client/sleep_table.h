/* The life of a client between its cards and sleep. */
#ifndef NVS_SLEEP_TABLE_H
#define NVS_SLEEP_TABLE_H

#include <stdint.h>

enum nvs_sleep_state {
	NVS_SLEEP_AWAKE,     /* the entry is open */
	NVS_SLEEP_HOLDING,   /* told to sleep; the entry is held until nobody is inside */
	NVS_SLEEP_LEAVING,   /* lock and checkpoint are under way */
	NVS_SLEEP_ASLEEP,    /* the contexts are off all cards */
	NVS_SLEEP_RETURNING, /* restore and unlock are under way */
	NVS_SLEEP_BROKEN,    /* they failed: every call gets the error */
};

enum nvs_sleep_change {
	NVS_SLEEP_HOLD,    /* SLEEP was accepted */
	NVS_SLEEP_LET_GO,  /* a call wanted the driver, somebody stayed inside, or the scheduler is gone */
	NVS_SLEEP_GO,      /* nobody is inside */
	NVS_SLEEP_GONE,    /* the checkpoint is made */
	NVS_SLEEP_STAYED,  /* the driver refused, and runs on */
	NVS_SLEEP_STUCK,   /* the driver refused, and its lock stays */
	NVS_SLEEP_RETURN,  /* the room is there */
	NVS_SLEEP_BACK,    /* restored and unlocked */
	NVS_SLEEP_REFUSED, /* not restored, or not unlocked */
};

#define NVS_SLEEP_STATES 6
#define NVS_SLEEP_CHANGES 9
#define NVS_SLEEP_ILLEGAL 255

/* clang-format off */
static const uint8_t nvs_sleep_after[NVS_SLEEP_STATES][NVS_SLEEP_CHANGES] = {
	[NVS_SLEEP_AWAKE] = {NVS_SLEEP_HOLDING, 255, 255, 255, 255, 255, 255, 255, 255},
	[NVS_SLEEP_HOLDING] = {255, NVS_SLEEP_AWAKE, NVS_SLEEP_LEAVING, 255, 255, 255, 255, 255, 255},
	[NVS_SLEEP_LEAVING] = {255, 255, 255, NVS_SLEEP_ASLEEP, NVS_SLEEP_AWAKE, NVS_SLEEP_BROKEN, 255, 255, 255},
	[NVS_SLEEP_ASLEEP] = {255, 255, 255, 255, 255, 255, NVS_SLEEP_RETURNING, 255, 255},
	[NVS_SLEEP_RETURNING] = {255, 255, 255, 255, 255, 255, 255, NVS_SLEEP_AWAKE, NVS_SLEEP_BROKEN},
	[NVS_SLEEP_BROKEN] = {255, 255, 255, 255, 255, 255, NVS_SLEEP_RETURNING, 255, 255},
};
/* clang-format on */

#endif
