#include "memory/swap/state.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/list.h"

struct nvs_holdings nvs_holdings = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.devices = {[0 ... NVS_MAX_DEVICES - 1] = {.target = NVS_UNLIMITED, .ceiling = NVS_UNLIMITED}},
};

/* The lock is held. The rest of its target, too small for a chunk, is used by unified memory all the same: the driver
 * moves pages. */
static bool has_pages_left_to_take(CUdevice device)
{
	const struct nvs_holding *of = &nvs_holdings.devices[device];
	uint64_t room = nvs_holding_room(of);
	return of->unified && room > 0 && of->absent > room && of->leaving + of->arriving == 0 &&
	       !nvs_residency_any_fits(device, room);
}

void nvs_residency_view(CUdevice device, struct nvs_holding *view)
{
	*view = (struct nvs_holding){.target = NVS_UNLIMITED};
	if (!nvs_is_managed(device))
		return;
	nvs_holdings_lock();
	*view = nvs_holdings.devices[device];
	if (has_pages_left_to_take(device)) {
		uint64_t pages = view->target - view->resident;
		view->resident = view->target;
		view->absent -= pages;
		view->host -= view->host < pages ? view->host : pages;
	}
	nvs_holdings_unlock();
	if (view->resident > view->ceiling)
		view->resident = view->ceiling;
}

/* ---- what is allocated ---- */

/* A holder's request was granted because there is room, even if the target that says so is still on its way. */
static bool may_come(const struct nvs_holding *device, uint64_t bytes)
{
	return !nvs_holdings.is_shut || bytes <= nvs_holding_room(device);
}

bool nvs_residency_claim(CUdevice device, uint64_t bytes)
{
	if (!nvs_is_managed(device))
		return true;
	nvs_holdings_lock();
	struct nvs_holding *of = &nvs_holdings.devices[device];
	/* Unified memory is granted beyond the card too: it needs no room there. */
	bool now = of->unified ? bytes <= nvs_holding_room(of) : may_come(of, bytes);
	*(now ? &of->resident : &of->absent) += bytes;
	nvs_holdings_unlock();
	return now;
}

bool nvs_residency_claim_at_once(CUdevice device, uint64_t bytes)
{
	struct timespec until;
	if (!nvs_is_managed(device))
		return true;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	nvs_holdings_lock();
	bool now = may_come(&nvs_holdings.devices[device], bytes);
	while (!now && pthread_cond_timedwait(&nvs_holdings.changed, &nvs_holdings.lock, &until) == 0)
		now = may_come(&nvs_holdings.devices[device], bytes);
	if (now)
		nvs_holdings.devices[device].resident += bytes;
	nvs_holdings_unlock();
	return now;
}

void nvs_residency_forget(CUdevice device, uint64_t resident, uint64_t absent)
{
	if (!nvs_is_managed(device))
		return;
	nvs_holdings_lock();
	struct nvs_holding *of = &nvs_holdings.devices[device];
	of->resident -= resident < of->resident ? resident : of->resident;
	of->absent -= absent < of->absent ? absent : of->absent;
	nvs_holdings_changed();
	nvs_holdings_unlock();
}

void nvs_residency_pin(CUdevice device, int64_t delta)
{
	if (!nvs_is_managed(device))
		return;
	nvs_holdings_lock();
	uint64_t *pinned = &nvs_holdings.devices[device].pinned;
	bool under = delta < 0 && (uint64_t)-delta > *pinned;
	*pinned = under ? 0 : *pinned + (uint64_t)delta;
	nvs_holdings_unlock();
}

/* ---- what the scheduler says ---- */

/* The lock is held. */
static void aim(struct nvs_holding *of, uint64_t target)
{
	of->target = target;
	if (of->ceiling < target)
		of->ceiling = target;
	nvs_holdings_changed();
}

/* On the card, as far as is known. */
static uint64_t present(const struct nvs_holding *of)
{
	return of->resident < of->ceiling ? of->resident : of->ceiling;
}

