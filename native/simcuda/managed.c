/* Managed memory. It starts on the host and comes to a card, part by part, when work there touches it or a prefetch
 * asks; the longest unused parts go when the card is full. What it holds is always in the host's memory; only where it
 * would be, and the time and the room that takes, are simulated. */
#include <stdlib.h>

#include "sim.h"
#include "vspace.h"

#define BATCH 32 /* parts that are brought in by one step */

struct part {
	struct part *older, *newer; /* of those on the same GPU, by use */
	int gpu;                    /* -1: on the host */
	uint64_t bytes;
};

struct nvs_managed {
	size_t count;
	struct part parts[];
};

/* What this process has on each GPU. */
static struct {
	struct part *oldest, *newest;
	uint64_t charged;
} cards[NVS_GPUS];

static void take_off(struct part *part)
{
	*(part->older != NULL ? &part->older->newer : &cards[part->gpu].oldest) = part->newer;
	*(part->newer != NULL ? &part->newer->older : &cards[part->gpu].newest) = part->older;
	cards[part->gpu].charged -= NVS_MANAGED_PART;
	part->gpu = -1;
}

static void put_on(struct part *part, int gpu)
{
	part->gpu = gpu;
	part->newer = NULL;
	part->older = cards[gpu].newest;
	*(part->older != NULL ? &part->older->newer : &cards[gpu].oldest) = part;
	cards[gpu].newest = part;
	cards[gpu].charged += NVS_MANAGED_PART;
}

/* Only `left` bytes are still on the card, somebody needed the room: the rest, used longest ago, is on the host. */
static void notice_evictions(int gpu, uint64_t left)
{
	while (cards[gpu].charged > left)
		take_off(cards[gpu].oldest);
}

static void look_for_evictions(int gpu, int slot)
{
	nvs_node_lock(nvs_process.node);
	notice_evictions(gpu, nvs_process.node->slots[slot].managed);
	nvs_process.node->slots[slot].managed_used_at = nvs_process.node->time;
	nvs_node_unlock(nvs_process.node);
}

/* Room on the card for as many as possible of `count` parts; it may come from our own oldest ones. */
static size_t admit(int gpu, int slot, size_t count, uint64_t *evicted)
{
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	while (count > 0 && !nvs_slot_charge_managed(node, slot, count * NVS_MANAGED_PART, evicted))
		count /= 2;
	notice_evictions(gpu, node->slots[slot].managed - count * NVS_MANAGED_PART);
	nvs_node_unlock(node);
	return count;
}

static void drop(struct part *part)
{
	int gpu = part->gpu, slot = nvs_memory_slot((unsigned)gpu);
	nvs_node_lock(nvs_process.node);
	notice_evictions(gpu, nvs_process.node->slots[slot].managed);
	if (part->gpu == gpu) {
		take_off(part);
		nvs_slot_refund_managed(nvs_process.node, slot, NVS_MANAGED_PART);
	}
	nvs_node_unlock(nvs_process.node);
}

static uint64_t bring_batch(struct part **batch, size_t count, int gpu, int slot, uint64_t *evicted)
{
	uint64_t brought = 0;
	size_t admitted = admit(gpu, slot, count, evicted);
	for (size_t i = 0; i < admitted; i++) {
		put_on(batch[i], gpu);
		brought += batch[i]->bytes;
	}
	return brought;
}

struct moved {
	uint64_t missing, brought, evicted; /* bytes */
};

/* Bring the parts in [first, last) to the card. Those that are there count as used now, before any of them has to go.
 */
static void bring(struct nvs_managed *managed, size_t first, size_t last, int gpu, struct moved *moved)
{
	int slot = nvs_memory_slot((unsigned)gpu);
	struct part *batch[BATCH];
	size_t count = 0;
	if (slot < 0)
		return;
	look_for_evictions(gpu, slot);
	for (struct part *part = &managed->parts[first]; part < &managed->parts[last]; part++)
		if (part->gpu == gpu) {
			take_off(part);
			put_on(part, gpu);
		}
	for (struct part *part = &managed->parts[first]; part < &managed->parts[last]; part++) {
		if (part->gpu == gpu)
			continue;
		if (part->gpu >= 0)
			drop(part);
		moved->missing += part->bytes;
		batch[count++] = part;
		if (count < BATCH)
			continue;
		moved->brought += bring_batch(batch, count, gpu, slot, &moved->evicted);
		count = 0;
	}
	if (count > 0)
		moved->brought += bring_batch(batch, count, gpu, slot, &moved->evicted);
}

/* The parts of a managed mapping that [address, address + n) meets. */
static void find_parts(const struct nvs_mapping *mapping, uint64_t address, uint64_t n, size_t *first, size_t *last)
{
	uint64_t end = mapping->start + mapping->size, stop = address + n < end ? address + n : end;
	*first = (address - mapping->start) / NVS_MANAGED_PART;
	*last = (stop - mapping->start + NVS_MANAGED_PART - 1) / NVS_MANAGED_PART;
}

static double eviction_ns(uint64_t evicted)
{
	return 1e9 * (double)evicted / nvs_process.node->profile.fault_bandwidth;
}

double nvs_managed_fault(CUcontext ctx, uint64_t address, uint64_t n)
{
	struct moved moved = {0};
	for (uint64_t at = address; at < address + n;) {
		struct nvs_mapping *mapping = nvs_mapping_at(at);
		if (mapping == NULL)
			break;
		if (mapping->kind == NVS_MANAGED) {
			size_t first, last;
			find_parts(mapping, at, address + n - at, &first, &last);
			bring(mapping->physical->managed, first, last, (int)ctx->gpu, &moved);
		}
		at = mapping->start + mapping->size;
	}
	if (moved.missing == 0)
		return 0;
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	nvs_slot_count(node, &node->slots[ctx->slot], NVS_COUNT_FAULTED, moved.missing);
	nvs_node_unlock(node);
	/* What found no room is used over the link, at the same speed, each time. */
	return eviction_ns(moved.missing + moved.evicted);
}

