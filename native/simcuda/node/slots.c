/* Who uses the node: slots, what they are charged, and what happens when their process is gone. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/node.h"

/* The node's processes may live in pid namespaces of their own (containers), where each could be number 1. They all
 * look at one process table, in which each has a number of its own; a container has it mounted where this says. */
const char *nvs_process_table(void)
{
	const char *place = getenv("NVSHARE_SIM_PROC");
	return place != NULL ? place : "/proc";
}

int nvs_node_pid(void)
{
	char path[PATH_MAX], text[16];
	snprintf(path, sizeof(path), "%s/self", nvs_process_table());
	ssize_t length = readlink(path, text, sizeof(text) - 1);
	text[length > 0 ? length : 0] = '\0';
	return length > 0 ? atoi(text) : getpid();
}

/* Gone is also what has only its entry left: a zombie owns nothing. */
uint64_t nvs_process_start(int pid)
{
	char path[PATH_MAX], text[1024];
	snprintf(path, sizeof(path), "%s/%d/stat", nvs_process_table(), pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return 0;
	text[length] = '\0';
	char *field = strrchr(text, ')'); /* the name before it may contain anything */
	if (field == NULL || field[1] == '\0' || strchr("ZXx", field[2]) != NULL)
		return 0;
	field += 2;
	for (int i = 3; i < 22 && field != NULL; i++)
		field = strchr(field + 1, ' ');
	return field == NULL ? 0 : strtoull(field, NULL, 10);
}

/* The account of a process on a GPU; a new one takes the place of the oldest that no living slot uses. */
static uint32_t account_of(struct nvs_node *node, int pid, uint64_t start_time, unsigned gpu)
{
	for (uint32_t i = 0; i < NVS_ACCOUNTS; i++) {
		const struct nvs_account *account = &node->accounts[i];
		if (account->pid == pid && account->start_time == start_time && account->gpu == gpu)
			return i;
	}
	bool used[NVS_ACCOUNTS] = {false};
	for (uint32_t i = 0; i < node->slot_top; i++)
		if (node->slots[i].pid != 0)
			used[node->slots[i].account] = true;
	while (used[node->next_account % NVS_ACCOUNTS])
		node->next_account++;
	uint32_t place = node->next_account++ % NVS_ACCOUNTS;
	node->accounts[place] = (struct nvs_account){.pid = pid, .gpu = gpu, .start_time = start_time};
	return place;
}

void nvs_slot_count(struct nvs_node *node, const struct nvs_slot *slot, enum nvs_count what, uint64_t n)
{
	if (what == NVS_COUNT_NOTHING)
		return;
	node->gpus[slot->gpu].counters.traffic.of[what - 1] += n;
	node->accounts[slot->account].traffic.of[what - 1] += n;
}

int nvs_slot_claim(struct nvs_node *node, unsigned gpu, bool has_context, uint64_t bytes)
{
	int free_slot = 0;
	while (free_slot < NVS_SLOTS && node->slots[free_slot].pid != 0)
		free_slot++;
	if (free_slot == NVS_SLOTS)
		return -1;
	struct nvs_slot *slot = &node->slots[free_slot];
	slot->gpu = gpu;
	int pid = nvs_node_pid();
	slot->start_time = nvs_process_start(pid);
	slot->has_context = has_context;
	slot->account = account_of(node, pid, slot->start_time, gpu);
	slot->context = has_context ? bytes : 0;
	slot->pid = pid;
	if (node->slot_top <= (uint32_t)free_slot)
		node->slot_top = (uint32_t)free_slot + 1;
	uint64_t evicted = 0;
	if (!nvs_slot_charge(node, free_slot, bytes, &evicted)) {
		slot->pid = 0;
		return -1;
	}
	if (has_context)
		node->gpus[gpu].counters.contexts_created++;
	return free_slot;
}

void nvs_slot_release(struct nvs_node *node, int index)
{
	struct nvs_slot *slot = &node->slots[index];
	nvs_slot_clear(node, index);
	node->gpus[slot->gpu].used -= nvs_slot_total(slot);
	slot->bytes = slot->managed = slot->leaving = slot->pinned = slot->context = slot->away = 0;
	slot->has_context = 0;
	slot->pid = 0;
	while (node->slot_top > 0 && node->slots[node->slot_top - 1].pid == 0)
		node->slot_top--;
	nvs_node_wake(node);
}

/* Whose managed memory on the GPU was used longest ago; NULL: there is none. */
static struct nvs_slot *least_recently_used(struct nvs_node *node, unsigned gpu)
{
	struct nvs_slot *oldest = NULL;
	for (uint32_t i = 0; i < node->slot_top; i++) {
		struct nvs_slot *slot = &node->slots[i];
		if (slot->pid != 0 && slot->gpu == gpu && slot->managed > 0 &&
			(oldest == NULL || slot->managed_used_at < oldest->managed_used_at))
			oldest = slot;
	}
	return oldest;
}

static uint64_t evictable(struct nvs_node *node, unsigned gpu)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < node->slot_top; i++)
		if (node->slots[i].pid != 0 && node->slots[i].gpu == gpu)
			sum += node->slots[i].managed;
	return sum;
}