/* The lock is held. */
static void try_blocked_again(CUdevice device)
{
	nvs_holdings.blocked_at[device] = 0;
	for (struct nvs_backing *backing = nvs_holdings.backings; backing != NULL; backing = backing->next)
		for (size_t i = 0; backing->device == device && i < backing->chunk_count; i++)
			if (backing->chunks[i].blocked) {
				backing->chunks[i].blocked = false;
				nvs_holdings.devices[device].pinned -=
					backing->chunks[i].held ? 0 : backing->chunks[i].size;
			}
}

void nvs_residency_set(CUdevice device, uint64_t target, uint64_t number)
{
	if (!nvs_is_managed(device))
		return;
	nvs_holdings_lock();
	struct nvs_holding *of = &nvs_holdings.devices[device];
	uint64_t allocated = of->resident + of->absent - of->leaving - of->arriving;
	bool lower = target < of->target;
	aim(of, target);
	of->number = number;
	if (target < allocated && allocated - target > of->wanted)
		of->wanted = allocated - target;
	if (lower && nvs_holdings.blocked_at[device] != 0 &&
		nvs_now_ns() - nvs_holdings.blocked_at[device] > NVS_BLOCKED_NS)
		try_blocked_again(device);
	nvs_holdings_unlock();
}

void nvs_residency_prepare(CUdevice device, uint64_t bytes)
{
	if (!nvs_is_managed(device))
		return;
	nvs_holdings_lock();
	nvs_holdings.devices[device].wanted = bytes;
	nvs_holdings_unlock();
}

void nvs_residency_registering(void)
{
	nvs_holdings_lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		nvs_holdings.devices[i].number = 0;
		aim(&nvs_holdings.devices[i],
			nvs_holdings.devices[i].absent > 0 ? present(&nvs_holdings.devices[i]) : NVS_UNLIMITED);
	}
	nvs_holdings_unlock();
}

void nvs_residency_granted(CUdevice device)
{
	if (!nvs_is_managed(device))
		return;
	nvs_holdings_lock();
	if (nvs_holdings.devices[device].number == 0)
		aim(&nvs_holdings.devices[device], NVS_UNLIMITED);
	nvs_holdings_unlock();
}

void nvs_residency_orphaned(void)
{
	nvs_holdings_lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		if (nvs_holdings.devices[i].absent == 0)
			aim(&nvs_holdings.devices[i], NVS_UNLIMITED);
		else if (nvs_holdings.devices[i].target < present(&nvs_holdings.devices[i]))
			aim(&nvs_holdings.devices[i], present(&nvs_holdings.devices[i]));
	}
	nvs_holdings_unlock();
}

void nvs_residency_free_all(void)
{
	nvs_holdings_lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		aim(&nvs_holdings.devices[i], NVS_UNLIMITED);
	nvs_holdings_unlock();
}

/* ---- the gate ---- */

bool nvs_residency_open(void)
{
	bool usable = true;
	nvs_holdings_lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		usable = usable && (nvs_holdings.devices[i].absent == 0 || nvs_holdings.devices[i].unified);
	if (usable && nvs_holdings.is_shut) {
		nvs_holdings.is_shut = false;
		for (struct nvs_backing *backing = nvs_holdings.backings; backing != NULL; backing = backing->next)
			for (size_t i = 0; !backing->backend->is_unified && i < backing->chunk_count; i++) {
				backing->chunks[i].state = NVS_CHUNK_GPU;
				backing->chunks[i].filled = false;
			}
		nvs_holdings_changed();
	}
	nvs_holdings_unlock();
	return usable;
}

/* The lock is held. Work may have touched all of it: it counts as on the card until it is sent away again. More than
 * the target allowed cannot be there. */
static void count_as_touched(struct nvs_backing *backing)
{
	struct nvs_holding *of = &nvs_holdings.devices[backing->device];
	for (size_t i = 0; i < backing->chunk_count; i++) {
		struct nvs_chunk *chunk = &backing->chunks[i];
		if (chunk->state != NVS_CHUNK_HOST && chunk->state != NVS_CHUNK_FRESH)
			continue;
		if (of->ceiling == NVS_UNLIMITED)
			of->ceiling = of->target > of->resident ? of->target : of->resident;
		of->host -= chunk->state == NVS_CHUNK_HOST ? chunk->size : 0;
		of->resident += chunk->size;
		of->absent -= chunk->size;
		chunk->state = NVS_CHUNK_GPU;
	}
}

