/* Sleep: off all cards together, and back. The scheduler orders it; the calls of the driver are the shell's. */
#include "client/client.h"
#include "client/sleep_table.h"
#include "client/state.h"

/* True: the change is legal, and made. */
static bool change(struct nvs_client *client, enum nvs_sleep_change what)
{
	struct nvs_sleep_life *life = &client->sleep;
	uint8_t after = nvs_sleep_after[life->state][what];
	nvs_note(client, NVS_LINE_SLEEP, what, 0, life->state);
	if (after == NVS_SLEEP_ILLEGAL) {
		nvs_do(client, NVS_DO_REPORT);
		return false;
	}
	life->state = after;
	life->since = client->now;
	return true;
}

static void set_entry(struct nvs_client *client, enum nvs_client_entry entry, uint64_t error)
{
	struct nvs_action *action = nvs_do(client, NVS_DO_SET_ENTRY);
	action->gate = entry;
	action->length = error;
}

bool nvs_client_is_awake(const struct nvs_client *client)
{
	return client->sleep.state == NVS_SLEEP_AWAKE;
}

bool nvs_client_is_away(const struct nvs_client *client)
{
	return client->sleep.state == NVS_SLEEP_ASLEEP || client->sleep.state == NVS_SLEEP_BROKEN;
}

/* ---- out ---- */

/* How the order ended, for a scheduler that still waits for it. */
static void send_slept(struct nvs_client *client, enum nvs_slept_outcome outcome, uint32_t bar, uint64_t error)
{
	if (!client->sleep.heard)
		return;
	struct nvs_action *action = nvs_do(client, NVS_DO_SEND_SLEPT);
	action->number = client->sleep.order;
	action->reason = outcome;
	action->used = bar;
	action->length = error;
}

static bool has_the_card(const struct nvs_client *client)
{
	bool has = client->gate != NVS_CLIENT_SHUT || client->opening || client->draining || client->drain_for != 0;
	FOR_EACH_CARD(client, card)
	has = has || card->grant != 0;
	return has;
}

/* The scheduler knows that a thread waits for a turn. It waits outside the driver. */
static bool waits_for_turn(const struct nvs_client *client)
{
	FOR_EACH_CARD(client, card)
	if (card->grant_asked)
		return true;
	return false;
}

void nvs_on_sleep(struct nvs_client *client, const struct nvs_event *event)
{
	if (client->sleep.state != NVS_SLEEP_AWAKE)
		return; /* each order is answered before the next */
	client->sleep.heard = true;
	client->sleep.order = event->number;
	if (event->flags != NVS_BAR_NONE)
		return send_slept(client, NVS_SLEPT_DECLINED, event->flags, 0);
	if (has_the_card(client))
		return send_slept(client, NVS_SLEPT_WOKE, NVS_BAR_NONE, 0);
	change(client, NVS_SLEEP_HOLD);
	client->sleep.patience = event->length;
	client->sleep.called = waits_for_turn(client);
	client->sleep.asked = client->sleep.granted = false;
	set_entry(client, NVS_CLIENT_ENTRY_HELD, 0);
	nvs_do(client, NVS_DO_LOOK_HELD);
}

/* Nothing was tried yet. */
static void let_go(struct nvs_client *client, uint32_t bar)
{
	if (!change(client, NVS_SLEEP_LET_GO))
		return;
	set_entry(client, NVS_CLIENT_ENTRY_OPEN, 0);
	send_slept(client, bar != NVS_BAR_NONE ? NVS_SLEPT_DECLINED : NVS_SLEPT_WOKE, bar, 0);
	nvs_wake_up(client);
}

void nvs_on_held(struct nvs_client *client, const struct nvs_event *event)
{
	if (client->sleep.state != NVS_SLEEP_HOLDING || event->flags == 0)
		return;
	if (event->number != NVS_BAR_NONE)
		return let_go(client, (uint32_t)event->number);
	change(client, NVS_SLEEP_GO);
	nvs_do(client, NVS_DO_LEAVE_CARDS)->length = client->sleep.patience;
}

static void ask_to_wake(struct nvs_client *client)
{
	if (!client->sleep.heard || !client->sleep.called || client->sleep.asked)
		return;
	client->sleep.asked = true;
	nvs_do(client, NVS_DO_SEND_REQ_WAKE)->number = client->sleep.order;
}

void nvs_on_left(struct nvs_client *client, const struct nvs_event *event)
{
	bool gone = event->number == 0, stuck = !gone && event->flags != 0;
	if (!change(client, gone ? NVS_SLEEP_GONE : stuck ? NVS_SLEEP_STUCK : NVS_SLEEP_STAYED))
		return;
	if (!gone)
		set_entry(client, stuck ? NVS_CLIENT_ENTRY_BROKEN : NVS_CLIENT_ENTRY_OPEN, event->number);
	send_slept(client, gone ? NVS_SLEPT_ASLEEP : NVS_SLEPT_FAILED, NVS_BAR_NONE, event->number);
	FOR_EACH_CARD(client, card)
	card->grant_asked = card->grant_asked && !gone; /* its contexts come first now */
	if (gone)
		ask_to_wake(client);
	else if (!stuck)
		nvs_wake_up(client);
}

