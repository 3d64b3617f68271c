#include "residency.h"

#include <pthread.h>
#include <stdlib.h>

#include "backing.h"
#include "clock.h"
#include "memory.h"

/* A chunk that could not be moved, because the host had no room, is tried again after this long. */
#define STUCK_NS (10 * NVS_NS_PER_S)

static pthread_mutex_t residency_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t residency_changed = PTHREAD_COND_INITIALIZER;
static struct nvs_holding devices[NVS_MAX_DEVICES] = {
	[0 ... NVS_MAX_DEVICES - 1] = {.target = NVS_UNLIMITED, .ceiling = NVS_UNLIMITED}};
static uint64_t stuck_at[NVS_MAX_DEVICES]; /* ns; 0: nothing is */
static struct nvs_backing *backings;       /* the newest first */
static bool is_shut;                       /* the gate, with all work finished */
static bool abandoned;

static void lock(void)
{
	pthread_mutex_lock(&residency_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&residency_lock);
}

/* Something that others may wait for. The lock is held. */
static void changed(void)
{
	pthread_cond_broadcast(&residency_changed);
}

static uint64_t room(const struct nvs_holding *device)
{
	return device->target > device->resident ? device->target - device->resident : 0;
}

void nvs_residency_view(CUdevice device, struct nvs_holding *view)
{
	*view = (struct nvs_holding){.target = NVS_UNLIMITED};
	if (!nvs_is_managed(device))
		return;
	lock();
	*view = devices[device];
	unlock();
	if (view->resident > view->ceiling)
		view->resident = view->ceiling;
}

/* ---- what is allocated ---- */

/* A holder's request was granted because there is room, even if the target that says so is still on its way; or, with
 * unified memory, because it needs none. */
static bool may_come(const struct nvs_holding *device, uint64_t bytes)
{
	return (!is_shut && !device->unified) || bytes <= room(device);
}

bool nvs_residency_claim(CUdevice device, uint64_t bytes)
{
	if (!nvs_is_managed(device))
		return true;
	lock();
	bool now = may_come(&devices[device], bytes);
	*(now ? &devices[device].resident : &devices[device].absent) += bytes;
	unlock();
	return now;
}

bool nvs_residency_claim_at_once(CUdevice device, uint64_t bytes)
{
	struct timespec until;
	if (!nvs_is_managed(device))
		return true;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	lock();
	bool now = may_come(&devices[device], bytes);
	while (!now && pthread_cond_timedwait(&residency_changed, &residency_lock, &until) == 0)
		now = may_come(&devices[device], bytes);
	if (now)
		devices[device].resident += bytes;
	unlock();
	return now;
}

void nvs_residency_forget(CUdevice device, uint64_t resident, uint64_t absent)
{
	if (!nvs_is_managed(device))
		return;
	lock();
	struct nvs_holding *of = &devices[device];
	of->resident -= resident < of->resident ? resident : of->resident;
	of->absent -= absent < of->absent ? absent : of->absent;
	changed();
	unlock();
}

void nvs_residency_pin(CUdevice device, int64_t delta)
{
	if (!nvs_is_managed(device))
		return;
	lock();
	uint64_t *pinned = &devices[device].pinned;
	bool under = delta < 0 && (uint64_t)-delta > *pinned;
	*pinned = under ? 0 : *pinned + (uint64_t)delta;
	unlock();
}

/* ---- what the scheduler says ---- */

/* The lock is held. */
static void aim(struct nvs_holding *of, uint64_t target)
{
	of->target = target;
	if (of->ceiling < target)
		of->ceiling = target;
	changed();
}

/* On the card, as far as is known. */
static uint64_t present(const struct nvs_holding *of)
{
	return of->resident < of->ceiling ? of->resident : of->ceiling;
}

