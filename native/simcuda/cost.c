/* What work costs on this card. */
#include "sim.h"
#include "vspace.h"

enum side { ON_DEVICE, PINNED_HOST, PAGEABLE_HOST };

static enum side side_of(uint64_t address)
{
	struct nvs_mapping *mapping = nvs_mapping_at(address);
	if (mapping == NULL)
		return nvs_is_device_address(address) ? ON_DEVICE : PAGEABLE_HOST;
	return mapping->kind == NVS_PINNED || mapping->kind == NVS_REGISTERED ? PINNED_HOST : ON_DEVICE;
}

static bool on_other_cards(uint64_t a, uint64_t b)
{
	struct nvs_mapping *first = nvs_mapping_at(a), *second = nvs_mapping_at(b);
	return first != NULL && second != NULL && first->physical->gpu != second->physical->gpu;
}

static double launch_ns(void)
{
	return 1e9 * nvs_process.node->profile.launch_overhead;
}

struct nvs_work nvs_work_marker(void)
{
	return (struct nvs_work){.engine = NVS_NO_ENGINE};
}

struct nvs_work nvs_work_kernel(double bytes, double flops)
{
	return (struct nvs_work){.engine = NVS_COMPUTE,
		.gap = launch_ns(),
		.work = nvs_kernel_ns(&nvs_process.node->profile, bytes, flops)};
}

struct nvs_work nvs_work_copy(CUcontext ctx, uint64_t dst, uint64_t src, size_t bytes)
{
	enum side to = side_of(dst), from = side_of(src);
	if (to != ON_DEVICE && from != ON_DEVICE)
		return nvs_work_marker();
	struct nvs_work work;
	if (on_other_cards(dst, src)) {
		work = (struct nvs_work){
			.engine = NVS_D2H, .count = NVS_COUNT_D2D, .gap = launch_ns(), .work = (double)bytes};
	} else if (to == ON_DEVICE && from == ON_DEVICE) {
		/* Read and written in the card's memory. */
		work = nvs_work_kernel(2.0 * (double)bytes, 0);
		work.count = NVS_COUNT_D2D;
		work.gap += nvs_managed_fault(ctx, dst, bytes) + nvs_managed_fault(ctx, src, bytes);
	} else {
		bool in = to == ON_DEVICE;
		work = (struct nvs_work){.engine = in ? NVS_H2D : NVS_D2H, .count = in ? NVS_COUNT_H2D : NVS_COUNT_D2H};
		work.gap = launch_ns();
		work.work = (double)bytes;
		work.path = (in ? from : to) == PAGEABLE_HOST ? NVS_PATH_PAGEABLE : NVS_PATH_PINNED;
	}
	work.bytes = bytes;
	return work;
}
