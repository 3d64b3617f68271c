/* Slices: below the grants, tasks that fit together take slices of some milliseconds. Memory stays where it is. */
#include "client/state.h"

static bool any_needed(const struct nvs_client *client)
{
	FOR_EACH_NEEDED (client, card)
		return true;
	return false;
}

static bool runs_on(const struct nvs_client *client)
{
	FOR_EACH_NEEDED (client, card)
		if (card->overrun != 0)
			return true;
	return false;
}

static bool all_given(const struct nvs_client *client)
{
	FOR_EACH_NEEDED (client, card)
		if (card->number == 0)
			return false;
	return true;
}

bool nvs_client_follows(const struct nvs_client *client)
{
	return client->phase == NVS_STATE_CLOSING || runs_on(client);
}

enum nvs_client_gate nvs_slice_gate(const struct nvs_client *client)
{
	if (!any_needed(client))
		return NVS_CLIENT_OPEN;
	return client->phase == NVS_STATE_HELD ? NVS_CLIENT_PACED : NVS_CLIENT_REST;
}

uint64_t nvs_slice_budget(const struct nvs_client *client)
{
	uint64_t least = 0;
	FOR_EACH_NEEDED (client, card)
		least = nvs_earlier(least, card->in_flight);
	return least;
}

/* By the table. A change that it does not know leaves the state as it is and is reported with the recent story. */
static void change(struct nvs_client *client, struct nvs_card *card, enum nvs_slice_change change)
{
	uint8_t after = nvs_slice_after[card->state][change];
	nvs_note(client, NVS_LINE_SLICE, (uint8_t)change, (uint32_t)(card - client->cards), card->state);
	if (after == NVS_ILLEGAL)
		nvs_do_on(client, NVS_DO_REPORT, card);
	else
		card->state = after;
}

/* ---- what was used ---- */

static uint64_t used_until(const struct nvs_client *client, uint64_t end)
{
	uint64_t since = client->used_since;
	if (!client->worked && !client->joined)
		return 0; /* who waited at the gate did not wake up, or not in time */
	return client->used + (since != 0 && end > since ? end - since : 0);
}

static void count_used(struct nvs_client *client, uint64_t used)
{
	if (used <= client->accounted)
		return;
	FOR_EACH_NEEDED (client, card)
		nvs_do_on(client, NVS_DO_COUNT_USED, card)->used = used - client->accounted;
	client->accounted = used;
}

void nvs_on_work(struct nvs_client *client, const struct nvs_event *event)
{
	client->idle_since = 0;
	if (client->phase == NVS_STATE_NONE)
		return;
	client->worked = true;
	if (client->used_since == 0)
		client->used_since = event->at;
}

/* ---- the end of a slice ---- */

static void send_over(struct nvs_client *client, struct nvs_card *card, uint64_t number, enum nvs_turn_reason reason,
	uint64_t used, uint64_t pending)
{
	if (number == 0)
		return;
	/* Who waits for the GPU and does not wake up asks when it does. */
	bool waits = client->wanted || (reason != NVS_TURN_IDLE && client->waits);
	bool wants = number == card->number && (card->asked || waits);
	card->asked = card->asked || wants;
	struct nvs_action *action = nvs_do_on(client, NVS_DO_SEND_TURN_OVER, card);
	action->number = number;
	action->reason = reason;
	action->used = used;
	action->length = pending;
	action->wants = wants;
}

static void forget_slice(struct nvs_client *client, struct nvs_card *card, enum nvs_slice_change how)
{
	if (card->number == 0)
		return;
	card->over = card->number;
	card->number = 0;
	change(client, card, how);
	if (card->asked)
		change(client, card, NVS_CHANGE_ASK);
}

/* All has ended, at that time; or is not waited for any more. `gpu`: the time by the GPU's clock, 0 when not known. */
static void finish(struct nvs_client *client, enum nvs_turn_reason reason, uint64_t end, uint64_t gpu)
{
	uint64_t used = 0;
	if (client->phase != NVS_STATE_NONE) {
		/* The GPU's clock knows only one stretch of work, from the first submission on. */
		bool whole = client->phase == NVS_STATE_CLOSING && !client->joined && client->used == 0;
		bool at_work = reason == NVS_TURN_ENDED || reason == NVS_TURN_TOLD;
		used = nvs_bill_used(used_until(client, end), whole && at_work ? gpu : 0);
		count_used(client, used);
		client->phase = NVS_STATE_NONE;
		nvs_refresh_gate(client);
	}
	FOR_EACH_NEEDED (client, card) {
		send_over(client, card, card->number, reason, used, 0);
		forget_slice(client, card, NVS_CHANGE_END);
	}
}

/* Work that runs on after its slice: so much of it was used until now. Pending 0: and no more. */
static void tell_overrun(struct nvs_client *client, uint64_t pending)
{
	uint64_t used = used_until(client, client->now);
	count_used(client, used);
	client->told_at = client->now;
	FOR_EACH_NEEDED (client, card) {
		send_over(client, card, card->overrun, NVS_TURN_STUCK, used, pending);
		card->overrun = pending != 0 ? card->overrun : 0;
	}
}