/* The lock is held. */
static void try_stuck_again(CUdevice device)
{
	stuck_at[device] = 0;
	for (struct nvs_backing *backing = backings; backing != NULL; backing = backing->next)
		for (size_t i = 0; backing->device == device && i < backing->chunk_count; i++)
			if (backing->chunks[i].stuck) {
				backing->chunks[i].stuck = false;
				devices[device].pinned -= backing->chunks[i].held ? 0 : backing->chunks[i].size;
			}
}

void nvs_residency_set(CUdevice device, uint64_t target, uint64_t number)
{
	if (!nvs_is_managed(device))
		return;
	lock();
	struct nvs_holding *of = &devices[device];
	uint64_t allocated = of->resident + of->absent - of->leaving - of->arriving;
	bool lower = target < of->target;
	aim(of, target);
	of->number = number;
	if (target < allocated && allocated - target > of->wanted)
		of->wanted = allocated - target;
	if (lower && stuck_at[device] != 0 && nvs_now_ns() - stuck_at[device] > STUCK_NS)
		try_stuck_again(device);
	unlock();
}

void nvs_residency_prepare(CUdevice device, uint64_t bytes)
{
	if (!nvs_is_managed(device))
		return;
	lock();
	if (bytes > devices[device].wanted)
		devices[device].wanted = bytes;
	unlock();
}

void nvs_residency_registering(void)
{
	lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		devices[i].number = 0;
		aim(&devices[i], devices[i].absent > 0 ? present(&devices[i]) : NVS_UNLIMITED);
	}
	unlock();
}

void nvs_residency_granted(CUdevice device)
{
	if (!nvs_is_managed(device))
		return;
	lock();
	if (devices[device].number == 0)
		aim(&devices[device], NVS_UNLIMITED);
	unlock();
}

void nvs_residency_orphaned(void)
{
	lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		if (devices[i].absent == 0)
			aim(&devices[i], NVS_UNLIMITED);
		else if (devices[i].target < present(&devices[i]))
			aim(&devices[i], present(&devices[i]));
	}
	unlock();
}

void nvs_residency_free_all(void)
{
	lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		aim(&devices[i], NVS_UNLIMITED);
	unlock();
}

/* ---- the gate ---- */

bool nvs_residency_open(void)
{
	bool usable = true;
	lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		usable = usable && (devices[i].absent == 0 || devices[i].unified);
	if (usable && is_shut) {
		is_shut = false;
		for (struct nvs_backing *backing = backings; backing != NULL; backing = backing->next)
			for (size_t i = 0; !backing->backend->is_unified && i < backing->chunk_count; i++) {
				backing->chunks[i].state = NVS_CHUNK_GPU;
				backing->chunks[i].filled = false;
			}
		changed();
	}
	unlock();
	return usable;
}

/* The lock is held. Work may have touched all of it: it counts as on the card until it is sent away again. More than
 * the target allowed cannot be there. */
static void count_as_touched(struct nvs_backing *backing)
{
	struct nvs_holding *of = &devices[backing->device];
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
	lock();
	for (struct nvs_backing *backing = is_shut ? NULL : backings; backing != NULL; backing = backing->next)
		if (backing->backend->is_unified && !backing->leaving)
			count_as_touched(backing);
	is_shut = true;
	unlock();
}

void nvs_residency_unified(CUdevice device)
{
	lock();
	devices[device].unified = true;
	unlock();
}

/* ---- backings ---- */

static bool is_moving(const struct nvs_chunk *chunk)
{
	return chunk->state == NVS_CHUNK_OUT || chunk->state == NVS_CHUNK_IN;
}

void nvs_residency_add(struct nvs_backing *backing)
{
	lock();
	backing->previous = NULL;
	backing->next = backings;
	if (backings != NULL)
		backings->previous = backing;
	backings = backing;
	unlock();
}

/* The lock is held. */
static bool is_held(const struct nvs_backing *backing)
{
	for (size_t i = 0; i < backing->chunk_count; i++)
		if (is_moving(&backing->chunks[i]))
			return true;
	return false;
}

