/* What the application is told about memory: its own share of the card, and of our memory what cuMemAlloc would say. */
#include "memory/memory.h"

#include <string.h>

#include "base/bars.h"
#include "gate/entry.h"
#include "gate/gate.h"
#include "ipc/ipc.h"
#include "link/link.h"
#include "memory/ordered/ordered.h"
#include "memory/swap/residency.h"
#include "memory/table.h"
#include "resolve/resolve.h"

/* ---- sizes ---- */

/* Without quota and without a scheduler the driver's own answer is the truth, neighbours included. */
static bool sees_own_card(CUdevice device, size_t *total)
{
	uint64_t card = nvs_link_card(device);
	if (card == 0)
		return false;
	if (card < *total)
		*total = card;
	return true;
}

NVS_EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	NVS_PASS_INSIDE(cuMemGetInfo_v2, (available, total));
	CUdevice device;
	nvs_inside++;
	CUresult result = nvs_real.cuMemGetInfo_v2(available, total);
	if (result == CUDA_SUCCESS && nvs_real.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
		sees_own_card(device, total)) {
		nvs_memory_reap(0); /* a free that the application has made is seen here */
		nvs_ordered_tidy();
		uint64_t allocated = nvs_link_allocated(device);
		*available = allocated < *total ? *total - allocated : 0;
	}
	nvs_inside--;
	return result;
}

NVS_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	NVS_PASS_INSIDE(cuDeviceTotalMem_v2, (bytes, device));
	CUresult result = nvs_real.cuDeviceTotalMem_v2(bytes, device);
	if (result == CUDA_SUCCESS)
		sees_own_card(device, bytes);
	return result;
}

/* ---- pointers ---- */

static bool find_ours(CUdeviceptr p, struct nvs_allocation *copy)
{
	return nvs_table_find(p, copy) || nvs_ordered_find(p, copy);
}

NVS_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	NVS_PASS_INSIDE(cuMemGetAddressRange_v2, (base, size, p));
	struct nvs_allocation found;
	if (!find_ours(p, &found))
		return nvs_real.cuMemGetAddressRange_v2(base, size, p);
	if (base != NULL)
		*base = found.base;
	if (size != NULL)
		*size = found.size;
	return CUDA_SUCCESS;
}

/* Replaces what the driver says of mapped or unified memory where it differs from what it says of cuMemAlloc.
 * Everything else is the same for all. */
static void correct(const struct nvs_allocation *allocation, CUpointer_attribute attribute, void *data)
{
	static const unsigned on_device = CU_MEMORYTYPE_DEVICE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		memcpy(data, &on_device, sizeof(on_device));
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		if (allocation->import != NULL)
			break; /* it may be of another card than the one it is used from */
		memcpy(data, &allocation->device, sizeof(allocation->device));
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		memset(data, 0, sizeof(void *));
		break;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		memcpy(data, &allocation->context, sizeof(allocation->context));
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		memcpy(data, &allocation->id, sizeof(allocation->id));
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		memcpy(data, &allocation->base, sizeof(allocation->base));
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		memcpy(data, &allocation->size, sizeof(allocation->size));
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned char *)data = 0; /* a boolean; the driver has written the rest of whatever width it uses */
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned char *)data = nvs_ipc_capable(allocation);
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		if (!allocation->is_view)
			*(unsigned char *)data = 0; /* a set of bits, the known ones of which are in the first byte */
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		memcpy(data, &allocation->pool, sizeof(allocation->pool));
		break;
	default:
		break;
	}
}

static bool is_away(const struct nvs_allocation *allocation, CUdeviceptr p)
{
	return nvs_residency_is_away(allocation->device, allocation->home + (p - allocation->base));
}

/* What the driver would say if the memory were on the card; it knows nothing of addresses without memory. False: that
 * cannot be told from here. */
