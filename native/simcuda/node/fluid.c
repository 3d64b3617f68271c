/* Work and time. Every engine of every GPU is a fluid server: contexts that have compute work share a GPU's compute
 * engine evenly, with the loss of time-slicing; copies of one direction share the link of their GPU evenly. Between two
 * events (a submission ends, or needs its engine) all rates are constant, so the state moves exactly from event to
 * event. */
#include <math.h>
#include <string.h>

#include "node/node.h"

#define LARGE_COPY ((uint64_t)16 << 20)

/* Rates in work per ns: compute in ns, links in bytes. */
struct rates {
	double compute, link[NVS_ENGINES][NVS_PATHS];
};

double nvs_kernel_ns(const struct nvs_profile *profile, double bytes, double flops)
{
	return 1e9 * fmax(bytes / profile->memory_bandwidth, flops / profile->flops);
}

bool nvs_dep_done(struct nvs_node *node, const struct nvs_dep *dep)
{
	if (dep->seq == 0)
		return true;
	const struct nvs_op *op = nvs_slot_op(&node->slots[dep->slot], dep->seq);
	return op->seq != dep->seq || op->state == NVS_OP_DONE || op->state == NVS_OP_RETIRED;
}

static void unassign_process(struct nvs_node *node, int pid)
{
	for (uint32_t i = 0; i < node->slot_top; i++)
		if (node->slots[i].pid == pid)
			node->slots[i].assigned = 0;
}

static void complete(struct nvs_node *node, struct nvs_slot *slot, struct nvs_op *op)
{
	op->state = NVS_OP_DONE;
	op->done_at = node->time;
	op->done_order = ++node->done_order;
	slot->queues[op->queue].first = op->next;
	if (op->next == 0)
		slot->busy_queues &= ~(1ull << op->queue);
	slot->done_total++;
	nvs_slot_count(node, slot, op->count, op->count == NVS_COUNT_LAUNCH ? 1 : op->bytes);
	nvs_slot_left(node, op, slot->pid);
	unassign_process(node, slot->pid);
}

static bool is_free(struct nvs_node *node, const struct nvs_op *op)
{
	return nvs_dep_done(node, &op->dep[0]) && nvs_dep_done(node, &op->dep[1]);
}

/* Give idle engines their next work, the earliest submission whose conditions hold; finish what needs no engine. */
static bool assign_slot(struct nvs_node *node, struct nvs_slot *slot)
{
	bool finished = false;
	slot->assigned = 1;
	uint64_t best[NVS_ENGINES] = {0};
	for (uint64_t queues = slot->busy_queues; queues != 0; queues &= queues - 1) {
		uint64_t *first = &slot->queues[__builtin_ctzll(queues)].first;
		struct nvs_op *op = nvs_slot_op(slot, *first);
		while (*first != 0 && op->engine == NVS_NO_ENGINE && is_free(node, op)) {
			complete(node, slot, op);
			finished = true;
			op = nvs_slot_op(slot, *first);
		}
		if (*first == 0 || !is_free(node, op))
			continue;
		if (op->engine == NVS_OWNER) {
			if (op->state == NVS_OP_QUEUED) {
				op->state = NVS_OP_READY;
				slot->ready_total++;
				nvs_node_wake(node);
			}
		} else if (op->engine < NVS_ENGINES && (best[op->engine] == 0 || op->seq < best[op->engine])) {
			best[op->engine] = op->seq;
		}
	}
	for (int engine = 0; engine < NVS_ENGINES; engine++)
		if (slot->current[engine] == 0)
			slot->current[engine] = best[engine];
	return finished;
}

static void assign_work(struct nvs_node *node)
{
	bool again = true;
	while (again) {
		again = false;
		for (uint32_t i = 0; i < node->slot_top; i++) {
			struct nvs_slot *slot = &node->slots[i];
			if (slot->pid != 0 && !slot->assigned && slot->busy_queues != 0)
				again |= assign_slot(node, slot);
		}
	}
}

/* What each path can take, in bytes per ns. */
static void find_limits(const struct nvs_profile *profile, double limits[NVS_ENGINES][NVS_PATHS])
{
	limits[NVS_H2D][NVS_PATH_PINNED] = 1e-9 * fmax(profile->link_h2d, profile->link_duplex);
	limits[NVS_H2D][NVS_PATH_PAGEABLE] = 1e-9 * profile->pageable_h2d;
	limits[NVS_H2D][NVS_PATH_PREFETCH] = 1e-9 * profile->prefetch_h2d;
	limits[NVS_D2H][NVS_PATH_PINNED] = 1e-9 * fmax(profile->link_d2h, profile->link_duplex);
	limits[NVS_D2H][NVS_PATH_PAGEABLE] = 1e-9 * profile->pageable_d2h;
	limits[NVS_D2H][NVS_PATH_PREFETCH] = 1e-9 * profile->prefetch_d2h;
}

