/* The processes that use the driver, and where each is with its checkpoint. An operation that was begun goes on without
 * whoever asked for it: the next to look carries out what is due. */
#include <time.h>

#include "node/node.h"

#define REAP_EVERY_NS 20000000

struct nvs_member *nvs_member_claim(struct nvs_node *node)
{
	uint32_t place = 0;
	while (place < NVS_MEMBERS && node->members[place].pid != 0)
		place++;
	if (place == NVS_MEMBERS)
		return NULL;
	int pid = nvs_node_pid();
	struct nvs_member *member = &node->members[place];
	*member = (struct nvs_member){.start_time = nvs_process_start(pid), .pid = pid};
	if (node->member_top <= place)
		node->member_top = place + 1;
	return member;
}

struct nvs_member *nvs_member_find(struct nvs_node *node, int pid)
{
	for (uint32_t i = 0; i < node->member_top; i++) {
		struct nvs_member *member = &node->members[i];
		if (member->pid == pid && nvs_process_start(pid) == member->start_time)
			return member;
	}
	return NULL;
}

void nvs_member_release(struct nvs_node *node, struct nvs_member *member)
{
	for (int i = (int)node->slot_top - 1; i >= 0; i--)
		if (node->slots[i].pid == member->pid)
			nvs_slot_release(node, i);
	member->pid = 0;
	while (node->member_top > 0 && node->members[node->member_top - 1].pid == 0)
		node->member_top--;
	nvs_node_wake(node);
}

void nvs_members_reap(struct nvs_node *node, bool now)
{
	struct timespec wall;
	clock_gettime(CLOCK_MONOTONIC, &wall);
	int64_t wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
	if (!now && wall_ns - node->reaped_wall_ns < REAP_EVERY_NS)
		return;
	node->reaped_wall_ns = wall_ns;
	int self = nvs_node_pid();
	for (uint32_t i = 0; i < node->member_top; i++) {
		struct nvs_member *member = &node->members[i];
		if (member->pid != 0 && member->pid != self && nvs_process_start(member->pid) != member->start_time)
			nvs_member_release(node, member);
	}
}

void nvs_members_repair(struct nvs_node *node)
{
	node->member_top = 0;
	for (uint32_t i = 0; i < NVS_MEMBERS; i++) {
		struct nvs_member *member = &node->members[i];
		if (member->pid == 0)
			continue;
		node->member_top = i + 1;
		nvs_member_set(node, member, (enum nvs_stage)member->stage);
	}
}

void nvs_member_set(struct nvs_node *node, struct nvs_member *member, enum nvs_stage stage)
{
	__atomic_store_n(&member->shut, stage != NVS_RUNNING, __ATOMIC_SEQ_CST);
	member->stage = stage;
	nvs_node_wake(node);
}

/* The next slot of the process from `i` on, -1: there is none. */
static int next_slot(const struct nvs_node *node, const struct nvs_member *member, int i)
{
	while (i < (int)node->slot_top && node->slots[i].pid != member->pid)
		i++;
	return i < (int)node->slot_top ? i : -1;
}

/* A process leaves something on each card on which it has a context. */
static uint64_t kept(const struct nvs_node *node, const struct nvs_member *member, int index)
{
	if (!node->slots[index].has_context)
		return 0;
	for (int i = next_slot(node, member, 0); i < index; i = next_slot(node, member, i + 1))
		if (node->slots[i].gpu == node->slots[index].gpu && node->slots[i].has_context)
			return 0;
	return node->profile.checkpointed_bytes;
}

/* What the process allocated, wherever it is. */
static uint64_t data_of(const struct nvs_slot *slot)
{
	return slot->bytes + slot->away - slot->context;
}

static double all_data(const struct nvs_node *node, const struct nvs_member *member)
{
	double sum = 0;
	for (int i = next_slot(node, member, 0); i >= 0; i = next_slot(node, member, i + 1))
		sum += (double)data_of(&node->slots[i]);
	return sum;
}

double nvs_checkpoint_ns(struct nvs_node *node, const struct nvs_member *member)
{
	return 1e9 * (node->profile.checkpoint_out + all_data(node, member) / node->profile.checkpoint_d2h);
}

double nvs_restore_ns(struct nvs_node *node, const struct nvs_member *member)
{
	return 1e9 * (node->profile.checkpoint_in + all_data(node, member) / node->profile.checkpoint_h2d);
}

/* Again after a death in the middle, it does what is left to do. */
static void give_room(struct nvs_node *node, const struct nvs_member *member)
{
	for (int i = next_slot(node, member, 0); i >= 0; i = next_slot(node, member, i + 1)) {
		struct nvs_slot *slot = &node->slots[i];
		uint64_t stays = kept(node, member, i);
		if (slot->bytes <= stays)
			continue;
		nvs_slot_count(node, slot, NVS_COUNT_D2H, data_of(slot));
		slot->away = slot->bytes - stays;
		nvs_slot_refund(node, i, slot->away);
	}
}

bool nvs_member_take_room(struct nvs_node *node, const struct nvs_member *member)
{
	uint64_t wanted[NVS_GPUS] = {0}, evicted = 0;
	bool fits = true;
	int i;
	for (i = next_slot(node, member, 0); i >= 0; i = next_slot(node, member, i + 1))
		wanted[node->slots[i].gpu] += node->slots[i].away;
	for (unsigned gpu = 0; gpu < node->gpu_count; gpu++)
		fits = fits && nvs_gpu_has_room(node, gpu, wanted[gpu]);
	for (i = next_slot(node, member, 0); fits && i >= 0; i = next_slot(node, member, i + 1)) {
		struct nvs_slot *slot = &node->slots[i];
		nvs_slot_count(node, slot, NVS_COUNT_H2D, data_of(slot));
		nvs_slot_charge(node, i, slot->away, &evicted);
		slot->away = 0;
	}
	return fits;
}

/* Has all work ended that the process submitted? */
static bool is_idle(const struct nvs_node *node, const struct nvs_member *member)
{
	for (int i = next_slot(node, member, 0); i >= 0; i = next_slot(node, member, i + 1))
		if (node->slots[i].busy_queues != 0)
			return false;
	return true;
}

void nvs_members_advance(struct nvs_node *node)
{
	for (uint32_t i = 0; i < node->member_top; i++) {
		struct nvs_member *member = &node->members[i];
		if (member->pid == 0 || member->stage < NVS_MOVING)
			continue;
		bool due = node->time >= member->until;
		if (member->stage == NVS_LOCKING) {
			bool quiet = __atomic_load_n(&member->inside, __ATOMIC_SEQ_CST) == 0 && is_idle(node, member);
			if (quiet || due)
				nvs_member_set(node, member, quiet ? NVS_LOCKED : NVS_RUNNING);
		} else if (due && member->stage == NVS_CHECKPOINTING) {
			give_room(node, member);
			nvs_member_set(node, member, NVS_CHECKPOINTED);
		} else if (due) {
			nvs_member_set(node, member, NVS_LOCKED);
		}
	}
}
