/* The one door, turns, and what both turns and slices make of the gate. */
#include "client/client.h"

#include <stdio.h>

#include "client/sleep_table.h"
#include "client/state.h"

/* Beside the release reasons: scheduling has begun, and there is nothing to release. */
#define FOR_CONTROL 255

size_t nvs_client_size(void)
{
	return sizeof(struct nvs_client);
}

struct nvs_action *nvs_do(struct nvs_client *client, enum nvs_action_type type)
{
	struct nvs_actions *out = client->out;
	/* One event makes at most four actions for each card and a few for all. */
	struct nvs_action *action = &out->list[out->count < NVS_ACTIONS ? out->count++ : NVS_ACTIONS - 1];
	*action = (struct nvs_action){.type = type};
	return action;
}

struct nvs_action *nvs_do_on(struct nvs_client *client, enum nvs_action_type type, const struct nvs_card *card)
{
	struct nvs_action *action = nvs_do(client, type);
	action->card = (uint32_t)(card - client->cards);
	return action;
}

/* ---- the story ---- */

void nvs_note(struct nvs_client *client, enum nvs_line_kind kind, uint8_t what, uint32_t card, uint8_t state)
{
	struct nvs_line *line = &client->story[client->lines++ % NVS_STORY];
	*line = (struct nvs_line){
		.now = client->now, .kind = (uint8_t)kind, .what = what, .card = (uint8_t)card, .state = state};
}

static int tell(const struct nvs_line *line, unsigned long long ago, char *text, size_t size)
{
	static const char *const events[NVS_EVENT_TYPES] = {"CONTROL", "LOST", "CARD", "GRANT", "DROP", "TERMS", "GIVE",
		"END", "WANT", "WORK", "IDLE", "PENDING", "ENDED", "PLACE", "DRAINED", "TIME", "SLEEP", "WAKE", "CALL",
		"HELD", "LEFT", "ROOM", "RETURNED"};
	static const char *const changes[NVS_CHANGES] = {"ask", "give", "close", "end", "stick", "void"};
	static const char *const states[NVS_STATES] = {"none", "asked", "held", "closing"};
	static const char *const sleep_changes[NVS_SLEEP_CHANGES] = {
		"hold", "let go", "go", "gone", "stayed", "stuck", "return", "back", "refused"};
	static const char *const sleep_states[NVS_SLEEP_STATES] = {
		"awake", "holding", "leaving", "asleep", "returning", "broken"};
	switch ((enum nvs_line_kind)line->kind) {
	case NVS_LINE_EVENT:
		return snprintf(text, size, "%s (%llu us ago)", events[line->what % NVS_EVENT_TYPES], ago);
	case NVS_LINE_SLICE:
		return snprintf(text, size, "%s of %s (card %u, %llu us ago)", changes[line->what % NVS_CHANGES],
			states[line->state % NVS_STATES], line->card, ago);
	case NVS_LINE_SLEEP:
		return snprintf(text, size, "%s while %s (%llu us ago)", sleep_changes[line->what % NVS_SLEEP_CHANGES],
			sleep_states[line->state % NVS_SLEEP_STATES], ago);
	}
	return -1;
}

void nvs_client_story(const struct nvs_client *client, char *text, size_t size)
{
	size_t used = 0;
	text[0] = '\0';
	for (uint32_t i = client->lines > NVS_STORY ? client->lines - NVS_STORY : 0; i < client->lines; i++) {
		const struct nvs_line *line = &client->story[i % NVS_STORY];
		unsigned long long ago = (client->now - line->now) / NVS_NS_PER_US;
		int comma = used != 0 ? snprintf(text + used, size - used, ", ") : 0;
		if (used + (size_t)comma >= size)
			return;
		used += (size_t)comma;
		int more = tell(line, ago, text + used, size - used);
		if (more < 0 || used + (size_t)more >= size)
			return;
		used += (size_t)more;
	}
}

/* ---- the gate ---- */

static bool all_granted(const struct nvs_client *client)
{
	FOR_EACH_CARD(client, card)
	if (card->grant == 0)
		return false;
	return true;
}

static bool any_flag(const struct nvs_client *client, uint32_t flag)
{
	FOR_EACH_CARD(client, card)
	if (card->grant_flags & flag)
		return true;
	return false;
}

static bool is_open(const struct nvs_client *client)
{
	return client->gate == NVS_CLIENT_OPEN || client->gate == NVS_CLIENT_PACED;
}

