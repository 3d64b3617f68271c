/* cuIpcOpenMemHandle: memory of another process, mapped one chunk behind the other at addresses of our own. Its owner
 * pays for it and keeps it on the card; here it is never moved. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/devices.h"
#include "base/log.h"
#include "base/bars.h"
#include "gate/entry.h"
#include "ipc/ipc.h"
#include "ipc/server.h"
#include "ipc/socket.h"
#include "ipc/state.h"
#include "memory/memory.h"
#include "memory/table.h"
#include "resolve/context.h"
#include "resolve/resolve.h"

struct nvs_import {
	struct nvs_ipc_handle handle; /* that it was opened by */
	CUcontext context;            /* in which; another one gets addresses of its own */
	unsigned references;
	CUdeviceptr p; /* that the application knows */
	CUdeviceptr base;
	size_t whole;  /* bytes reserved at `base` */
	size_t filled; /* bytes mapped there */
	uint32_t count;
	uint32_t chunk_count;
	struct nvs_import *next;
	uint64_t sizes[]; /* of the chunks that are mapped */
};

/* One opening at a time, so that two threads with the same handle get the same address: held while the exporter is
 * asked. Nothing that an exporter, the link or a free does needs it. */
static pthread_mutex_t opening_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t imports_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
struct nvs_import *nvs_imports;

/* ---- the list ---- */

/* Under its lock. One that was closed, by the application or with its context, may still be in the list. */
static struct nvs_import *find_import(const struct nvs_ipc_handle *handle, CUcontext context)
{
	struct nvs_allocation live;
	for (struct nvs_import *each = nvs_imports; each != NULL; each = each->next)
		if (each->context == context && memcmp(&each->handle, handle, sizeof(*handle)) == 0 &&
			each->references > 0 && nvs_table_find(each->p, &live))
			return each;
	return NULL;
}

static bool open_again(const struct nvs_ipc_handle *handle, CUcontext context, CUdeviceptr *p)
{
	pthread_mutex_lock(&imports_lock);
	struct nvs_import *import = find_import(handle, context);
	if (import != NULL) {
		import->references++;
		*p = import->p;
	}
	pthread_mutex_unlock(&imports_lock);
	return import != NULL;
}

static void list_import(struct nvs_import *import)
{
	pthread_mutex_lock(&imports_lock);
	import->next = nvs_imports;
	nvs_imports = import;
	pthread_mutex_unlock(&imports_lock);
}

static void unlist_import(const struct nvs_import *import)
{
	pthread_mutex_lock(&imports_lock);
	struct nvs_import **link = &nvs_imports;
	while (*link != NULL && *link != import)
		link = &(*link)->next;
	if (*link != NULL)
		*link = import->next;
	pthread_mutex_unlock(&imports_lock);
}

/* ---- mapping ---- */

static void unmap_import(struct nvs_import *import)
{
	CUdeviceptr at = import->base;
	for (uint32_t i = 0; i < import->count; at += import->sizes[i++])
		nvs_real.cuMemUnmap(at, import->sizes[i]);
	nvs_real.cuMemAddressFree(import->base, import->whole);
	free(import);
}

void nvs_import_destroy(struct nvs_import *import)
{
	unlist_import(import);
	unmap_import(import);
}

/* The mapping keeps the memory; the handle is needed no longer. */
static CUresult map_next(struct nvs_import *import, int fd, uint64_t size)
{
	CUmemGenericAllocationHandle handle;
	if (import->count == import->chunk_count || size > import->whole - import->filled)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = nvs_real.cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return result;
	result = nvs_real.cuMemMap(import->base + import->filled, size, 0, handle, 0);
	nvs_real.cuMemRelease(handle);
	if (result != CUDA_SUCCESS)
		return result;
	import->sizes[import->count++] = size;
	import->filled += size;
	return CUDA_SUCCESS;
}