void nvs_residency_shut(void)
{
	nvs_holdings_lock();
	for (struct nvs_backing *backing = nvs_holdings.is_shut ? NULL : nvs_holdings.backings; backing != NULL;
		backing = backing->next)
		if (backing->backend->is_unified && !backing->leaving)
			count_as_touched(backing);
	nvs_holdings.is_shut = true;
	nvs_holdings_unlock();
}

void nvs_residency_unified(CUdevice device)
{
	nvs_holdings_lock();
	nvs_holdings.devices[device].unified = true;
	nvs_holdings_unlock();
}

/* ---- backings ---- */

void nvs_residency_add(struct nvs_backing *backing)
{
	struct nvs_holding *of = &nvs_holdings.devices[backing->device];
	nvs_holdings_lock();
	for (size_t i = 0; i < backing->chunk_count; i++)
		if (backing->chunks[i].blocked) {
			of->pinned += backing->chunks[i].size;
			nvs_holdings.blocked_at[backing->device] = nvs_now_ns();
		}
	NVS_LIST_PUSH(nvs_holdings.backings, backing);
	nvs_holdings_unlock();
}

/* The lock is held. */
static bool is_on_its_way(const struct nvs_backing *backing)
{
	for (size_t i = 0; i < backing->chunk_count; i++)
		if (nvs_chunk_is_moving(&backing->chunks[i]))
			return true;
	return false;
}

/* The lock is held. */
static void wait_until_still(const struct nvs_backing *backing)
{
	while (!nvs_holdings.abandoned && is_on_its_way(backing))
		pthread_cond_wait(&nvs_holdings.changed, &nvs_holdings.lock);
}

uint64_t nvs_residency_remove(struct nvs_backing *backing)
{
	struct nvs_holding *device = &nvs_holdings.devices[backing->device];
	uint64_t mapped = 0;
	nvs_holdings_lock();
	backing->leaving = true;
	wait_until_still(backing);
	while (backing->lent > 0)
		pthread_cond_wait(&nvs_holdings.changed, &nvs_holdings.lock);
	NVS_LIST_TAKE(nvs_holdings.backings, backing);
	for (size_t i = 0; i < backing->chunk_count; i++) {
		const struct nvs_chunk *chunk = &backing->chunks[i];
		mapped += nvs_chunk_is_mapped(chunk) ? chunk->size : 0;
		device->host -= chunk->state == NVS_CHUNK_HOST ? chunk->size : 0;
		device->pinned -= chunk->blocked || chunk->held ? chunk->size : 0;
		device->buffered -= chunk->buffer != NULL ? chunk->size : 0;
	}
	nvs_holdings_unlock();
	return mapped;
}

void nvs_residency_fix(struct nvs_backing *backing)
{
	nvs_holdings_lock();
	backing->fixed++;
	wait_until_still(backing);
	nvs_holdings_unlock();
}

void nvs_residency_unfix(struct nvs_backing *backing)
{
	nvs_holdings_lock();
	backing->fixed--;
	nvs_holdings_unlock();
}

bool nvs_residency_is_mapped(const struct nvs_backing *backing, size_t index)
{
	nvs_holdings_lock();
	bool mapped = nvs_chunk_is_mapped(&backing->chunks[index]);
	nvs_holdings_unlock();
	return mapped;
}

/* The lock is held. Bytes of the chunks with such addresses that could leave; with `hold` they no longer can. */
static uint64_t hold_chunks(CUdevice device, CUdeviceptr p, size_t size, bool hold)
{
	uint64_t loose = 0;
	for (struct nvs_backing *each = nvs_holdings.backings; each != NULL; each = each->next)
		for (size_t i = 0; each->device == device && i < each->chunk_count; i++) {
			struct nvs_chunk *chunk = &each->chunks[i];
			CUdeviceptr start = nvs_chunk_address(each, i);
			if (chunk->held || p >= start + chunk->size || start >= p + size)
				continue;
			chunk->held = hold;
			loose += chunk->blocked ? 0 : chunk->size;
		}
	return loose;
}