static void set_gate(struct nvs_client *client, enum nvs_client_gate gate, uint64_t budget)
{
	if (gate == client->gate && budget == client->budget)
		return;
	if (!(gate == NVS_CLIENT_OPEN || gate == NVS_CLIENT_PACED) && is_open(client))
		client->wanted = false; /* nobody waits yet: who finds it shut asks */
	client->gate = (uint8_t)gate;
	client->budget = budget;
	struct nvs_action *action = nvs_do(client, NVS_DO_SET_GATE);
	action->gate = gate;
	action->length = budget;
}

static void set_open_gate(struct nvs_client *client)
{
	enum nvs_client_gate gate = client->scheduled ? nvs_slice_gate(client) : NVS_CLIENT_OPEN;
	uint64_t budget = gate == NVS_CLIENT_PACED ? nvs_slice_budget(client) : 0;
	if (gate == NVS_CLIENT_OPEN && client->scheduled && any_flag(client, NVS_FLAG_EXCLUSIVE))
		gate = NVS_CLIENT_PACED;
	set_gate(client, gate, budget);
}

void nvs_refresh_gate(struct nvs_client *client)
{
	if (!client->opening && client->gate != NVS_CLIENT_SHUT)
		set_open_gate(client);
}

/* ---- turns ---- */

static void open_if_granted(struct nvs_client *client)
{
	if (client->drain_for != 0 || (client->scheduled && !all_granted(client)) || !nvs_client_is_awake(client))
		return;
	client->opening = true;
	nvs_do(client, NVS_DO_OPEN_MEMORY);
}

void nvs_wake_up(struct nvs_client *client)
{
	open_if_granted(client);
}

static void on_place(struct nvs_client *client, const struct nvs_event *event)
{
	if (!client->opening || event->flags == 0)
		return;
	client->opening = client->draining = false;
	client->alone_since = 0;
	set_open_gate(client);
}

/* Work that went through before is not waited for. */
static void shut_for_now(struct nvs_client *client)
{
	set_gate(client, NVS_CLIENT_SHUT, 0);
	client->opening = false;
	client->draining = true;
}

/* The gate is shut and nothing runs any more: memory may leave. */
static void shut_down(struct nvs_client *client)
{
	client->opening = client->draining = false;
	nvs_do(client, NVS_DO_SHUT_MEMORY);
}

static void forget_grant(struct nvs_card *card)
{
	card->grant = 0;
	card->grant_flags = 0;
	card->quantum = 0;
}

static void end_drain(struct nvs_client *client, bool drained);

/* Shut the gate and wait for all work. What asks meanwhile is answered after DRAINED. */
static void drain(struct nvs_client *client, uint8_t why, uint64_t deadline)
{
	client->wanted = false; /* who finds the gate shut from here on asks again */
	client->shut_for = why;
	client->drain_for = deadline != 0 ? deadline : NVS_ENDS_BY_NS;
	client->drained_from = client->gate;
	client->gate = NVS_CLIENT_SHUT;
	client->budget = 0;
	if (nvs_client_is_awake(client))
		nvs_do(client, NVS_DO_DRAIN_TURN)->length = client->drain_for;
	else /* nothing runs, and the driver must not be asked */
		end_drain(client, true);
}

static void give_back(struct nvs_client *client, bool drained)
{
	FOR_EACH_CARD(client, card)
	{
		uint64_t grant = card->grant;
		if (grant == 0)
			continue;
		struct nvs_action *action = nvs_do_on(client, NVS_DO_SEND_RELEASED, card);
		action->number = grant;
		action->reason = drained ? client->shut_for : NVS_RELEASE_STUCK;
		forget_grant(card);
		card->given_back = drained ? grant : 0;
		/* Stuck: kept on no particular terms, until the scheduler grants or drops it anew. */
		card->grant = drained ? 0 : grant;
	}
}

static void end_drain(struct nvs_client *client, bool drained)
{
	uint64_t deadline = client->drain_for;
	client->drain_for = 0;
	if (drained)
		shut_down(client);
	else /* it is open again, but paced no more */
		client->gate = client->drained_from == NVS_CLIENT_PACED ? NVS_CLIENT_OPEN : client->drained_from;
	if (client->shut_for == FOR_CONTROL) {
		if (!drained)
			shut_for_now(client);
		return;
	}
	nvs_drop_slices(client, drained);
	give_back(client, drained);
	if (client->shut_for == NVS_RELEASE_IDLE)
		nvs_patience_gone(&client->pauses, client->now);
	if (drained)
		return;
	nvs_refresh_gate(client);
	nvs_do(client, NVS_DO_TELL_STUCK)->length = deadline;
}