static int all_users(const int users[NVS_PATHS])
{
	int all = 0;
	for (int path = 0; path < NVS_PATHS; path++)
		all += users[path];
	return all;
}

/* Copies of one direction share the link evenly; what one path cannot take, the others take. */
static void share_link(double total, const double limit[NVS_PATHS], const int users[NVS_PATHS], double rate[NVS_PATHS])
{
	int left = all_users(users);
	bool at_limit[NVS_PATHS] = {false};
	for (int path = 0; path < NVS_PATHS; path++) {
		if (at_limit[path] || users[path] == 0 || limit[path] >= total / left)
			continue;
		at_limit[path] = true;
		rate[path] = limit[path];
		total -= limit[path] * users[path];
		left -= users[path];
		path = -1; /* the others have more now: look again */
	}
	for (int path = 0; path < NVS_PATHS; path++)
		if (!at_limit[path] && users[path] > 0)
			rate[path] = total / left;
}

static void compute_rates(struct nvs_node *node, struct rates rates[NVS_GPUS])
{
	const struct nvs_profile *profile = &node->profile;
	int users[NVS_GPUS][NVS_ENGINES][NVS_PATHS] = {0};
	double limits[NVS_ENGINES][NVS_PATHS];
	find_limits(profile, limits);
	for (uint32_t i = 0; i < node->slot_top; i++) {
		struct nvs_slot *slot = &node->slots[i];
		for (int engine = 0; engine < NVS_ENGINES; engine++) {
			struct nvs_op *op = nvs_slot_op(slot, slot->current[engine]);
			if (slot->current[engine] != 0 && op->gap == 0)
				users[slot->gpu][engine][op->path]++;
		}
	}
	for (uint32_t gpu = 0; gpu < node->gpu_count; gpu++) {
		int computing = users[gpu][NVS_COMPUTE][0], *in = users[gpu][NVS_H2D], *out = users[gpu][NVS_D2H];
		bool both_ways = all_users(in) > 0 && all_users(out) > 0;
		rates[gpu].compute = computing <= 1 ? 1 : profile->timeslice_efficiency / computing;
		share_link(1e-9 * (both_ways ? profile->link_duplex : profile->link_h2d), limits[NVS_H2D], in,
			rates[gpu].link[NVS_H2D]);
		share_link(1e-9 * (both_ways ? profile->link_duplex : profile->link_d2h), limits[NVS_D2H], out,
			rates[gpu].link[NVS_D2H]);
	}
}

static double rate_of(const struct rates *rates, const struct nvs_op *op)
{
	return op->engine == NVS_COMPUTE ? rates->compute : rates->link[op->engine][op->path];
}

static double time_left(const struct rates *rates, const struct nvs_op *op)
{
	return op->gap > 0 ? op->gap : op->work / rate_of(rates, op);
}

static double next_event(struct nvs_node *node, const struct rates rates[NVS_GPUS])
{
	double next = INFINITY;
	for (uint32_t i = 0; i < node->slot_top; i++) {
		struct nvs_slot *slot = &node->slots[i];
		for (int engine = 0; engine < NVS_ENGINES; engine++)
			if (slot->current[engine] != 0)
				next = fmin(
					next, time_left(&rates[slot->gpu], nvs_slot_op(slot, slot->current[engine])));
	}
	return next;
}

static double bucket_width(const struct nvs_node *node)
{
	return NVS_BUSY_BUCKET_WALL_NS * node->speed;
}

static void add_busy(struct nvs_node *node, struct nvs_gpu *gpu, double from, double to)
{
	gpu->busy += to - from;
	gpu->counters.busy_ns = (uint64_t)gpu->busy;
	double width = bucket_width(node);
	from = fmax(from, to - NVS_BUSY_BUCKETS * width);
	while (from < to) {
		uint64_t index = (uint64_t)(from / width);
		double end = fmin(to, width * (double)(index + 1));
		if (end <= from)
			break; /* rounding at the edge of a bucket */
		uint64_t place = index % NVS_BUSY_BUCKETS;
		if (gpu->buckets[place].index != index) {
			gpu->buckets[place].index = index;
			gpu->buckets[place].busy = 0;
		}
		gpu->buckets[place].busy += end - from;
		from = end;
	}
}

double nvs_gpu_utilization(const struct nvs_node *node, unsigned gpu)
{
	double width = bucket_width(node), busy = 0;
	uint64_t now = (uint64_t)(node->time / width);
	for (int i = 0; i < NVS_BUSY_BUCKETS; i++)
		if (node->gpus[gpu].buckets[i].index + NVS_BUSY_BUCKETS > now)
			busy += node->gpus[gpu].buckets[i].busy;
	return fmin(1, busy / (NVS_BUSY_BUCKETS * width));
}

