/* Which chunk moves next, and what its state is on the way. */
#include "memory/swap/state.h"

#include "base/clock.h"
#include "base/devices.h"

static bool has_moves(const struct nvs_holding *device)
{
	if (nvs_holdings.is_shut && device->resident - device->leaving > device->target)
		return true;
	return (device->absent > 0 && nvs_holding_room(device) > 0) ||
	       (device->buffered < device->wanted && !device->unified);
}

uint64_t nvs_residency_moves(void)
{
	uint64_t mask = 0;
	nvs_holdings_lock();
	for (int i = 0; i < NVS_MAX_DEVICES; i++)
		mask |= has_moves(&nvs_holdings.devices[i]) ? 1ull << i : 0;
	nvs_holdings_unlock();
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
	if (!nvs_chunk_is_mapped(chunk) || chunk->blocked || chunk->held)
		return 0;
	uint64_t rank = chunk->state == NVS_CHUNK_BOTH;
	rank = rank << 1 | !backing->shared;
	rank = rank << 1 | (chunk->size <= need);
	rank = rank << 1 | (chunk->buffer != NULL);
	return rank << 56 | (backing->size < 1ull << 55 ? backing->size : (1ull << 55) - 1);
}

typedef bool (*wanted_fn)(const struct nvs_backing *, const struct nvs_chunk *, size_t size);

static bool is_free_to_go(const struct nvs_backing *backing, const struct nvs_chunk *chunk, size_t size)
{
	return backing->fixed == 0;
}

/* The lock is held. The chunk to give up first, of those for which `is_wanted`. */
static bool find_leaver(CUdevice device, uint64_t need, wanted_fn is_wanted, size_t size, struct nvs_move *move)
{
	uint64_t best = 0;
	for (struct nvs_backing *backing = nvs_holdings.backings; backing != NULL; backing = backing->next) {
		if (backing->device != device || backing->leaving)
			continue;
		for (size_t i = 0; i < backing->chunk_count; i++) {
			uint64_t rank = readiness(backing, &backing->chunks[i], need);
			if (rank == 0 || rank < best || !is_wanted(backing, &backing->chunks[i], size))
				continue;
			best = rank;
			*move = move_of(backing, i);
		}
	}
	return best != 0;
}

bool nvs_residency_next_out(CUdevice device, struct nvs_move *move)
{
	struct nvs_holding *of = &nvs_holdings.devices[device];
	nvs_holdings_lock();
	uint64_t staying = of->resident - of->leaving;
	bool found = nvs_holdings.is_shut && staying > of->target &&
		     find_leaver(device, staying - of->target, is_free_to_go, 0, move);
	if (found) {
		move->copy = move->chunk->state == NVS_CHUNK_GPU;
		move->chunk->state = NVS_CHUNK_OUT;
		of->absent += move->size;
		of->leaving += move->size;
	}
	nvs_holdings_unlock();
	return found;
}

/* The lock is held: a chunk that was on its way out stays. */
static void stay(const struct nvs_move *move, enum nvs_chunk_state state)
{
	struct nvs_holding *of = &nvs_holdings.devices[move->backing->device];
	move->chunk->state = state;
	of->absent -= move->size;
	of->leaving -= move->size;
	nvs_holdings_changed();
}

bool nvs_residency_copied_out(const struct nvs_move *move)
{
	struct nvs_holding *of = &nvs_holdings.devices[move->backing->device];
	nvs_holdings_lock();
	if (move->copy) {
		move->chunk->filled = true;
		of->swapped_out += move->size;
	}
	bool goes = of->resident > of->target || move->backing->backend->is_unified; /* its pages are gone already */
	if (!goes)
		stay(move, NVS_CHUNK_BOTH);
	nvs_holdings_unlock();
	return goes;
}

void nvs_residency_left(const struct nvs_move *move)
{
	struct nvs_holding *of = &nvs_holdings.devices[move->backing->device];
	nvs_holdings_lock();
	move->chunk->state = move->chunk->filled ? NVS_CHUNK_HOST : NVS_CHUNK_FRESH;
	of->host += move->chunk->filled ? move->size : 0;
	of->resident -= move->size;
	of->leaving -= move->size;
	if (of->resident <= of->ceiling)
		of->ceiling = NVS_UNLIMITED;
	nvs_holdings_changed();
	nvs_holdings_unlock();
}

void nvs_residency_blocked(const struct nvs_move *move)
{
	nvs_holdings_lock();
	stay(move, NVS_CHUNK_GPU);
	move->chunk->blocked = true;
	nvs_holdings.devices[move->backing->device].pinned += move->size;
	nvs_holdings.blocked_at[move->backing->device] = nvs_now_ns();
	nvs_holdings_unlock();
}

