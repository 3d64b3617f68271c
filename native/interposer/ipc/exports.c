/* cuIpcGetMemHandle: the allocation stays on the card from then on, and the server gives it to those who have the
 * handle.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/bars.h"
#include "gate/entry.h"
#include "gate/gate.h"
#include "ipc/ipc.h"
#include "ipc/server.h"
#include "ipc/wire.h"
#include "link/link.h"
#include "memory/swap/backing.h"
#include "memory/swap/residency.h"
#include "memory/table.h"
#include "resolve/resolve.h"

bool nvs_ipc_capable(const struct nvs_allocation *allocation)
{
	return !allocation->is_view && allocation->import == NULL && allocation->pool == NULL &&
	       nvs_backing_exportable(allocation->device);
}

/* Others map the memory itself, so it cannot leave any more. Whether the card can bear that is asked before the gate is
 * entered: who is inside must not wait for the scheduler. */
static CUresult keep_for_good(const struct nvs_allocation *allocation)
{
	CUdevice device = allocation->device;
	uint64_t loose = nvs_residency_loose(device, allocation->home, allocation->size);
	CUresult result = nvs_link_keep(device, loose);
	if (result != CUDA_SUCCESS)
		return result;
	nvs_gate_enter_unmeasured();
	nvs_residency_hold(device, allocation->home, allocation->size);
	nvs_residency_pin(device, -(int64_t)loose); /* held now, and counted as such */
	nvs_table_export(allocation->base);
	nvs_gate_leave();
	nvs_link_moved(device);
	return CUDA_SUCCESS;
}

static CUresult export_allocation(CUipcMemHandle *out, const struct nvs_allocation *allocation)
{
	uint8_t name[NVS_IPC_SECRET], secret[NVS_IPC_SECRET];
	if (!nvs_ipc_serve(name, secret)) {
		NVS_WARN("cuIpcGetMemHandle: no socket to give the memory to other processes: %s", strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	CUresult result = allocation->exported ? CUDA_SUCCESS : keep_for_good(allocation);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_ipc_handle handle = nvs_ipc_handle_make(name, secret, allocation->base, allocation->id);
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

/* Of an address inside an allocation the driver gives the handle of the whole, and so do we. */
NVS_EXPORT CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr p)
{
	static _Atomic bool said;
	NVS_PASS_INSIDE(cuIpcGetMemHandle, (handle, p));
	struct nvs_allocation found;
	if (handle == NULL || !nvs_table_find(p, &found) || found.is_view || found.import != NULL)
		return nvs_bar_after(nvs_real.cuIpcGetMemHandle(handle, p), NVS_BAR_IPC);
	if (!nvs_ipc_capable(&found)) {
		if (!atomic_exchange(&said, true))
			NVS_WARN("cuIpcGetMemHandle: this card and driver cannot share memory that nvshare moves; let "
				 "the program pass data through host memory, or run it without nvshare");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	nvs_inside++;
	CUresult result = export_allocation(handle, &found);
	nvs_inside--;
	return nvs_bar_after(result, NVS_BAR_IPC);
}