static bool stand_in(const struct nvs_allocation *allocation, CUpointer_attribute attribute, CUdeviceptr p, void *data)
{
	unsigned boolean =
		attribute == CU_POINTER_ATTRIBUTE_MAPPED ||
		(attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE && nvs_ipc_capable(allocation));
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		memcpy(data, &boolean, sizeof(boolean));
		return true;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		memcpy(data, &p, sizeof(p));
		return true;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		return false;
	default:
		correct(allocation, attribute, data);
		return attribute <= CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
		       (attribute >= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
			       attribute <= CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
	}
}

NVS_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	NVS_PASS_INSIDE(cuPointerGetAttribute, (data, attribute, p));
	struct nvs_allocation found;
	bool ours = find_ours(p, &found);
	if (ours && data != NULL && is_away(&found, p) && stand_in(&found, attribute, p, data))
		return CUDA_SUCCESS;
	CUresult result = nvs_real.cuPointerGetAttribute(data, attribute, p);
	if (result == CUDA_SUCCESS && ours)
		correct(&found, attribute, data);
	return ours && attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER ? CUDA_ERROR_INVALID_VALUE : result;
}

NVS_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr p)
{
	NVS_PASS_INSIDE(cuPointerGetAttributes, (count, attributes, data, p));
	struct nvs_allocation found;
	bool ours = find_ours(p, &found), away = ours && is_away(&found, p);
	CUresult result = nvs_real.cuPointerGetAttributes(count, attributes, data, p);
	for (unsigned i = 0; ours && result == CUDA_SUCCESS && i < count; i++)
		if (!away || !stand_in(&found, attributes[i], p, data[i]))
			correct(&found, attributes[i], data[i]);
	return result;
}

/* ---- what makes memory known beyond its address: from then on it stays on the card ---- */

/* The application may have mapped several things there, one behind the other. */
bool nvs_memory_keep(CUdeviceptr p, size_t size)
{
	struct nvs_allocation found;
	if (!find_ours(p, &found))
		return false;
	nvs_gate_enter_unmeasured();
	for (CUdeviceptr at = p, next; at < p + size && find_ours(at, &found); at = next) {
		next = found.base + found.size < p + size ? found.base + found.size : p + size;
		nvs_residency_hold(found.device, found.home + (at - found.base), next - at);
		nvs_link_moved(found.device);
	}
	return true;
}

#define KEEP_ON_CARD(name, params, args, p, size, bar)                                                                 \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, args);                                                                           \
		bool kept = nvs_memory_keep((CUdeviceptr)(p), size);                                                   \
		CUresult result = nvs_real.name args;                                                                  \
		if (kept)                                                                                              \
			nvs_gate_leave();                                                                              \
		return nvs_bar_after(result, bar);                                                                     \
	}

KEEP_ON_CARD(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr p),
	(value, attribute, p), p, 1, NVS_BAR_NONE)
KEEP_ON_CARD(cuMemGetHandleForAddressRange,
	(void *handle, CUdeviceptr p, size_t size, int type, unsigned long long flags), (handle, p, size, type, flags),
	p, size, NVS_BAR_IPC)
KEEP_ON_CARD(cuMulticastBindAddr,
	(CUmemGenericAllocationHandle group, size_t offset, CUdeviceptr p, size_t size, unsigned long long flags),
	(group, offset, p, size, flags), p, size, NVS_BAR_IPC)
KEEP_ON_CARD(cuMulticastBindAddr_v2,
	(CUmemGenericAllocationHandle group, CUdevice device, size_t offset, CUdeviceptr p, size_t size,
		unsigned long long flags),
	(group, device, offset, p, size, flags), p, size, NVS_BAR_IPC)
KEEP_ON_CARD(cuLogicalEndpointBindAddr,
	(cuuint32_t endpoint, CUdevice device, cuuint64_t offset, void *p, cuuint64_t size, unsigned long long flags),
	(endpoint, device, offset, p, size, flags), (uintptr_t)p, size, NVS_BAR_IPC)
