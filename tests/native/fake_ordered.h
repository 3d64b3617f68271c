/* Streams, events and pools for the fakes of memory/: work is submitted and finished by the test, and an event
 * passes when the work before it is finished. */
#ifndef NVS_FAKE_ORDERED_H
#define NVS_FAKE_ORDERED_H

#include "fake_memory.h"

#define FAKE_ORDERED_STREAMS 4
#define FAKE_ORDERED_EVENTS 4096

/* Work of a stream so far: number 0 is the legacy stream, which follows the others. */
struct fake_progress {
	unsigned submitted, finished;
};

struct fake_event {
	bool alive;
	unsigned at[FAKE_ORDERED_STREAMS]; /* passes when so much is finished in each */
};

struct CUmemPoolHandle_st {
	CUdevice device;
	uint64_t attributes[16];
};

static struct fake_progress fake_progress[FAKE_ORDERED_STREAMS];
static struct fake_event fake_ordered_events[FAKE_ORDERED_EVENTS];
static unsigned fake_records, fake_queries;
static struct CUmemPoolHandle_st fake_default_pools[2] = {{.device = 0}, {.device = 1}}, fake_made_pools[8];
static unsigned fake_pools_made;
static CUmemoryPool fake_current_pools[2];

static CUstream fake_ordered_stream(unsigned number)
{
	return (CUstream)(uintptr_t)(0x1000 + 16 * number);
}

static unsigned fake_number_of(CUstream stream)
{
	if (stream == NULL)
		return 0;
	unsigned number = (unsigned)((uintptr_t)stream - 0x1000) / 16;
	assert(number > 0 && number < FAKE_ORDERED_STREAMS);
	return number;
}

static void fake_work(unsigned stream)
{
	fake_progress[stream].submitted++;
}

static void fake_finish(unsigned stream)
{
	fake_progress[stream].finished = fake_progress[stream].submitted;
}

static CUresult fake_ordered_event_create(CUevent *event, unsigned flags)
{
	assert(fake_current != NULL && flags == CU_EVENT_DISABLE_TIMING);
	unsigned i = 0;
	while (fake_ordered_events[i].alive)
		i++;
	fake_ordered_events[i] = (struct fake_event){.alive = true};
	*event = (CUevent)&fake_ordered_events[i];
	atomic_fetch_add(&fake_events, 1);
	return CUDA_SUCCESS;
}

static CUresult fake_ordered_event_destroy(CUevent event)
{
	assert(((struct fake_event *)event)->alive);
	((struct fake_event *)event)->alive = false;
	atomic_fetch_sub(&fake_events, 1);
	return CUDA_SUCCESS;
}

static CUresult fake_ordered_event_record(CUevent event, CUstream stream)
{
	struct fake_event *recorded = (struct fake_event *)event;
	unsigned number = fake_number_of(stream);
	assert(fake_current != NULL && !nvs_stream_capturing(stream) && (stream != NULL || nvs_captures == 0));
	for (unsigned i = 0; i < FAKE_ORDERED_STREAMS; i++)
		recorded->at[i] = number == 0 || number == i ? fake_progress[i].submitted : 0;
	fake_records++;
	return CUDA_SUCCESS;
}