/* ---- in ---- */

static void come_back(struct nvs_client *client)
{
	if (!change(client, NVS_SLEEP_RETURN))
		return;
	client->sleep.granted = false;
	nvs_do(client, NVS_DO_RETURN_TO_CARDS);
}

/* Anything else crossed what this client did by itself. */
void nvs_on_wake(struct nvs_client *client, const struct nvs_event *event)
{
	if (nvs_client_is_away(client) && event->number == client->sleep.order)
		come_back(client);
}

void nvs_on_room(struct nvs_client *client, const struct nvs_event *event)
{
	if (client->sleep.state == NVS_SLEEP_ASLEEP && event->flags != 0)
		come_back(client);
}

void nvs_on_returned(struct nvs_client *client, const struct nvs_event *event)
{
	bool back = event->number == 0;
	if (!change(client, back ? NVS_SLEEP_BACK : NVS_SLEEP_REFUSED))
		return;
	client->sleep.called = client->sleep.asked = false;
	if (client->sleep.heard) {
		struct nvs_action *action = nvs_do(client, NVS_DO_SEND_AWAKE);
		action->number = client->sleep.order;
		action->length = event->number;
	}
	/* Afterwards: a process that waited for this with its end is gone then. */
	set_entry(client, back ? NVS_CLIENT_ENTRY_OPEN : NVS_CLIENT_ENTRY_BROKEN, event->number);
	if (back)
		nvs_wake_up(client);
}

/* ---- who asks ---- */

void nvs_on_call(struct nvs_client *client)
{
	if (client->sleep.state == NVS_SLEEP_HOLDING)
		return let_go(client, NVS_BAR_NONE);
	if (client->sleep.state != NVS_SLEEP_LEAVING && client->sleep.state != NVS_SLEEP_ASLEEP)
		return;
	client->sleep.called = true;
	if (client->sleep.state == NVS_SLEEP_ASLEEP)
		ask_to_wake(client);
}

/* A submitter waits. One that waited before the order came was no news. */
void nvs_on_call_for_turn(struct nvs_client *client)
{
	if (client->sleep.state != NVS_SLEEP_HOLDING || !waits_for_turn(client))
		nvs_on_call(client);
}

/* A scheduler that knows nothing of sleep grants a turn to who needs its contexts for it. */
void nvs_sleep_granted(struct nvs_client *client)
{
	client->sleep.granted = client->sleep.state == NVS_SLEEP_ASLEEP;
	if (client->sleep.state == NVS_SLEEP_HOLDING)
		let_go(client, NVS_BAR_NONE);
}

/* Registered: what it was told of sleep is the registration's flag. */
void nvs_sleep_heard(struct nvs_client *client)
{
	client->sleep.heard = true;
	ask_to_wake(client);
}

void nvs_sleep_lost(struct nvs_client *client)
{
	client->sleep.heard = client->sleep.asked = false;
	client->sleep.order = 0;
	client->sleep.look_at = client->now + NVS_ENDS_BY_NS;
	if (client->sleep.state == NVS_SLEEP_HOLDING)
		let_go(client, NVS_BAR_NONE);
}

/* ---- time ---- */

/* When to look for room by itself; 0: not. Without a scheduler nobody reserves it. */
static uint64_t look_due(const struct nvs_client *client)
{
	const struct nvs_sleep_life *life = &client->sleep;
	if (life->state != NVS_SLEEP_ASLEEP || (life->heard && !life->granted))
		return 0;
	uint64_t at_once = life->looked_at + NVS_STUCK_NS;
	return life->called || life->granted ? at_once : at_once > life->look_at ? at_once : life->look_at;
}

uint64_t nvs_sleep_due(const struct nvs_client *client)
{
	if (client->sleep.state == NVS_SLEEP_HOLDING)
		return nvs_earlier(client->now + NVS_PAUSE_NS, client->sleep.since + client->sleep.patience);
	return look_due(client);
}

void nvs_sleep_time(struct nvs_client *client)
{
	struct nvs_sleep_life *life = &client->sleep;
	uint64_t due = look_due(client);
	if (life->state == NVS_SLEEP_HOLDING && client->now >= life->since + life->patience) {
		let_go(client, NVS_BAR_NONE);
	} else if (life->state == NVS_SLEEP_HOLDING) {
		nvs_do(client, NVS_DO_LOOK_HELD);
	} else if (due != 0 && client->now >= due) {
		life->looked_at = client->now;
		nvs_do(client, NVS_DO_LOOK_ROOM);
	}
}