static void on_drained(struct nvs_client *client, bool drained)
{
	if (client->drain_for != 0)
		end_drain(client, drained);
	else if (client->draining && drained) /* as LOOK_DRAINED found */
		shut_down(client);
}

static void on_grant(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event)
{
	if (event->number == 0 || event->number == card->given_back)
		return; /* new terms that crossed our own release */
	if (card->grant != event->number) {
		card->granted_at = client->now;
		nvs_void_request(client, card);
	}
	nvs_do_on(client, NVS_DO_TAKE_GRANT, card)->wants = card->grant != event->number;
	card->grant_asked = false;
	card->grant = event->number;
	card->grant_flags = event->flags;
	card->quantum = event->length;
	nvs_sleep_granted(client);
	open_if_granted(client);
}

static void on_drop(struct nvs_client *client, const struct nvs_card *card, const struct nvs_event *event)
{
	if (card->grant != 0 && card->grant == event->number) /* else it crossed our own release */
		drain(client, NVS_RELEASE_TOLD, event->length);
}

static void on_control(struct nvs_client *client, bool scheduled)
{
	bool was_free = !client->scheduled;
	client->scheduled = scheduled;
	client->alone_since = 0;
	nvs_sleep_heard(client);
	if (!scheduled) {
		FOR_EACH_CARD(client, card)
		{
			forget_grant(card);
			card->grant_asked = false; /* the scheduler forgot who waited */
		}
		nvs_forget_slices(client);
		nvs_do(client, NVS_DO_FREE_MEMORY);
	}
	if (!scheduled || all_granted(client))
		open_if_granted(client);
	else if (was_free && nvs_client_is_awake(client))     /* else nothing runs */
		drain(client, FOR_CONTROL, 2 * NVS_STUCK_NS); /* a drain of a second is a stuck one: twice that */
}

/* What was granted stays granted: it is told at the next registration. */
static void on_lost(struct nvs_client *client)
{
	FOR_EACH_CARD(client, card)
	card->known = card->grant_asked = false;
	client->scheduled = false;
	nvs_forget_slices(client);
	nvs_sleep_lost(client);
	if (client->alone_since == 0)
		client->alone_since = client->now;
	open_if_granted(client);
}

/* A further card of a running process: nothing goes until it is granted as well. */
static void on_card(struct nvs_client *client, uint32_t index)
{
	client->count = client->count > index ? client->count : index + 1;
	client->cards[index].known = true;
	client->cards[index].given_back = 0;
	if (client->scheduled)
		shut_for_now(client);
}

/* When the first of the quanta ends; 0 when none does. A turn that nobody waits for does not end. */
static uint64_t quantum_end(const struct nvs_client *client)
{
	uint64_t end = 0;
	FOR_EACH_CARD(client, card)
	if (card->grant != 0 && card->quantum != 0 && (card->grant_flags & NVS_FLAG_CONTENDED))
		end = nvs_earlier(end, card->granted_at + card->quantum);
	return end;
}

/* When a turn that others wait for is given up; 0: not, as things are. A submitter that waits for the rest of the gang,
 * for a slice, or for memory that is still arriving, is no idleness. */
static uint64_t idle_end(const struct nvs_client *client)
{
	bool waits = client->wanted && (!all_granted(client) || client->gate == NVS_CLIENT_REST);
	if (client->idle_since == 0 || client->opening || waits || client->names)
		return 0;
	return client->idle_since + (client->idle_turn != 0 ? client->idle_turn : nvs_patience(&client->pauses));
}

static uint64_t turn_due(const struct nvs_client *client)
{
	if (client->drain_for != 0)
		return 0;
	uint64_t alone = client->alone_since != 0 ? client->alone_since + NVS_ENDS_BY_NS : 0;
	if (!client->scheduled || !any_flag(client, NVS_FLAG_CONTENDED))
		return alone;
	return nvs_earlier(alone, nvs_earlier(quantum_end(client), idle_end(client)));
}

