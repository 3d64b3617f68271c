/* What tests of memory that moves have in common: turns and targets as a scheduler would set them, over a driver whose
 * memory has contents and room for just so much. */
#ifndef NVS_FAKE_SWAP_H
#define NVS_FAKE_SWAP_H

#include "fake_memory.h"

const size_t nvs_chunk_bytes = 4 * MIB;

static inline void set_target(uint64_t bytes)
{
	static uint64_t number;
	nvs_residency_set(0, bytes, ++number);
	nvs_mover_kick();
}

static inline struct nvs_holding now(void)
{
	struct nvs_holding view;
	nvs_residency_view(0, &view);
	return view;
}

/* What was asked for has been done. */
#define UNTIL(condition)                                                                                               \
	do {                                                                                                           \
		for (int tries = 0; !(condition); tries++) {                                                           \
			assert(tries < 100000);                                                                        \
			nvs_sleep_ns(100 * NVS_NS_PER_US);                                                             \
		}                                                                                                      \
	} while (0)

static inline CUdeviceptr must_alloc(size_t n)
{
	CUdeviceptr p = 0;
	assert(cuMemAlloc_v2(&p, n) == CUDA_SUCCESS && p != 0);
	return p;
}

static inline void must_free(CUdeviceptr p)
{
	assert(cuMemFree_v2(p) == CUDA_SUCCESS);
}

/* As work of the application would: only where there is memory. */
static inline void write_all(CUdeviceptr p, size_t n, uint8_t seed)
{
	pthread_mutex_lock(&fake_lock);
	for (size_t at = 0; at < n; at += 1021)
		*fake_memory_at(p + at, 1) = (uint8_t)(seed + at);
	pthread_mutex_unlock(&fake_lock);
}

static inline void check_all(CUdeviceptr p, size_t n, uint8_t seed)
{
	pthread_mutex_lock(&fake_lock);
	for (size_t at = 0; at < n; at += 1021)
		assert(*fake_memory_at(p + at, 1) == (uint8_t)(seed + at));
	pthread_mutex_unlock(&fake_lock);
}

static inline void shut(void)
{
	nvs_residency_shut();
	nvs_mover_kick();
}

static inline void swap_out(uint64_t target)
{
	shut();
	set_target(target);
	UNTIL(now().resident <= target && now().leaving == 0);
}

static inline void swap_in(void)
{
	set_target(NVS_UNLIMITED);
	UNTIL(now().absent == 0);
}

static inline bool no_buffers_left(void)
{
	nvs_mover_pause();
	bool none = nvs_host_buffers == NULL && atomic_load(&nvs_host_promised) == 0;
	nvs_mover_resume();
	return none;
}

static inline void after_each(void)
{
	fake_capacity = UINT64_MAX;
	nvs_residency_free_all();
	UNTIL(nvs_residency_open());
	nvs_memory_reap(1);
	nvs_slab_trim(0);
	UNTIL(no_buffers_left());
	nvs_mover_pause();
	assert(now().buffered == 0 && fake_registered == 0);
	nvs_holdings.devices[0].wanted = nvs_holdings.blocked_at[0] = 0;
	fake_next_handle = 1;
	nvs_mover_resume();
}

#define RUN_SWAP(test)                                                                                                 \
	do {                                                                                                           \
		fake_begin();                                                                                          \
		test();                                                                                                \
		after_each();                                                                                          \
		fake_end();                                                                                            \
	} while (0)

#endif