/* It may be a kernel of seconds, or one that waits for what this process has yet to submit: others go on, this process
 * may ask for another slice, and the work is billed as long as it runs. */
static void let_run_on(struct nvs_client *client)
{
	struct nvs_action *warning = nvs_do(client, NVS_DO_TELL_STUCK);
	warning->length = NVS_STUCK_NS;
	warning->wants = true;
	uint64_t used = used_until(client, client->now);
	count_used(client, used);
	client->leftover = true;
	client->phase = NVS_STATE_NONE;
	nvs_refresh_gate(client);
	client->told_at = client->now;
	FOR_EACH_NEEDED (client, card) {
		send_over(client, card, card->number, NVS_TURN_STUCK, used, NVS_PAUSE_NS);
		card->overrun = card->number;
		forget_slice(client, card, NVS_CHANGE_STICK);
	}
}

static void close_slice(struct nvs_client *client, enum nvs_turn_reason reason)
{
	client->phase = NVS_STATE_CLOSING;
	client->reason = (uint8_t)reason;
	client->told = false;
	client->shut_at = client->now;
	FOR_EACH_NEEDED (client, card)
		if (card->number != 0)
			change(client, card, NVS_CHANGE_CLOSE);
	nvs_refresh_gate(client);
	nvs_do(client, NVS_DO_CLOSE_SLICE)->reason = reason;
}

void nvs_on_pending(struct nvs_client *client, const struct nvs_event *event)
{
	if (client->phase != NVS_STATE_CLOSING || client->told)
		return;
	uint64_t pending = event->length > NVS_NS_PER_US ? event->length : NVS_NS_PER_US;
	FOR_EACH_NEEDED (client, card)
		send_over(client, card, card->number, (enum nvs_turn_reason)client->reason,
			used_until(client, client->now), pending);
	client->told = true;
}

void nvs_on_ended(struct nvs_client *client, const struct nvs_event *event)
{
	if (!nvs_client_follows(client))
		return;
	client->leftover = false;
	if (client->phase == NVS_STATE_CLOSING)
		finish(client, (enum nvs_turn_reason)client->reason, event->at, event->length);
	else
		tell_overrun(client, 0);
}

void nvs_void_request(struct nvs_client *client, struct nvs_card *card)
{
	card->asked = false;
	if (card->state == NVS_STATE_ASKED)
		change(client, card, NVS_CHANGE_VOID);
}

void nvs_drop_slices(struct nvs_client *client, bool drained)
{
	if (runs_on(client))
		tell_overrun(client, 0);
	client->leftover = !drained;
	finish(client, drained ? NVS_TURN_TOLD : NVS_TURN_STUCK, client->now, 0);
	FOR_EACH_NEEDED (client, card) {
		card->asked = false;
		change(client, card, NVS_CHANGE_VOID);
	}
}

void nvs_forget_slices(struct nvs_client *client)
{
	if (client->phase != NVS_STATE_NONE || runs_on(client))
		count_used(client, used_until(client, client->now));
	FOR_EACH_CARD(client, card)
	{
		if (card->needs_slices)
			nvs_do_on(client, NVS_DO_COUNT_BY, card);
		change(client, card, NVS_CHANGE_VOID);
		card->needs_slices = card->asked = false;
		card->in_flight = card->number = card->over = card->overrun = card->length = 0;
	}
	client->phase = NVS_STATE_NONE;
}

/* ---- what the scheduler says ---- */

static void begin_slice(struct nvs_client *client)
{
	if (runs_on(client)) /* from now on it is part of the new slice */
		tell_overrun(client, 0);
	bool at_once = client->leftover || client->wanted || client->waits;
	client->phase = NVS_STATE_HELD;
	client->joined = client->leftover;
	client->leftover = client->worked = false;
	client->used = client->accounted = client->idle_since = 0;
	client->used_since = at_once ? client->now : 0;
	nvs_do(client, NVS_DO_BEGIN_SLICE)->at = client->used_since;
	nvs_refresh_gate(client);
}

void nvs_on_give(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event)
{
	if (!card->needs_slices || card->grant == 0 || event->number == 0 || event->number == card->over)
		return; /* crossed our own end of it */
	bool is_new = event->number != card->number;
	if (is_new && client->phase != NVS_STATE_NONE) { /* its last work may still run: it is part of the new slice */
		bool closing = client->phase == NVS_STATE_CLOSING;
		client->leftover = true;
		finish(client, closing ? (enum nvs_turn_reason)client->reason : NVS_TURN_TOLD, client->now, 0);
	}
	change(client, card, NVS_CHANGE_GIVE);
	card->length = event->length;
	card->patience = event->patience != 0 ? event->patience : NVS_PAUSE_NS;
	if (!is_new)
		return; /* while it closes, too late */
	card->asked = false;
	card->number = event->number;
	card->since = client->now;
	if (all_given(client))
		begin_slice(client);
}

