#include "memory/swap/hostmem.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/env.h"
#include "base/helper_thread.h"
#include "base/list.h"
#include "base/log.h"
#include "memory/swap/state.h"
#include "resolve/resolve.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define STEP_BYTES ((size_t)32 << 20) /* for each thread: some milliseconds of clearing pages */
#define THREADS_MAX 4
#define REGISTER_PORTABLE 1u /* page-locked for all contexts */

static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;
struct nvs_host_buffer *nvs_host_buffers;
_Atomic uint64_t nvs_host_promised;
static _Atomic uint64_t populated_bytes; /* the nvs_host_buffers that have their pages */

/* A simulated card's nvs_host_buffers have no pages that the system could see: there the memory is what the simulation
 * says. */
static uint64_t room_left(void)
{
	const struct nvs_env *env = nvs_env();
	uint64_t taken = atomic_load(&populated_bytes);
	if (!env->simulated)
		return nvs_host_room();
	if (env->sim_host == 0)
		return UINT64_MAX;
	return env->sim_host > taken ? env->sim_host - taken : 0;
}

/* Counted first and looked at then, so that of two threads that ask at once not both get the same bytes. */
bool nvs_host_promise(uint64_t bytes)
{
	uint64_t promised = atomic_fetch_add(&nvs_host_promised, bytes), room = room_left();
	if (promised <= room && bytes <= room - promised)
		return true;
	nvs_host_forgive(bytes);
	return false;
}

void nvs_host_forgive(uint64_t bytes)
{
	atomic_fetch_sub(&nvs_host_promised, bytes);
}

/* ---- pages ---- */

