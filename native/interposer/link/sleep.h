/* The shell around the client's sleep: messages and facts become events, actions become calls of the driver, which a
 * thread of its own makes (sleeper.h). Link thread only, but for the last. */
#ifndef NVS_LINK_SLEEP_H
#define NVS_LINK_SLEEP_H

#include <stdbool.h>

#include "client/client.h"
#include "nvshare_protocol.h"

/* Messages. */
void nvs_sleep_ordered(const struct nvs_sleep *message);
void nvs_sleep_waken(const struct nvs_wake *message);
/* REGISTER was sent: the scheduler is told whether this process can sleep. The link's lock is held. */
void nvs_sleep_registering(void);

/* Tell the client what happened at the entry and in the sleeper, and the scheduler whether this process can sleep. */
void nvs_sleep_tell_facts(void);

/* Actions of sleep. */
void nvs_sleep_carry_out(const struct nvs_action *action);

/* Any thread, at the end of the process: the driver must not be torn down while it is locked. Waits until the process
 * is awake, but not for ever; from then on it does not sleep. */
void nvs_sleep_end(void);

void nvs_sleep_after_fork(void);

#endif