/* The lock is held. */
static void unlink_backing(struct nvs_backing *backing)
{
	if (backing->previous != NULL)
		backing->previous->next = backing->next;
	else
		backings = backing->next;
	if (backing->next != NULL)
		backing->next->previous = backing->previous;
}

uint64_t nvs_residency_remove(struct nvs_backing *backing)
{
	struct nvs_holding *device = &devices[backing->device];
	uint64_t mapped = 0;
	lock();
	backing->leaving = true;
	while (!abandoned && is_held(backing))
		pthread_cond_wait(&residency_changed, &residency_lock);
	unlink_backing(backing);
	for (size_t i = 0; i < backing->chunk_count; i++) {
		const struct nvs_chunk *chunk = &backing->chunks[i];
		mapped += nvs_chunk_is_mapped(chunk) ? chunk->size : 0;
		device->host -= chunk->state == NVS_CHUNK_HOST ? chunk->size : 0;
		device->pinned -= chunk->stuck || chunk->held ? chunk->size : 0;
		device->buffered -= chunk->buffer != NULL ? chunk->size : 0;
	}
	unlock();
	return mapped;
}

void nvs_residency_hold(CUdevice device, CUdeviceptr p, size_t size)
{
	lock();
	for (struct nvs_backing *each = backings; each != NULL; each = each->next)
		for (size_t i = 0; each->device == device && i < each->chunk_count; i++) {
			struct nvs_chunk *chunk = &each->chunks[i];
			CUdeviceptr start = nvs_chunk_address(each, i);
			if (chunk->held || p >= start + chunk->size || start >= p + size)
				continue;
			chunk->held = true;
			devices[device].pinned += chunk->stuck ? 0 : chunk->size;
		}
	unlock();
}

struct nvs_range *nvs_residency_mapped(CUdevice device, size_t *count)
{
	size_t total = 0, used = 0;
	lock();
	for (struct nvs_backing *each = backings; each != NULL; each = each->next)
		total += each->device == device && !each->backend->is_unified ? each->chunk_count : 0;
	struct nvs_range *ranges = calloc(total + 1, sizeof(*ranges));
	for (struct nvs_backing *each = backings; ranges != NULL && each != NULL; each = each->next)
		for (size_t i = 0; each->device == device && !each->backend->is_unified && i < each->chunk_count; i++)
			if (nvs_chunk_is_mapped(&each->chunks[i]))
				ranges[used++] = (struct nvs_range){nvs_chunk_address(each, i), each->chunks[i].size};
	unlock();
	*count = used;
	return ranges;
}

bool nvs_residency_is_away(CUdevice device, CUdeviceptr p)
{
	bool away = false;
	if (!nvs_is_managed(device))
		return false;
	lock();
	bool any = devices[device].absent > 0 && !devices[device].unified;
	for (struct nvs_backing *each = any ? backings : NULL; each != NULL; each = each->next)
		if (p >= each->base && p < each->base + each->size)
			away = !nvs_chunk_is_mapped(&each->chunks[(p - each->base) / NVS_CHUNK_BYTES]);
	unlock();
	return away;
}

/* ---- moves ---- */

static bool has_moves(const struct nvs_holding *device)
{
	if (is_shut && device->resident - device->leaving > device->target)
		return true;
	return (device->absent > 0 && room(device) > 0) || (device->buffered < device->wanted && !device->unified);
}

uint64_t nvs_residency_moves(void)
{
	uint64_t mask = 0;
	lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		mask |= has_moves(&devices[i]) ? 1ull << i : 0;
	unlock();
	return mask;
}

static struct nvs_move move_of(struct nvs_backing *backing, size_t index)
{
	struct nvs_chunk *chunk = &backing->chunks[index];
	return (struct nvs_move){.backing = backing, .index = index, .chunk = chunk, .size = chunk->size};
}

/* How gladly a chunk is given up; the larger the better, 0: not at all. Without a copy first; then those whose buffer
 * is made already, so that the same ones go each time; slabs, which many small things share, last. One that is larger
 * than needed only when nothing else is left. Between equals the larger allocation, then the older one (later in the
 * list).
 */
