#include "gate/threads.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "gate/gate.h"

__thread struct nvs_thread *nvs_self;

static _Atomic(struct nvs_thread *) threads;
static pthread_key_t exit_key;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;

static void thread_ended(void *slot)
{
	struct nvs_thread *self = slot;
	nvs_self = NULL;
	atomic_store(&self->in_call, 0);
	atomic_store(&self->within, 0); /* it may have ended in a callback of the driver */
	atomic_store(&self->taken, 0);
}

static void make_exit_key(void)
{
	pthread_key_create(&exit_key, thread_ended);
}

static struct nvs_thread *reuse_slot(void)
{
	for (struct nvs_thread *slot = atomic_load(&threads); slot != NULL; slot = slot->next) {
		uint32_t free = 0;
		if (atomic_load_explicit(&slot->taken, memory_order_relaxed) == 0 &&
			atomic_compare_exchange_strong(&slot->taken, &free, 1))
			return slot;
	}
	return NULL;
}

static struct nvs_thread *new_slot(void)
{
	struct nvs_thread *slot;
	/* Without these two cache lines no submission can be made safely; a process that cannot get them waits for
	 * memory. */
	while ((slot = aligned_alloc(_Alignof(struct nvs_thread), sizeof(*slot))) == NULL)
		nvs_sleep_ns(NVS_NS_PER_MS);
	*slot = (struct nvs_thread){.taken = 1, .device = -1};
	slot->next = atomic_load(&threads);
	while (!atomic_compare_exchange_weak(&threads, &slot->next, slot))
		;
	return slot;
}

struct nvs_thread *nvs_thread_join(void)
{
	pthread_once(&exit_key_once, make_exit_key);
	struct nvs_thread *self = reuse_slot();
	if (self == NULL)
		self = new_slot();
	self->next_sample = self->next_stop = atomic_load(&self->submissions);
	self->next_pace = UINT64_MAX;
	self->pass = NVS_GATE_OPEN;
	self->random = (uint32_t)(uintptr_t)self ^ (uint32_t)nvs_now_ns() ^ 0x9e3779b9u;
	self->sampled_at = nvs_now_ns();
	self->sample = NULL;
	nvs_self = self;
	pthread_setspecific(exit_key, self);
	return self;
}

struct nvs_thread *nvs_threads_first(void)
{
	return atomic_load(&threads);
}