/* Addresses on a huge page's boundary: the kernel has no reason not to use them. */
static void *map_aligned(size_t size)
{
	size_t wider = size + HUGE_PAGE;
	char *at = mmap(NULL, wider, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	size_t before = (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
	if (before > 0)
		munmap(at, before);
	munmap(at + before + size, wider - before - size);
	return at + before;
}

static void touch(volatile char *from, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	for (size_t at = 0; at < size; at += page)
		from[at] = 0;
}

struct part {
	pthread_t thread;
	char *from;
	size_t size;
	bool failed;
};

/* Without pages a write would end the process, so only a kernel that does not know the call is left to do it by
 * writing. */
static void *populate_part(void *argument)
{
	struct part *part = argument;
	if (madvise(part->from, part->size, MADV_POPULATE_WRITE) == 0)
		return NULL;
	if (errno == EINVAL)
		touch(part->from, part->size);
	else
		part->failed = true;
	return NULL;
}

/* Half of the processors at most: the other half is the application's. */
static size_t thread_count(void)
{
	cpu_set_t allowed;
	size_t count = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? (size_t)CPU_COUNT(&allowed) / 2 : 1;
	return count < 1 ? 1 : count > THREADS_MAX ? THREADS_MAX : count;
}

/* Clearing pages takes one processor several times as long as copying to them, so several do it at once. This thread
 * does the last part itself, and any that no other could be had for. */
static void populate(struct nvs_host_buffer *buffer)
{
	struct part parts[THREADS_MAX];
	size_t limit = nvs_env()->simulated ? 0 : thread_count(), count = 0;
	/* A simulated card keeps uniform contents sparse, in nvs_host_buffers too: their pages come when something is
	 * written.
	 */
	if (limit == 0)
		buffer->populated = buffer->size;
	for (; count < limit && buffer->populated < buffer->size; count++) {
		size_t left = buffer->size - buffer->populated, size = left < STEP_BYTES ? left : STEP_BYTES;
		parts[count] = (struct part){.from = (char *)buffer->base + buffer->populated, .size = size};
		buffer->populated += size;
	}
	bool started[THREADS_MAX];
	for (size_t i = 0; i < count; i++) {
		started[i] = i + 1 < count && nvs_helper_run(populate_part, &parts[i], &parts[i].thread);
		if (!started[i])
			populate_part(&parts[i]);
	}
	for (size_t i = 0; i < count; i++) {
		if (started[i])
			pthread_join(parts[i].thread, NULL);
		buffer->failed = buffer->failed || parts[i].failed;
	}
}

/* ---- nvs_host_buffers ---- */

static void link_buffer(struct nvs_host_buffer *buffer)
{
	pthread_mutex_lock(&buffers_lock);
	NVS_LIST_PUSH(nvs_host_buffers, buffer);
	pthread_mutex_unlock(&buffers_lock);
}

static void unlink_buffer(struct nvs_host_buffer *buffer)
{
	pthread_mutex_lock(&buffers_lock);
	NVS_LIST_TAKE(nvs_host_buffers, buffer);
	pthread_mutex_unlock(&buffers_lock);
}

struct nvs_host_buffer *nvs_host_begin(size_t size, bool promised)
{
	/* What was promised may since have been taken by others on this host. */
	if (promised ? room_left() < size : !nvs_host_promise(size))
		return NULL;
	struct nvs_host_buffer *buffer = calloc(1, sizeof(*buffer));
	void *base = buffer != NULL ? map_aligned(size) : NULL;
	if (base == NULL) {
		free(buffer);
		if (!promised)
			nvs_host_forgive(size);
		return NULL;
	}
	if (!nvs_env()->simulated)
		madvise(base, size, MADV_HUGEPAGE);
	/* A child would otherwise share the pages until one of the two writes, and the card might then write to a page
	 * that is no longer ours. */
	madvise(base, size, MADV_DONTFORK);
	*buffer = (struct nvs_host_buffer){.base = base, .size = size};
	link_buffer(buffer);
	return buffer;
}

/* Without the page lock a copy is slow, but right. */
static void lock_pages(struct nvs_host_buffer *buffer)
{
	static _Atomic bool said;
	CUcontext context = NULL;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	if (nvs_real.cuMemHostRegister_v2 != NULL && nvs_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS)
		result = nvs_real.cuMemHostRegister_v2(buffer->base, buffer->size, REGISTER_PORTABLE);
	if (result == CUDA_SUCCESS)
		buffer->registered_in = context;
	else if (!atomic_exchange(&said, true))
		NVS_WARN("host memory cannot be page-locked (CUDA error %d): moving memory will be slow", (int)result);
}

bool nvs_host_step(struct nvs_host_buffer *buffer)
{
	if (buffer->populated < buffer->size) {
		populate(buffer);
		if (buffer->populated == buffer->size) {
			atomic_fetch_add(&populated_bytes, buffer->size);
			nvs_host_forgive(buffer->size);
		}
		return buffer->failed;
	}
	if (buffer->registered_in == NULL && !buffer->failed)
		lock_pages(buffer);
	return true;
}

static void unlock_pages(struct nvs_host_buffer *buffer)
{
	if (buffer->registered_in != NULL)
		nvs_real.cuMemHostUnregister(buffer->base);
	buffer->registered_in = NULL;
}

/* The page lock belongs to a context, which need not be the current one. */
void nvs_host_free(struct nvs_host_buffer *buffer)
{
	CUcontext popped;
	if (buffer == NULL)
		return;
	unlink_buffer(buffer);
	if (buffer->registered_in != NULL && nvs_real.cuCtxPushCurrent_v2(buffer->registered_in) == CUDA_SUCCESS) {
		unlock_pages(buffer);
		nvs_real.cuCtxPopCurrent_v2(&popped);
	}
	if (buffer->populated < buffer->size)
		nvs_host_forgive(buffer->size);
	else
		atomic_fetch_sub(&populated_bytes, buffer->size);
	munmap(buffer->base, buffer->size);
	free(buffer);
}

void nvs_host_context_ends(CUcontext context)
{
	pthread_mutex_lock(&buffers_lock);
	for (struct nvs_host_buffer *each = nvs_host_buffers; each != NULL; each = each->next)
		if (each->registered_in == context)
			unlock_pages(each);
	pthread_mutex_unlock(&buffers_lock);
}

/* The child never had the pages. */
void nvs_host_after_fork(void)
{
	pthread_mutex_init(&buffers_lock, NULL);
	nvs_host_buffers = NULL;
	atomic_store(&nvs_host_promised, 0);
	atomic_store(&populated_bytes, 0);
}