/* Let `dt` pass, at most the time to the next event. */
static void step(struct nvs_node *node, const struct rates rates[NVS_GPUS], double dt)
{
	bool busy[NVS_GPUS] = {false};
	double from = node->time;
	node->time += dt;
	for (uint32_t i = 0; i < node->slot_top; i++) {
		struct nvs_slot *slot = &node->slots[i];
		for (int engine = 0; engine < NVS_ENGINES; engine++) {
			if (slot->current[engine] == 0)
				continue;
			struct nvs_op *op = nvs_slot_op(slot, slot->current[engine]);
			bool reached = time_left(&rates[slot->gpu], op) <= dt;
			if (op->gap > 0) {
				op->gap = reached ? 0 : op->gap - dt;
				if (op->gap > 0 || op->work > 0)
					continue;
			} else {
				busy[slot->gpu] |= engine == NVS_COMPUTE;
				op->work = reached ? 0 : op->work - dt * rate_of(&rates[slot->gpu], op);
			}
			if (reached) {
				slot->current[engine] = 0;
				complete(node, slot, op);
			}
		}
	}
	for (uint32_t gpu = 0; gpu < node->gpu_count; gpu++)
		if (busy[gpu])
			add_busy(node, &node->gpus[gpu], from, node->time);
}

void nvs_node_advance(struct nvs_node *node, double now)
{
	struct rates rates[NVS_GPUS];
	assign_work(node);
	while (node->time < now) {
		compute_rates(node, rates);
		double next = next_event(node, rates);
		if (node->time + next > now) {
			step(node, rates, now - node->time);
			node->time = now;
			return;
		}
		step(node, rates, next);
		assign_work(node);
	}
}

uint64_t nvs_slot_push(struct nvs_node *node, int index, const struct nvs_op *op)
{
	struct nvs_slot *slot = &node->slots[index];
	uint64_t seq = slot->tail + 1;
	struct nvs_op *placed = nvs_slot_op(slot, seq);
	*placed = *op;
	placed->seq = seq;
	placed->next = 0;
	placed->state = NVS_OP_QUEUED;
	bool empty = slot->queues[op->queue].first == 0;
	if (empty)
		slot->queues[op->queue].first = seq;
	else
		nvs_slot_op(slot, slot->queues[op->queue].last)->next = seq;
	slot->queues[op->queue].last = seq;
	slot->busy_queues |= 1ull << op->queue;
	slot->tail = seq;
	slot->assigned = 0;
	if (empty)
		assign_work(node);
	return seq;
}

void nvs_slot_owner_done(struct nvs_node *node, int index, uint64_t seq)
{
	struct nvs_slot *slot = &node->slots[index];
	complete(node, slot, nvs_slot_op(slot, seq));
	assign_work(node);
	nvs_node_wake(node);
}

/* Carrying it out takes the host so long that it should not wait for what comes after it. */
static bool is_large_copy(const struct nvs_op *op)
{
	return (op->engine == NVS_H2D || op->engine == NVS_D2H) && op->bytes >= LARGE_COPY;
}

/* Both bounds hold while nobody dies: no rate can rise before the next event, and what stands before it in its own
 * queue takes at least as long as it takes alone. */
double nvs_slot_earliest(struct nvs_node *node, int index, uint64_t seq)
{
	struct nvs_slot *slot = &node->slots[index];
	double alone[NVS_ENGINES][NVS_PATHS] = {{1, 1, 1}};
	struct rates rates[NVS_GPUS];
	find_limits(&node->profile, alone);
	compute_rates(node, rates);
	double next = next_event(node, rates), chain = 0;
	uint64_t at = slot->queues[nvs_slot_op(slot, seq)->queue].first;
	while (at != 0 && at <= seq) {
		const struct nvs_op *op = nvs_slot_op(slot, at);
		chain += op->gap;
		if (op->engine < NVS_ENGINES)
			chain += op->work / alone[op->engine][op->path];
		at = is_large_copy(op) ? 0 : op->next;
	}
	return node->time + (isinf(next) ? fmax(chain, 20e6 * node->speed) : fmax(chain, next));
}

void nvs_slot_clear(struct nvs_node *node, int index)
{
	struct nvs_slot *slot = &node->slots[index];
	for (int i = 0; i < NVS_RING; i++) {
		struct nvs_op *op = &slot->ring[i];
		if (op->state == NVS_OP_QUEUED || op->state == NVS_OP_READY)
			nvs_slot_left(node, op, slot->pid);
		op->state = NVS_OP_RETIRED;
	}
	for (int engine = 0; engine < NVS_ENGINES; engine++)
		slot->current[engine] = 0;
	memset(slot->queues, 0, sizeof(slot->queues));
	slot->busy_queues = 0;
	slot->retired = slot->tail;
	slot->done_total = slot->ready_total = 0;
}