static uint64_t readiness(const struct nvs_backing *backing, const struct nvs_chunk *chunk, uint64_t need)
{
	if (!nvs_chunk_is_mapped(chunk) || chunk->stuck || chunk->held)
		return 0;
	uint64_t rank = chunk->state == NVS_CHUNK_BOTH;
	rank = rank << 1 | !backing->shared;
	rank = rank << 1 | (chunk->size <= need);
	rank = rank << 1 | (chunk->buffer != NULL);
	return rank << 56 | (backing->size < 1ull << 55 ? backing->size : (1ull << 55) - 1);
}

/* The lock is held. */
static bool find_leaver(CUdevice device, uint64_t need, struct nvs_move *move)
{
	uint64_t best = 0;
	for (struct nvs_backing *backing = backings; backing != NULL; backing = backing->next) {
		if (backing->device != device || backing->leaving)
			continue;
		for (size_t i = 0; i < backing->chunk_count; i++) {
			uint64_t rank = readiness(backing, &backing->chunks[i], need);
			if (rank == 0 || rank < best)
				continue;
			best = rank;
			*move = move_of(backing, i);
		}
	}
	return best != 0;
}

bool nvs_residency_next_out(CUdevice device, struct nvs_move *move)
{
	struct nvs_holding *of = &devices[device];
	lock();
	uint64_t staying = of->resident - of->leaving;
	bool found = is_shut && staying > of->target && find_leaver(device, staying - of->target, move);
	if (found) {
		move->copy = move->chunk->state == NVS_CHUNK_GPU;
		move->chunk->state = NVS_CHUNK_OUT;
		of->absent += move->size;
		of->leaving += move->size;
	}
	unlock();
	return found;
}

/* The lock is held: a chunk that was on its way out stays. */
static void stay(const struct nvs_move *move, enum nvs_chunk_state state)
{
	struct nvs_holding *of = &devices[move->backing->device];
	move->chunk->state = state;
	of->absent -= move->size;
	of->leaving -= move->size;
	changed();
}

bool nvs_residency_copied_out(const struct nvs_move *move)
{
	struct nvs_holding *of = &devices[move->backing->device];
	lock();
	if (move->copy) {
		move->chunk->filled = true;
		of->swapped_out += move->size;
	}
	bool goes = of->resident > of->target || move->backing->backend->is_unified; /* its pages are gone already */
	if (!goes)
		stay(move, NVS_CHUNK_BOTH);
	unlock();
	return goes;
}

void nvs_residency_left(const struct nvs_move *move)
{
	struct nvs_holding *of = &devices[move->backing->device];
	lock();
	move->chunk->state = move->chunk->filled ? NVS_CHUNK_HOST : NVS_CHUNK_FRESH;
	of->host += move->chunk->filled ? move->size : 0;
	of->resident -= move->size;
	of->leaving -= move->size;
	if (of->resident <= of->ceiling)
		of->ceiling = NVS_UNLIMITED;
	changed();
	unlock();
}

void nvs_residency_stuck(const struct nvs_move *move)
{
	lock();
	stay(move, NVS_CHUNK_GPU);
	move->chunk->stuck = true;
	devices[move->backing->device].pinned += move->size;
	stuck_at[move->backing->device] = nvs_now_ns();
	unlock();
}

/* The lock is held. The oldest that fits. */
static bool find_comer(CUdevice device, uint64_t limit, struct nvs_move *move)
{
	bool found = false;
	for (struct nvs_backing *backing = backings; backing != NULL; backing = backing->next) {
		if (backing->device != device || backing->leaving)
			continue;
		for (size_t i = backing->chunk_count; i-- > 0;) {
			const struct nvs_chunk *chunk = &backing->chunks[i];
			if (nvs_chunk_is_mapped(chunk) || is_moving(chunk) || chunk->size > limit)
				continue;
			found = true;
			*move = move_of(backing, i);
		}
	}
	return found;
}

