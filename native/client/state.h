/* What the files of the client share. */
#ifndef NVS_CLIENT_STATE_H
#define NVS_CLIENT_STATE_H

#include "client/client.h"

#define FOR_EACH_CARD(client, card)                                                                                    \
	for (typeof(&(client)->cards[0]) card = (client)->cards; card < (client)->cards + (client)->count; card++)
#define FOR_EACH_NEEDED(client, card)                                                                                  \
	FOR_EACH_CARD(client, card)                                                                                    \
	if (card->needs_slices)

/* ---- client.c ---- */

/* The next action, to be filled in. */
struct nvs_action *nvs_do(struct nvs_client *client, enum nvs_action_type type);
struct nvs_action *nvs_do_on(struct nvs_client *client, enum nvs_action_type type, const struct nvs_card *card);
/* Whatever decides about the gate has changed. */
void nvs_refresh_gate(struct nvs_client *client);
void nvs_note(struct nvs_client *client, enum nvs_line_kind kind, uint8_t what, uint32_t card, uint8_t state);
/* The contexts are on the cards again: what came meanwhile is done now. */
void nvs_wake_up(struct nvs_client *client);

/* ---- slices.c ---- */

void nvs_on_terms(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event);
void nvs_on_give(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event);
void nvs_on_end(struct nvs_client *client, struct nvs_card *card, const struct nvs_event *event);
void nvs_on_work(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_pending(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_ended(struct nvs_client *client, const struct nvs_event *event);
void nvs_slice_time(struct nvs_client *client);
/* When slices want to know the time; 0: not before something happens. */
uint64_t nvs_slice_due(const struct nvs_client *client);
/* Ask for slices, if a submitter waits. */
void nvs_ask_slices(struct nvs_client *client);
/* The card is granted anew: what was asked for under an earlier grant was not heard. */
void nvs_void_request(struct nvs_client *client, struct nvs_card *card);
/* The grants are gone, after a drain or without one: so are the slices. */
void nvs_drop_slices(struct nvs_client *client, bool drained);
/* There is no scheduler any more, or it lets everything through: no terms. */
void nvs_forget_slices(struct nvs_client *client);
/* How the gate stands while all cards are granted and exclusiveness does not matter. */
enum nvs_client_gate nvs_slice_gate(const struct nvs_client *client);
uint64_t nvs_slice_budget(const struct nvs_client *client);

/* ---- sleep.c ---- */

void nvs_on_sleep(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_wake(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_call(struct nvs_client *client);
void nvs_on_call_for_turn(struct nvs_client *client);
void nvs_on_held(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_left(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_room(struct nvs_client *client, const struct nvs_event *event);
void nvs_on_returned(struct nvs_client *client, const struct nvs_event *event);
void nvs_sleep_granted(struct nvs_client *client);
void nvs_sleep_heard(struct nvs_client *client);
void nvs_sleep_lost(struct nvs_client *client);
void nvs_sleep_time(struct nvs_client *client);
/* When sleep wants to know the time; 0: not before something happens. */
uint64_t nvs_sleep_due(const struct nvs_client *client);

#endif