void nvs_on_end(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event)
{
	if (event->number == 0 || card->number != event->number)
		return; /* crossed our own end of it */
	if (client->phase == NVS_STATE_HELD)
		close_slice(client, NVS_TURN_TOLD);
	else if (client->phase == NVS_STATE_NONE) /* it waited for the rest of the gang */
		finish(client, NVS_TURN_TOLD, 0, 0);
}

void nvs_on_terms(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event)
{
	bool needs = event->flags & NVS_FLAG_TURNS;
	card->in_flight = event->length;
	if (needs != card->needs_slices) {
		if (client->phase != NVS_STATE_NONE || runs_on(client))
			count_used(client, used_until(client, client->now));
		change(client, card, NVS_CHANGE_VOID);
		card->needs_slices = needs;
		card->asked = false;
		card->number = card->overrun = card->length = 0;
		nvs_do_on(client, NVS_DO_COUNT_BY, card)->wants = needs;
		client->leftover = client->leftover || needs;
		if (!any_needed(client))
			client->phase = NVS_STATE_NONE;
		else if (client->phase == NVS_STATE_HELD && needs)
			close_slice(client, NVS_TURN_ENDED);
		else if (client->phase == NVS_STATE_NONE && all_given(client))
			begin_slice(client);
	}
	nvs_refresh_gate(client);
}

void nvs_ask_slices(struct nvs_client *client)
{
	bool rests = client->gate == NVS_CLIENT_REST && !client->opening; /* so all is granted, and in its place */
	bool closing = client->phase == NVS_STATE_CLOSING;
	if (!rests || (closing && !client->told))
		return;
	FOR_EACH_NEEDED (client, card)
		if (card->known && card->grant != 0 && !card->asked && (card->number == 0 || closing)) {
			nvs_do_on(client, NVS_DO_SEND_REQ_TURN, card);
			card->asked = true;
			change(client, card, NVS_CHANGE_ASK);
		}
}

/* ---- while it lasts ---- */

/* When the first of the slices ends; 0 when none does. */
static uint64_t slice_end(const struct nvs_client *client)
{
	uint64_t end = 0;
	FOR_EACH_NEEDED (client, card)
		if (card->number != 0 && card->length != 0)
			end = nvs_earlier(end, card->since + card->length);
	return end;
}

bool nvs_client_may_end(const struct nvs_client *client)
{
	return client->phase == NVS_STATE_HELD && slice_end(client) != 0;
}

/* How long nothing may be submitted before the slice ends, or, without a length, before that counts as a gap. */
static uint64_t patience(const struct nvs_client *client)
{
	bool wakes = !client->worked || client->idle_wakes;
	uint64_t longest = 0;
	FOR_EACH_NEEDED (client, card) {
		uint64_t of_card = card->length != 0 ? card->patience : NVS_PAUSE_NS;
		longest = of_card > longest ? of_card : longest;
	}
	return wakes && longest < NVS_PAUSE_NS ? NVS_PAUSE_NS : longest;
}

/* When idleness becomes an end or a gap; 0: there is none, or it is a gap already. */
static uint64_t gap_at(const struct nvs_client *client)
{
	bool news = client->used_since != 0 || slice_end(client) != 0;
	return client->idle_since != 0 && news ? client->idle_since + patience(client) : 0;
}

static void running_time(struct nvs_client *client)
{
	uint64_t gap = gap_at(client);
	count_used(client, used_until(client, client->idle_since != 0 ? client->idle_since : client->now));
	if (gap == 0 || client->now < gap)
		return;
	if (slice_end(client) != 0) {
		close_slice(client, NVS_TURN_IDLE);
		return;
	}
	client->used = used_until(client, client->idle_since);
	client->used_since = 0;
	nvs_do(client, NVS_DO_WATCH_IDLE);
}

uint64_t nvs_slice_due(const struct nvs_client *client)
{
	switch (client->phase) {
	case NVS_STATE_CLOSING:
		return client->shut_at + NVS_STUCK_NS;
	case NVS_STATE_HELD:
		return nvs_earlier(slice_end(client), gap_at(client));
	default:
		return nvs_earlier(slice_end(client), runs_on(client) ? client->told_at + NVS_STUCK_NS : 0);
	}
}

void nvs_slice_time(struct nvs_client *client)
{
	uint64_t end = slice_end(client);
	bool over = end != 0 && client->now >= end;
	if (client->phase == NVS_STATE_CLOSING) {
		if (client->now >= client->shut_at + NVS_STUCK_NS)
			let_run_on(client);
	} else if (client->phase == NVS_STATE_HELD) {
		if (over)
			close_slice(client, NVS_TURN_ENDED);
		else
			running_time(client);
	} else {
		if (over) /* it waited for the rest of the gang in vain */
			finish(client, NVS_TURN_ENDED, 0, 0);
		if (runs_on(client) && client->now >= client->told_at + NVS_STUCK_NS)
			tell_overrun(client, NVS_PAUSE_NS);
	}
}