/* The lock is held. The oldest that fits. */
static bool find_comer(CUdevice device, uint64_t limit, struct nvs_move *move)
{
	bool found = false;
	for (struct nvs_backing *backing = nvs_holdings.backings; backing != NULL; backing = backing->next) {
		if (backing->device != device || backing->leaving || backing->fixed > 0)
			continue;
		for (size_t i = backing->chunk_count; i-- > 0;) {
			const struct nvs_chunk *chunk = &backing->chunks[i];
			if (nvs_chunk_is_mapped(chunk) || nvs_chunk_is_moving(chunk) || chunk->size > limit)
				continue;
			found = true;
			*move = move_of(backing, i);
		}
	}
	return found;
}

bool nvs_residency_any_fits(CUdevice device, uint64_t room)
{
	struct nvs_move move;
	return find_comer(device, room, &move);
}

bool nvs_residency_next_in(CUdevice device, struct nvs_move *move)
{
	struct nvs_holding *of = &nvs_holdings.devices[device];
	nvs_holdings_lock();
	bool found = of->absent > of->leaving + of->arriving && find_comer(device, nvs_holding_room(of), move);
	if (found) {
		move->copy = move->chunk->filled || of->unified;
		move->chunk->state = NVS_CHUNK_IN;
		of->resident += move->size;
		of->arriving += move->size;
		of->host -= move->chunk->filled ? move->size : 0;
	}
	nvs_holdings_unlock();
	return found;
}

void nvs_residency_arrived(const struct nvs_move *move)
{
	struct nvs_holding *of = &nvs_holdings.devices[move->backing->device];
	nvs_holdings_lock();
	/* A prefetch leaves nothing behind on the host. */
	move->chunk->state = of->unified ? NVS_CHUNK_GPU : NVS_CHUNK_BOTH;
	of->swapped_in += move->chunk->filled ? move->size : 0;
	of->absent -= move->size;
	of->arriving -= move->size;
	nvs_holdings_changed();
	nvs_holdings_unlock();
}

void nvs_residency_turned_back(const struct nvs_move *move)
{
	struct nvs_holding *of = &nvs_holdings.devices[move->backing->device];
	nvs_holdings_lock();
	move->chunk->state = move->chunk->filled ? NVS_CHUNK_HOST : NVS_CHUNK_FRESH;
	of->resident -= move->size;
	of->arriving -= move->size;
	of->host += move->chunk->filled ? move->size : 0;
	nvs_holdings_changed();
	nvs_holdings_unlock();
}

/* ---- buffers ahead of need ---- */

static bool lacks_buffer(const struct nvs_backing *backing, const struct nvs_chunk *chunk, size_t size)
{
	return chunk->buffer == NULL && (size == 0 || chunk->size == size);
}

/* The lock is held. In the order in which chunks leave, so that those which will go are those which are ready; `size`
 * 0: any. */
static bool find_unprepared(CUdevice device, size_t size, struct nvs_move *move)
{
	const struct nvs_holding *of = &nvs_holdings.devices[device];
	if (of->buffered >= of->wanted || of->unified)
		return false;
	return find_leaver(device, of->wanted - of->buffered, lacks_buffer, size, move);
}

size_t nvs_residency_unprepared(CUdevice device)
{
	struct nvs_move move;
	nvs_holdings_lock();
	size_t size = find_unprepared(device, 0, &move) ? move.size : 0;
	nvs_holdings_unlock();
	return size;
}

bool nvs_residency_take_promise(CUdevice device, size_t size)
{
	struct nvs_move move;
	nvs_holdings_lock();
	bool taken = find_unprepared(device, size, &move) && move.backing->promised >= size;
	if (taken)
		move.backing->promised -= size;
	nvs_holdings_unlock();
	return taken;
}

void nvs_residency_prepared(CUdevice device)
{
	nvs_holdings_lock();
	nvs_holdings.devices[device].wanted = nvs_holdings.devices[device].buffered;
	nvs_holdings_unlock();
}

/* The lock is held. */
static void give_buffer(const struct nvs_move *move, struct nvs_host_buffer *buffer)
{
	move->chunk->buffer = buffer;
	nvs_holdings.devices[move->backing->device].buffered += move->size;
}

bool nvs_residency_offer(CUdevice device, struct nvs_host_buffer *buffer, size_t size)
{
	struct nvs_move move;
	nvs_holdings_lock();
	bool taken = find_unprepared(device, size, &move);
	if (taken)
		give_buffer(&move, buffer);
	nvs_holdings_unlock();
	return taken;
}

void nvs_residency_buffered(const struct nvs_move *move, struct nvs_host_buffer *buffer)
{
	nvs_holdings_lock();
	give_buffer(move, buffer);
	nvs_holdings_unlock();
}