NVS_API cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (p == NULL || n == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	result = nvs_capture_forbids();
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	size_t count = nvs_round_up(n, NVS_MANAGED_PART) / NVS_MANAGED_PART;
	struct nvs_managed *managed = calloc(1, sizeof(*managed) + count * sizeof(managed->parts[0]));
	struct nvs_physical *physical;
	result = managed == NULL ? CUDA_ERROR_OUT_OF_MEMORY : nvs_host_allocate(NVS_MANAGED, ctx, n, &physical);
	if (result != CUDA_SUCCESS) {
		free(managed);
		return nvs_end(result);
	}
	managed->count = count;
	for (size_t i = 0; i < count; i++) {
		uint64_t left = n - i * NVS_MANAGED_PART;
		managed->parts[i] =
			(struct part){.gpu = -1, .bytes = left < NVS_MANAGED_PART ? left : NVS_MANAGED_PART};
	}
	physical->managed = managed;
	nvs_immovable(1);
	*p = (CUdeviceptr)(uintptr_t)physical->contents.raw;
	return nvs_end(CUDA_SUCCESS);
}

void nvs_managed_free(struct nvs_managed *managed)
{
	for (size_t i = 0; managed != NULL && i < managed->count; i++)
		if (managed->parts[i].gpu >= 0)
			drop(&managed->parts[i]);
	if (managed != NULL)
		nvs_immovable(-1);
	free(managed);
}

/* ---- prefetches ---- */

static struct nvs_work prefetch_in(struct nvs_managed *managed, size_t first, size_t last, int gpu)
{
	struct moved moved = {0};
	bring(managed, first, last, gpu, &moved);
	/* What finds no room stays, and faults. */
	return (struct nvs_work){.engine = moved.brought > 0 ? NVS_H2D : NVS_NO_ENGINE,
		.count = NVS_COUNT_H2D,
		.path = NVS_PATH_PREFETCH,
		.gap = eviction_ns(moved.evicted),
		.work = (double)moved.brought,
		.bytes = moved.brought};
}

/* The room is free when the copy is done. Parts on a card other than the stream's are simply on the host. */
static struct nvs_work prefetch_out(struct nvs_managed *managed, size_t first, size_t last, int gpu)
{
	uint64_t bytes = 0, room = 0;
	int slot = nvs_memory_slot((unsigned)gpu);
	if (slot < 0)
		return nvs_work_marker();
	for (struct part *part = &managed->parts[first]; part < &managed->parts[last]; part++)
		if (part->gpu >= 0 && part->gpu != gpu)
			drop(part);
	struct nvs_node *node = nvs_process.node;
	nvs_node_lock(node);
	notice_evictions(gpu, node->slots[slot].managed);
	for (struct part *part = &managed->parts[first]; part < &managed->parts[last]; part++) {
		if (part->gpu != gpu)
			continue;
		take_off(part);
		bytes += part->bytes;
		room += NVS_MANAGED_PART;
	}
	nvs_slot_leave(node, slot, room);
	nvs_node_unlock(node);
	return (struct nvs_work){.engine = bytes > 0 ? NVS_D2H : NVS_NO_ENGINE,
		.count = NVS_COUNT_D2H,
		.path = NVS_PATH_PREFETCH,
		.work = (double)bytes,
		.bytes = bytes,
		.leaving = room,
		.leaving_slot = slot};
}

static CUresult prefetch(CUdeviceptr p, size_t n, int device, bool to_host, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	int gpu = to_host ? (int)stream->ctx->gpu : nvs_gpu_of(device);
	if (gpu < 0)
		return nvs_end(CUDA_ERROR_INVALID_DEVICE);
	struct nvs_mapping *mapping = nvs_mapping_at(p);
	if (mapping == NULL || mapping->kind != NVS_MANAGED || n == 0 || n > mapping->start + mapping->size - p)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	size_t first, last;
	find_parts(mapping, p, n, &first, &last);
	struct nvs_managed *managed = mapping->physical->managed;
	struct nvs_work work =
		to_host ? prefetch_out(managed, first, last, gpu) : prefetch_in(managed, first, last, gpu);
	return nvs_end(nvs_submit(stream, &work, NULL));
}

NVS_API cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice device, CUstream stream)
{
	return prefetch(p, n, device, device == -1, stream);
}
NVS_PT(cuMemPrefetchAsync, _ptsz, (CUdeviceptr p, size_t n, CUdevice device, CUstream stream), (p, n, device, stream))

NVS_API cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream stream)
{
	return prefetch(p, n, to.id, to.type != CU_MEM_LOCATION_TYPE_DEVICE, stream);
}
NVS_PT(cuMemPrefetchAsync_v2, _ptsz, (CUdeviceptr p, size_t n, CUmemLocation to, unsigned flags, CUstream stream),
	(p, n, to, flags, stream))

/* Hints change nothing here, and are taken. */
NVS_API cuMemAdvise(CUdeviceptr p, size_t n, int advice, CUdevice device)
{
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuMemAdvise_v2(CUdeviceptr p, size_t n, int advice, CUmemLocation location)
{
	return nvs_pass(CUDA_SUCCESS);
}