static CUresult reserve_import(const struct nvs_ipc_handle *handle, const struct nvs_ipc_answer *answer,
	CUcontext context, struct nvs_import **out)
{
	struct nvs_import *import = calloc(1, sizeof(*import) + answer->chunk_count * sizeof(import->sizes[0]));
	if (import == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = nvs_real.cuMemAddressReserve(&import->base, answer->whole, 0, 0, 0);
	if (result != CUDA_SUCCESS) {
		free(import);
		return result;
	}
	import->handle = *handle;
	import->context = context;
	import->references = 1;
	import->whole = answer->whole;
	import->chunk_count = answer->chunk_count;
	import->p = import->base + answer->offset;
	*out = import;
	return CUDA_SUCCESS;
}

/* ---- asking the exporter ---- */

/* Once: a program that cannot open one handle tries it with others. */
static CUresult refuse_open(CUresult result, const struct nvs_ipc_handle *handle, const char *why)
{
	static _Atomic bool said;
	if (!atomic_exchange(&said, true))
		NVS_WARN("cuIpcOpenMemHandle: memory of process %u cannot be opened: %s", handle->pid, why);
	return result;
}

static CUresult connect_to_exporter(const struct nvs_ipc_handle *handle, int *fd)
{
	*fd = nvs_ipc_connect(handle->name);
	if (*fd < 0 && errno == ECONNREFUSED)
		return refuse_open(CUDA_ERROR_INVALID_HANDLE, handle,
			"it has ended, or runs in another container or network namespace, which nvshare does not "
			"share memory with");
	if (*fd < 0)
		return refuse_open(CUDA_ERROR_OPERATING_SYSTEM, handle, strerror(errno));
	if (nvs_ipc_is_same_user(*fd))
		return CUDA_SUCCESS;
	close(*fd);
	return refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "it belongs to another user");
}

static CUresult ask_exporter(int fd, const struct nvs_ipc_handle *handle, uint32_t first, struct nvs_ipc_answer *answer,
	int descriptors[NVS_IPC_BATCH], uint32_t *count)
{
	struct nvs_ipc_ask question = nvs_ipc_ask_make(handle, first);
	*count = 0;
	if (!nvs_ipc_send(fd, &question, sizeof(question), NULL, 0))
		return refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "it does not answer, or belongs to another user");
	ssize_t length = nvs_ipc_receive(fd, answer, sizeof(*answer), descriptors, count);
	if (length <= 0)
		return refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "it does not answer, or belongs to another user");
	if (!nvs_ipc_answer_is_sound(answer, (size_t)length, *count, first))
		return refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "its answer makes no sense");
	if (answer->status == NVS_IPC_UNKNOWN)
		return refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "it has freed it, or the handle is not its own");
	return answer->status == NVS_IPC_GIVEN
		       ? CUDA_SUCCESS
		       : refuse_open(CUDA_ERROR_MAP_FAILED, handle, "its driver did not export it");
}

/* One answer's part of the memory; the first makes the room for all. Failing, it leaves an import to be unmapped, or
 * none. */
static CUresult take_part(int fd, const struct nvs_ipc_handle *handle, CUcontext context, struct nvs_import **import,
	struct nvs_ipc_answer *before)
{
	int descriptors[NVS_IPC_BATCH];
	uint32_t count;
	struct nvs_ipc_answer answer;
	CUresult result =
		ask_exporter(fd, handle, *import != NULL ? (*import)->count : 0, &answer, descriptors, &count);
	if (result == CUDA_SUCCESS && *import == NULL) {
		*before = answer;
		result = reserve_import(handle, &answer, context, import);
	}
	if (result == CUDA_SUCCESS && !nvs_ipc_answers_agree(before, &answer))
		result = refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "its answers contradict each other");
	for (uint32_t i = 0; i < count; i++) {
		if (result == CUDA_SUCCESS)
			result = map_next(*import, descriptors[i], answer.sizes[i]);
		close(descriptors[i]);
	}
	return result;
}

static CUresult take_all(int fd, const struct nvs_ipc_handle *handle, CUcontext context, struct nvs_import **import,
	struct nvs_ipc_answer *answer)
{
	CUresult result;
	do
		result = take_part(fd, handle, context, import, answer);
	while (result == CUDA_SUCCESS && (*import)->count < (*import)->chunk_count);
	if (result == CUDA_SUCCESS && (*import)->filled != (*import)->whole)
		result = refuse_open(CUDA_ERROR_INVALID_HANDLE, handle, "there is less of it than it says");
	return result;
}

/* ---- opening ---- */