static void turn_time(struct nvs_client *client)
{
	if (client->alone_since != 0 && client->now >= client->alone_since + NVS_ENDS_BY_NS) {
		client->alone_since = 0;
		nvs_do(client, NVS_DO_FREE_MEMORY)->wants = true;
	}
	if (client->opening)
		open_if_granted(client);
	if (client->draining)
		nvs_do(client, NVS_DO_LOOK_DRAINED);
	if (client->drain_for != 0 || !client->scheduled || !any_flag(client, NVS_FLAG_CONTENDED))
		return;
	uint64_t quantum = quantum_end(client), idle = idle_end(client);
	if (quantum != 0 && client->now >= quantum)
		drain(client, NVS_RELEASE_ENDED, 0);
	else if (idle != 0 && client->now >= idle)
		drain(client, NVS_RELEASE_IDLE, 0);
}

static void ask(struct nvs_client *client)
{
	if (!client->scheduled || !client->wanted || !nvs_client_is_awake(client))
		return;
	FOR_EACH_CARD(client, card)
	if (card->known && card->grant == 0 && !card->grant_asked) {
		nvs_do_on(client, NVS_DO_SEND_REQ_LOCK, card);
		card->grant_asked = true;
	}
	nvs_ask_slices(client);
}

/* ---- the door ---- */

/* Of the scheduler, about a card. */
static bool names_card(uint32_t type)
{
	return type >= NVS_EVENT_GRANT && type <= NVS_EVENT_END;
}

static void dispatch(struct nvs_client *client, const struct nvs_event *event)
{
	struct nvs_card *card = &client->cards[event->card];
	switch ((enum nvs_event_type)event->type) {
	case NVS_EVENT_CONTROL:
		return on_control(client, event->flags != 0);
	case NVS_EVENT_LOST:
		return on_lost(client);
	case NVS_EVENT_CARD:
		return on_card(client, event->card);
	case NVS_EVENT_GRANT:
		return on_grant(client, card, event);
	case NVS_EVENT_DROP:
		return on_drop(client, card, event);
	case NVS_EVENT_TERMS:
		return nvs_on_terms(client, card, event);
	case NVS_EVENT_GIVE:
		return nvs_on_give(client, card, event);
	case NVS_EVENT_END:
		return nvs_on_end(client, card, event);
	case NVS_EVENT_WANT:
		client->wanted = true;
		if (client->scheduled)
			nvs_patience_back(&client->pauses, client->now, event->length);
		return nvs_on_call_for_turn(client);
	case NVS_EVENT_WORK:
		return nvs_on_work(client, event);
	case NVS_EVENT_IDLE:
		client->idle_since = event->at;
		client->idle_wakes = client->waits;
		return;
	case NVS_EVENT_PENDING:
		return nvs_on_pending(client, event);
	case NVS_EVENT_ENDED:
		return nvs_on_ended(client, event);
	case NVS_EVENT_PLACE:
		return on_place(client, event);
	case NVS_EVENT_DRAINED:
		return on_drained(client, event->flags != 0);
	case NVS_EVENT_TIME:
		turn_time(client);
		nvs_sleep_time(client);
		return nvs_slice_time(client);
	case NVS_EVENT_SLEEP:
		return nvs_on_sleep(client, event);
	case NVS_EVENT_WAKE:
		return nvs_on_wake(client, event);
	case NVS_EVENT_CALL:
		return nvs_on_call(client);
	case NVS_EVENT_HELD:
		return nvs_on_held(client, event);
	case NVS_EVENT_LEFT:
		return nvs_on_left(client, event);
	case NVS_EVENT_ROOM:
		return nvs_on_room(client, event);
	case NVS_EVENT_RETURNED:
		return nvs_on_returned(client, event);
	case NVS_EVENT_TYPES:
		return;
	}
}

void nvs_client_handle(struct nvs_client *client, const struct nvs_event *event, struct nvs_actions *actions)
{
	actions->count = 0;
	actions->wake_at = 0;
	if (event->type >= NVS_EVENT_TYPES || event->card >= NVS_MAX_GPUS)
		return;
	if (names_card(event->type) && event->card >= client->count)
		return;
	client->out = actions;
	client->now = event->now;
	client->waits = event->waits != 0;
	client->names = event->names != 0;
	if (event->type != NVS_EVENT_TIME && event->type != NVS_EVENT_HELD)
		nvs_note(client, NVS_LINE_EVENT, (uint8_t)event->type, event->card, client->cards[event->card].state);
	dispatch(client, event);
	if (client->drain_for == 0)
		ask(client);
	actions->wake_at = nvs_earlier(nvs_earlier(turn_due(client), nvs_slice_due(client)), nvs_sleep_due(client));
	client->out = NULL;
}