void nvs_residency_hold(CUdevice device, CUdeviceptr p, size_t size)
{
	nvs_holdings_lock();
	nvs_holdings.devices[device].pinned += hold_chunks(device, p, size, true);
	nvs_holdings_unlock();
}

uint64_t nvs_residency_loose(CUdevice device, CUdeviceptr p, size_t size)
{
	nvs_holdings_lock();
	uint64_t loose = hold_chunks(device, p, size, false);
	nvs_holdings_unlock();
	return loose;
}

/* The lock is held. */
static bool is_held(const struct nvs_backing *backing)
{
	for (size_t i = 0; i < backing->chunk_count; i++)
		if (!backing->chunks[i].held || !nvs_chunk_is_mapped(&backing->chunks[i]))
			return false;
	return true;
}

struct nvs_backing *nvs_residency_lend(CUdevice device, CUdeviceptr p)
{
	nvs_holdings_lock();
	struct nvs_backing *each = nvs_holdings.backings;
	while (each != NULL && (each->device != device || p < each->base || p >= each->base + each->size))
		each = each->next;
	if (each != NULL && !each->leaving && is_held(each))
		each->lent++;
	else
		each = NULL;
	nvs_holdings_unlock();
	return each;
}

void nvs_residency_unlend(struct nvs_backing *backing)
{
	nvs_holdings_lock();
	backing->lent--;
	nvs_holdings_changed();
	nvs_holdings_unlock();
}

struct nvs_range *nvs_residency_mapped(CUdevice device, size_t *count)
{
	size_t total = 0, used = 0;
	nvs_holdings_lock();
	for (struct nvs_backing *each = nvs_holdings.backings; each != NULL; each = each->next)
		total += each->device == device && !each->backend->is_unified ? each->chunk_count : 0;
	struct nvs_range *ranges = calloc(total + 1, sizeof(*ranges));
	for (struct nvs_backing *each = nvs_holdings.backings; ranges != NULL && each != NULL; each = each->next)
		for (size_t i = 0; each->device == device && !each->backend->is_unified && i < each->chunk_count; i++)
			if (nvs_chunk_is_mapped(&each->chunks[i]))
				ranges[used++] = (struct nvs_range){nvs_chunk_address(each, i), each->chunks[i].size};
	nvs_holdings_unlock();
	*count = used;
	return ranges;
}

bool nvs_residency_is_away(CUdevice device, CUdeviceptr p)
{
	bool away = false;
	if (!nvs_is_managed(device))
		return false;
	nvs_holdings_lock();
	bool any = nvs_holdings.devices[device].absent > 0 && !nvs_holdings.devices[device].unified;
	for (struct nvs_backing *each = any ? nvs_holdings.backings : NULL; each != NULL; each = each->next)
		if (p >= each->base && p < each->base + each->size)
			away = !nvs_chunk_is_mapped(&each->chunks[(p - each->base) / nvs_chunk_bytes]);
	nvs_holdings_unlock();
	return away;
}

/* ---- ends ---- */

void nvs_residency_abandon(void)
{
	nvs_holdings_lock();
	nvs_holdings.abandoned = true;
	nvs_holdings_changed();
	nvs_holdings_unlock();
}

void nvs_residency_after_fork(void)
{
	pthread_mutex_init(&nvs_holdings.lock, NULL);
	pthread_cond_init(&nvs_holdings.changed, NULL);
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		nvs_holdings.devices[i] = (struct nvs_holding){
			.target = NVS_UNLIMITED, .ceiling = NVS_UNLIMITED, .unified = nvs_holdings.devices[i].unified};
		nvs_holdings.blocked_at[i] = 0;
	}
	nvs_holdings.backings = NULL;
	nvs_holdings.is_shut = nvs_holdings.abandoned = false;
}