static CUresult make_usable(struct nvs_import *import, CUdevice device)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	return nvs_real.cuMemSetAccess(import->base, import->whole, &access, 1);
}

static CUresult make_known(struct nvs_import *import, CUdevice device, size_t size)
{
	struct nvs_allocation *allocation = calloc(1, sizeof(*allocation));
	if (allocation == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*allocation = (struct nvs_allocation){
		.base = import->p, .size = size, .device = device, .context = import->context, .import = import};
	list_import(import);
	if (nvs_table_insert(allocation))
		return CUDA_SUCCESS;
	unlist_import(import);
	free(allocation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_anew(const struct nvs_ipc_handle *handle, CUcontext context, CUdevice device, CUdeviceptr *p)
{
	struct nvs_import *import = NULL;
	struct nvs_ipc_answer answer;
	int fd;
	CUresult result = connect_to_exporter(handle, &fd);
	if (result != CUDA_SUCCESS)
		return result;
	result = take_all(fd, handle, context, &import, &answer);
	close(fd);
	if (result == CUDA_SUCCESS)
		result = make_usable(import, device);
	if (result == CUDA_SUCCESS)
		result = make_known(import, device, answer.size);
	if (result == CUDA_SUCCESS)
		*p = import->p;
	else if (import != NULL)
		unmap_import(import);
	return result;
}

static CUresult open_handle(CUdeviceptr *p, const struct nvs_ipc_handle *handle, unsigned flags)
{
	CUdevice device;
	CUcontext context = nvs_current_context();
	if (p == NULL || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (context == NULL || nvs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS || !nvs_is_managed(device))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (nvs_ipc_is_own(handle->name))
		return CUDA_ERROR_INVALID_CONTEXT; /* as the driver's, seen in openucx/ucx pull request 11603 */
	if (nvs_real.cuMemImportFromShareableHandle == NULL)
		return refuse_open(CUDA_ERROR_NOT_SUPPORTED, handle, "the driver of this process is too old for it");
	pthread_mutex_lock(&opening_lock);
	CUresult result = open_again(handle, context, p) ? CUDA_SUCCESS : open_anew(handle, context, device, p);
	pthread_mutex_unlock(&opening_lock);
	return result;
}

#define OPENS(name)                                                                                                    \
	NVS_EXPORT CUresult name(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags)                                \
	{                                                                                                              \
		NVS_PASS_INSIDE(name, (p, handle, flags));                                                             \
		struct nvs_ipc_handle ours;                                                                            \
		if (!nvs_ipc_handle_read(&handle, &ours))                                                              \
			return nvs_bar_after(nvs_real.name(p, handle, flags), NVS_BAR_IPC);                            \
		nvs_inside++;                                                                                          \
		CUresult result = open_handle(p, &ours, flags);                                                        \
		nvs_inside--;                                                                                          \
		return nvs_bar_after(result, NVS_BAR_IPC);                                                             \
	}

OPENS(cuIpcOpenMemHandle)
OPENS(cuIpcOpenMemHandle_v2)

/* ---- closing ---- */

/* True: that was the last one who had it. */
static bool close_once(const struct nvs_import *wanted)
{
	bool last = false;
	pthread_mutex_lock(&imports_lock);
	for (struct nvs_import *each = nvs_imports; each != NULL; each = each->next)
		if (each == wanted && each->references > 0)
			last = --each->references == 0;
	pthread_mutex_unlock(&imports_lock);
	return last;
}

NVS_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
	NVS_PASS_INSIDE(cuIpcCloseMemHandle, (p));
	struct nvs_allocation found;
	if (!nvs_table_find(p, &found))
		return nvs_real.cuIpcCloseMemHandle(p);
	if (found.import == NULL || found.base != p)
		return CUDA_ERROR_INVALID_VALUE;
	nvs_inside++;
	CUresult result = close_once(found.import) ? nvs_memory_end_import(p) : CUDA_SUCCESS;
	nvs_inside--;
	return result;
}

void nvs_ipc_after_fork(void)
{
	pthread_mutex_init(&opening_lock, NULL);
	pthread_mutex_init(&imports_lock, NULL);
	nvs_imports = NULL;
	nvs_ipc_server_after_fork();
}
