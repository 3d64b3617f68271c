/* Physical memory that several processes use: cuMemExportToShareableHandle and its opposite, with file descriptors.
 *
 * When memory is exported its contents move into a file in memory, which every process that has the descriptor maps.
 * Who made the memory is charged for it. Unlike on a real card the charge ends with that process, even where others
 * still have the memory. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pagemap.h"
#include "sim.h"
#include "vspace.h"

/* Behind the contents, in a page of its own. */
struct label {
	char kind[16];
	char boot_id[40], node[64], uuid[NVS_UUID_SIZE];
	uint64_t size;
	CUmemAllocationProp prop;
};

static const char kind_of_file[16] = "nvshare-sim-mem";

static struct label label_of(const struct nvs_physical *physical)
{
	const struct nvs_node *node = nvs_process.node;
	struct label label = {.size = physical->contents.size, .prop = physical->prop};
	memcpy(label.kind, kind_of_file, sizeof(label.kind));
	memcpy(label.boot_id, node->boot_id, sizeof(label.boot_id));
	memcpy(label.node, node->name, sizeof(label.node));
	memcpy(label.uuid, node->gpus[physical->gpu].uuid, sizeof(label.uuid));
	return label;
}

static void *map_file(int fd, size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return p != MAP_FAILED ? p : NULL;
}

/* From now on its contents are those of a file. False: the host has no room. */
static bool move_into_file(struct nvs_physical *physical)
{
	size_t size = physical->contents.size;
	struct label label = label_of(physical);
	int fd = (int)syscall(SYS_memfd_create, "nvshare-shared-memory", MFD_CLOEXEC); /* glibc: from 2.27 */
	if (fd < 0)
		return false;
	bool good = ftruncate(fd, (off_t)(size + nvs_page_size())) == 0 &&
		    pwrite(fd, &label, sizeof(label), (off_t)size) == (ssize_t)sizeof(label);
	void *raw = good ? map_file(fd, size) : NULL;
	if (raw == NULL) {
		close(fd);
		return false;
	}
	nvs_contents_move(&physical->contents, raw);
	physical->file = nvs_kept_file(fd);
	nvs_immovable(1);
	return true;
}

void nvs_physical_unshare(struct nvs_physical *physical)
{
	if (physical->file.open) {
		munmap(physical->contents.raw, physical->contents.size);
		nvs_immovable(-1);
	}
	nvs_kept_file_close(&physical->file);
}

NVS_API cuMemExportToShareableHandle(
	void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	nvs_catch_up();
	struct nvs_physical *physical = nvs_physical_of(handle);
	if (shareable == NULL || physical == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
		(physical->prop.requestedHandleTypes & type) == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (!physical->file.open && !move_into_file(physical))
		return nvs_end(CUDA_ERROR_OUT_OF_MEMORY);
	int fd = nvs_kept_file_is_whole(&physical->file) ? fcntl(physical->file.fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (fd < 0)
		return nvs_end(CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(shareable, &fd, sizeof(fd));
	return nvs_end(CUDA_SUCCESS);
}

/* Is it one of ours, of this node, and as large as it says? */
static bool read_label(int fd, struct label *label)
{
	const struct nvs_node *node = nvs_process.node;
	struct stat status;
	if (fstat(fd, &status) != 0 || status.st_size < (off_t)nvs_page_size())
		return false;
	off_t size = status.st_size - (off_t)nvs_page_size();
	return pread(fd, label, sizeof(*label), size) == (ssize_t)sizeof(*label) &&
	       memcmp(label->kind, kind_of_file, sizeof(label->kind)) == 0 &&
	       memcmp(label->boot_id, node->boot_id, sizeof(label->boot_id)) == 0 &&
	       memcmp(label->node, node->name, sizeof(label->node)) == 0 && label->size == (uint64_t)size;
}

/* The device of this process that is the card it lies on; -1: it cannot see that one. */
static CUdevice device_of(const struct label *label)
{
	for (CUdevice device = 0; device < nvs_process.device_count; device++)
		if (strcmp(nvs_process.node->gpus[nvs_process.devices[device]].uuid, label->uuid) == 0)
			return device;
	return -1;
}

static CUresult import_file(int fd, const struct label *label, CUdevice device, struct nvs_physical **out)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	void *raw = own >= 0 ? map_file(own, label->size) : NULL;
	CUresult result = raw != NULL ? nvs_physical_new((unsigned)nvs_gpu_of(device), -1, label->size, 0, raw, out)
				      : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		if (raw != NULL)
			munmap(raw, label->size);
		if (own >= 0)
			close(own);
		return result;
	}
	(*out)->file = nvs_kept_file(own);
	nvs_immovable(1);
	(*out)->prop = label->prop;
	(*out)->prop.location.id = device;
	return CUDA_SUCCESS;
}

NVS_API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	int fd = (int)(intptr_t)os_handle;
	struct label label;
	if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_label(fd, &label))
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	CUdevice device = device_of(&label);
	struct nvs_physical *physical;
	result = device >= 0 ? import_file(fd, &label, device, &physical) : CUDA_ERROR_INVALID_DEVICE;
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	nvs_physical_give_handle(physical);
	*handle = physical->handle;
	return nvs_end(CUDA_SUCCESS);
}