static CUresult fake_ordered_event_query(CUevent event)
{
	struct fake_event *asked = (struct fake_event *)event;
	assert(asked->alive);
	fake_queries++;
	for (unsigned i = 0; i < FAKE_ORDERED_STREAMS; i++)
		if (asked->at[i] > fake_progress[i].finished)
			return CUDA_ERROR_NOT_READY;
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetCount(int *count)
{
	*count = 2;
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	*pool = &fake_default_pools[device];
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	*pool = fake_current_pools[device] != NULL ? fake_current_pools[device] : &fake_default_pools[device];
	return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	fake_current_pools[device] = pool;
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	*pool = &fake_made_pools[fake_pools_made++ % 8];
	**pool = (struct CUmemPoolHandle_st){.device = props->location.id};
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemPoolDestroy(CUmemoryPool pool)
{
	for (int i = 0; i < 2; i++)
		if (fake_current_pools[i] == pool)
			fake_current_pools[i] = NULL;
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	if (attribute < 1 || attribute > 8)
		return CUDA_ERROR_INVALID_VALUE;
	pool->attributes[attribute] = *(uint64_t *)value;
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	*(uint64_t *)value = pool->attributes[attribute];
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream stream)
{
	return fake_make_pointer(p, n);
}

static void fake_ordered_begin(void)
{
	fake_begin();
	nvs_real.cuEventCreate = fake_ordered_event_create;
	nvs_real.cuEventDestroy_v2 = fake_ordered_event_destroy;
	nvs_real.cuEventRecord = fake_ordered_event_record;
	nvs_real.cuEventQuery = fake_ordered_event_query;
	nvs_real.cuDeviceGetCount = fake_cuDeviceGetCount;
	nvs_real.cuDeviceGetDefaultMemPool = fake_cuDeviceGetDefaultMemPool;
	nvs_real.cuDeviceGetMemPool = fake_cuDeviceGetMemPool;
	nvs_real.cuDeviceSetMemPool = fake_cuDeviceSetMemPool;
	nvs_real.cuMemPoolCreate = fake_cuMemPoolCreate;
	nvs_real.cuMemPoolDestroy = fake_cuMemPoolDestroy;
	nvs_real.cuMemPoolTrimTo = fake_cuMemPoolTrimTo;
	nvs_real.cuMemPoolSetAttribute = fake_cuMemPoolSetAttribute;
	nvs_real.cuMemPoolGetAttribute = fake_cuMemPoolGetAttribute;
	nvs_real.cuMemPoolSetAccess = fake_cuMemPoolSetAccess;
	nvs_real.cuMemAllocAsync_ptsz = fake_cuMemAllocAsync;
	nvs_real.cuMemFreeAsync_ptsz = fake_cuMemFreeAsync;
	nvs_real.cuMemAllocFromPoolAsync = fake_cuMemAllocFromPoolAsync;
	memset(fake_progress, 0, sizeof(fake_progress));
	memset(fake_current_pools, 0, sizeof(fake_current_pools));
	memset(fake_default_pools[0].attributes, 0, sizeof(fake_default_pools[0].attributes));
	fake_drains = fake_records = fake_queries = 0;
}

/* All work is over, and nothing of a test is left; the next one starts with fresh pools. */
static void fake_ordered_end(void)
{
	for (unsigned i = 0; i < FAKE_ORDERED_STREAMS; i++)
		fake_finish(i);
	fake_capturing = NULL;
	atomic_store(&nvs_captures, 0);
	fake_no_context_left = true;
	for (int device = 0; device < 2; device++) {
		fake_current = &fake_contexts[device];
		nvs_ordered_context_gone(&fake_contexts[device], device);
	}
	for (struct nvs_pool *pool = nvs_pool_first(); pool != NULL; pool = pool->next) {
		assert(pool->heap.reserved == 0 && pool->heap.used == 0 && pool->lanes == NULL);
		pool->handle = NULL;
	}
	fake_no_context_left = false;
	for (int device = 0; device < 2; device++)
		cuDeviceSetMemPool(device, &fake_default_pools[device]); /* ours asks again */
	assert(nvs_ordered_space.live == 0 && nvs_ordered_space.segment_count == 0);
	memset(fake_ordered_events, 0, sizeof(fake_ordered_events));
	fake_end();
}

/* ---- for the tests ---- */

#define A fake_ordered_stream(1)
#define B fake_ordered_stream(2)

static inline CUdeviceptr must_alloc(size_t n, CUstream stream)
{
	CUdeviceptr p = 0;
	assert(cuMemAllocAsync(&p, n, stream) == CUDA_SUCCESS && p != 0 && p % 512 == 0);
	return p;
}

static inline void must_free(CUdeviceptr p, CUstream stream)
{
	assert(cuMemFreeAsync(p, stream) == CUDA_SUCCESS);
}

static inline uint64_t attribute(CUmemoryPool pool, int which)
{
	uint64_t value = 0;
	assert(cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS);
	return value;
}

#define RUN_ORDERED(test)                                                                                              \
	do {                                                                                                           \
		fake_ordered_begin();                                                                                  \
		test();                                                                                                \
		fake_ordered_end();                                                                                    \
	} while (0)

#endif