bool nvs_residency_next_in(CUdevice device, struct nvs_move *move)
{
	struct nvs_holding *of = &devices[device];
	lock();
	bool found = of->absent > of->leaving + of->arriving && find_comer(device, room(of), move);
	if (found) {
		move->copy = move->chunk->filled || of->unified;
		move->chunk->state = NVS_CHUNK_IN;
		of->resident += move->size;
		of->arriving += move->size;
		of->host -= move->chunk->filled ? move->size : 0;
	}
	unlock();
	return found;
}

void nvs_residency_arrived(const struct nvs_move *move)
{
	struct nvs_holding *of = &devices[move->backing->device];
	lock();
	/* A prefetch leaves nothing behind on the host. */
	move->chunk->state = of->unified ? NVS_CHUNK_GPU : NVS_CHUNK_BOTH;
	of->swapped_in += move->chunk->filled ? move->size : 0;
	of->absent -= move->size;
	of->arriving -= move->size;
	changed();
	unlock();
}

void nvs_residency_turned_back(const struct nvs_move *move)
{
	struct nvs_holding *of = &devices[move->backing->device];
	lock();
	move->chunk->state = move->chunk->filled ? NVS_CHUNK_HOST : NVS_CHUNK_FRESH;
	of->resident -= move->size;
	of->arriving -= move->size;
	of->host += move->chunk->filled ? move->size : 0;
	changed();
	unlock();
}

/* ---- buffers ahead of need ---- */

/* The lock is held. A chunk without a buffer, of the largest allocation, because those go first; `size` 0: any. */
static bool find_unprepared(CUdevice device, size_t size, struct nvs_move *move)
{
	const struct nvs_holding *of = &devices[device];
	size_t largest = 0;
	if (of->buffered >= of->wanted || stuck_at[device] != 0 || of->unified)
		return false;
	for (struct nvs_backing *backing = backings; backing != NULL; backing = backing->next) {
		if (backing->device != device || backing->leaving || backing->size <= largest)
			continue;
		for (size_t i = 0; i < backing->chunk_count; i++) {
			const struct nvs_chunk *chunk = &backing->chunks[i];
			if (!nvs_chunk_is_mapped(chunk) || chunk->held || chunk->buffer != NULL ||
				(size != 0 && chunk->size != size))
				continue;
			largest = backing->size;
			*move = move_of(backing, i);
			break;
		}
	}
	return largest != 0;
}

size_t nvs_residency_unprepared(CUdevice device)
{
	struct nvs_move move;
	lock();
	size_t size = find_unprepared(device, 0, &move) ? move.size : 0;
	unlock();
	return size;
}

/* The lock is held. */
static void give_buffer(const struct nvs_move *move, struct nvs_host_buffer *buffer)
{
	move->chunk->buffer = buffer;
	devices[move->backing->device].buffered += move->size;
}

bool nvs_residency_offer(CUdevice device, struct nvs_host_buffer *buffer, size_t size)
{
	struct nvs_move move;
	lock();
	bool taken = find_unprepared(device, size, &move);
	if (taken)
		give_buffer(&move, buffer);
	unlock();
	return taken;
}

void nvs_residency_buffered(const struct nvs_move *move, struct nvs_host_buffer *buffer)
{
	lock();
	give_buffer(move, buffer);
	unlock();
}

/* ---- ends ---- */

void nvs_residency_abandon(void)
{
	lock();
	abandoned = true;
	changed();
	unlock();
}

void nvs_residency_after_fork(void)
{
	pthread_mutex_init(&residency_lock, NULL);
	pthread_cond_init(&residency_changed, NULL);
	for (int i = 0; i < NVS_MAX_DEVICES; i++) {
		devices[i] = (struct nvs_holding){
			.target = NVS_UNLIMITED, .ceiling = NVS_UNLIMITED, .unified = devices[i].unified};
		stuck_at[i] = 0;
	}
	backings = NULL;
	is_shut = abandoned = false;
}