bool nvs_gpu_has_room(struct nvs_node *node, unsigned index, uint64_t bytes)
{
	const struct nvs_gpu *gpu = &node->gpus[index];
	uint64_t size = node->profile.memory_bytes;
	if (bytes > size)
		return false;
	if (gpu->used + bytes <= size)
		return true;
	nvs_members_reap(node, true);
	return gpu->used + bytes <= size + evictable(node, index);
}

static bool make_room(struct nvs_node *node, unsigned index, uint64_t bytes, uint64_t *evicted)
{
	struct nvs_gpu *gpu = &node->gpus[index];
	uint64_t size = node->profile.memory_bytes;
	if (!nvs_gpu_has_room(node, index, bytes))
		return false;
	while (gpu->used + bytes > size) {
		struct nvs_slot *victim = least_recently_used(node, index);
		uint64_t missing = gpu->used + bytes - size;
		missing = (missing + NVS_MANAGED_PART - 1) / NVS_MANAGED_PART * NVS_MANAGED_PART;
		uint64_t taken = victim->managed < missing ? victim->managed : missing;
		victim->managed -= taken;
		gpu->used -= taken;
		*evicted += taken;
		nvs_slot_count(node, victim, NVS_COUNT_EVICTED, taken);
	}
	return true;
}

bool nvs_slot_charge(struct nvs_node *node, int index, uint64_t bytes, uint64_t *evicted)
{
	struct nvs_slot *slot = &node->slots[index];
	if (!make_room(node, slot->gpu, bytes, evicted))
		return false;
	node->gpus[slot->gpu].used += bytes;
	slot->bytes += bytes;
	return true;
}

bool nvs_slot_charge_managed(struct nvs_node *node, int index, uint64_t bytes, uint64_t *evicted)
{
	struct nvs_slot *slot = &node->slots[index];
	if (!make_room(node, slot->gpu, bytes, evicted))
		return false;
	node->gpus[slot->gpu].used += bytes;
	slot->managed += bytes;
	return true;
}

void nvs_slot_refund_managed(struct nvs_node *node, int index, uint64_t bytes)
{
	node->slots[index].managed -= bytes;
	node->gpus[node->slots[index].gpu].used -= bytes;
}

void nvs_slot_leave(struct nvs_node *node, int index, uint64_t bytes)
{
	node->slots[index].managed -= bytes;
	node->slots[index].leaving += bytes;
}

void nvs_slot_left(struct nvs_node *node, const struct nvs_op *op, int pid)
{
	struct nvs_slot *slot = &node->slots[op->leaving_slot];
	if (op->leaving == 0 || slot->pid != pid || slot->leaving < op->leaving)
		return;
	slot->leaving -= op->leaving;
	node->gpus[slot->gpu].used -= op->leaving;
}

void nvs_slot_refund(struct nvs_node *node, int index, uint64_t bytes)
{
	node->slots[index].bytes -= bytes;
	node->gpus[node->slots[index].gpu].used -= bytes;
}

void nvs_slot_recount(struct nvs_node *node)
{
	for (uint32_t i = 0; i < node->gpu_count; i++)
		node->gpus[i].used = 0;
	node->slot_top = 0;
	for (uint32_t i = 0; i < NVS_SLOTS; i++) {
		if (node->slots[i].pid == 0)
			continue;
		node->gpus[node->slots[i].gpu].used += nvs_slot_total(&node->slots[i]);
		node->slot_top = i + 1;
	}
}
