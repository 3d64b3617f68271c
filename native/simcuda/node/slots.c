/* Who uses the node: slots, what they are charged, and what happens when their process is gone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/node.h"

#define REAP_EVERY_NS 20000000

/* Start time of a process in clock ticks since boot; 0 when it is gone or only its entry is left (a zombie owns
 * nothing). */
static uint64_t process_start(int pid)
{
	char path[40], text[1024];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
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

int nvs_slot_claim(struct nvs_node *node, unsigned gpu, bool has_context, uint64_t bytes)
{
	int free_slot = 0;
	while (free_slot < NVS_SLOTS && node->slots[free_slot].pid != 0)
		free_slot++;
	if (free_slot == NVS_SLOTS)
		return -1;
	struct nvs_slot *slot = &node->slots[free_slot];
	slot->gpu = gpu;
	slot->start_time = process_start(getpid());
	slot->has_context = has_context;
	slot->pid = getpid();
	if (node->slot_top <= (uint32_t)free_slot)
		node->slot_top = (uint32_t)free_slot + 1;
	if (!nvs_slot_charge(node, free_slot, bytes)) {
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
	node->gpus[slot->gpu].used -= slot->bytes;
	slot->bytes = 0;
	slot->has_context = 0;
	slot->pid = 0;
	while (node->slot_top > 0 && node->slots[node->slot_top - 1].pid == 0)
		node->slot_top--;
	nvs_node_wake(node);
}

bool nvs_slot_charge(struct nvs_node *node, int index, uint64_t bytes)
{
	struct nvs_slot *slot = &node->slots[index];
	struct nvs_gpu *gpu = &node->gpus[slot->gpu];
	if (bytes > node->profile.memory_bytes)
		return false;
	if (gpu->used + bytes > node->profile.memory_bytes)
		nvs_slot_reap(node, true);
	if (gpu->used + bytes > node->profile.memory_bytes)
		return false;
	gpu->used += bytes;
	slot->bytes += bytes;
	return true;
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
		node->gpus[node->slots[i].gpu].used += node->slots[i].bytes;
		node->slot_top = i + 1;
	}
}

void nvs_slot_reap(struct nvs_node *node, bool now)
{
	struct timespec wall;
	clock_gettime(CLOCK_MONOTONIC, &wall);
	int64_t wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
	if (!now && wall_ns - node->reaped_wall_ns < REAP_EVERY_NS)
		return;
	node->reaped_wall_ns = wall_ns;
	int self = getpid(), judged = 0;
	bool alive = true;
	for (uint32_t i = 0; i < node->slot_top; i++) {
		struct nvs_slot *slot = &node->slots[i];
		if (slot->pid == 0 || slot->pid == self)
			continue;
		if (slot->pid != judged)
			alive = process_start(slot->pid) == slot->start_time;
		judged = slot->pid;
		if (!alive)
			nvs_slot_release(node, (int)i);
	}
}
