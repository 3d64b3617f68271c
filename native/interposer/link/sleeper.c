#include "link/sleeper.h"

#include <pthread.h>
#include <unistd.h>

#include "base/helper_thread.h"
#include "gate/upcalls.h"
#include "memory/swap/mover.h"
#include "resolve/resolve.h"

enum stage { RUNNING, LOCKED, AWAY };
enum task { NOTHING, LEAVE, RETURN };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool running; /* the thread */
	enum task task;
	bool ended;
	uint32_t lock_ms;
	enum stage stage; /* of the last task */
	CUresult error;   /* as well */
} sleeper = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

bool nvs_sleeper_supported(void)
{
	return nvs_real.cuCheckpointProcessLock != NULL && nvs_real.cuCheckpointProcessCheckpoint != NULL &&
	       nvs_real.cuCheckpointProcessRestore != NULL && nvs_real.cuCheckpointProcessUnlock != NULL;
}

static CUresult unlock(enum stage *stage)
{
	CUcheckpointUnlockArgs arguments = {0};
	CUresult result = nvs_real.cuCheckpointProcessUnlock(getpid(), &arguments);
	if (result == CUDA_SUCCESS)
		*stage = RUNNING;
	return result;
}

static CUresult leave(uint32_t lock_ms, enum stage *stage)
{
	CUcheckpointLockArgs how = {.timeoutMs = lock_ms};
	CUcheckpointCheckpointArgs arguments = {0};
	CUresult result = nvs_real.cuCheckpointProcessLock(getpid(), &how);
	if (result != CUDA_SUCCESS)
		return result;
	*stage = LOCKED;
	result = nvs_real.cuCheckpointProcessCheckpoint(getpid(), &arguments);
	if (result == CUDA_SUCCESS)
		*stage = AWAY;
	else
		unlock(stage);
	return result;
}

/* What remains to be done: an attempt before this one may have come as far as the unlock. */
static CUresult come_back(enum stage *stage)
{
	CUcheckpointRestoreArgs arguments = {0};
	if (*stage == AWAY) {
		CUresult result = nvs_real.cuCheckpointProcessRestore(getpid(), &arguments);
		if (result != CUDA_SUCCESS)
			return result;
		*stage = LOCKED;
	}
	return *stage == LOCKED ? unlock(stage) : CUDA_SUCCESS;
}

static void *run(void *unused)
{
	pthread_setname_np(pthread_self(), "nvshare-sleeper");
	nvs_inside++;
	pthread_mutex_lock(&sleeper.lock);
	for (;;) {
		while (sleeper.task == NOTHING || sleeper.ended)
			pthread_cond_wait(&sleeper.wake, &sleeper.lock);
		enum task task = sleeper.task;
		enum stage stage = sleeper.stage;
		pthread_mutex_unlock(&sleeper.lock);
		if (task == LEAVE)
			nvs_mover_pause();
		CUresult error = task == LEAVE ? leave(sleeper.lock_ms, &stage) : come_back(&stage);
		if (stage == RUNNING)
			nvs_mover_resume();
		pthread_mutex_lock(&sleeper.lock);
		sleeper.stage = stage;
		sleeper.error = error;
		sleeper.ended = true;
		nvs_link_wake();
	}
	return unused;
}

static bool begin(enum task task, uint32_t lock_ms)
{
	pthread_mutex_lock(&sleeper.lock);
	if (!sleeper.running)
		sleeper.running = nvs_helper_start(run);
	bool running = sleeper.running;
	if (running) {
		sleeper.task = task;
		sleeper.lock_ms = lock_ms;
		sleeper.ended = false;
		pthread_cond_signal(&sleeper.wake);
	}
	pthread_mutex_unlock(&sleeper.lock);
	return running;
}

bool nvs_sleeper_leave(uint32_t lock_ms)
{
	return begin(LEAVE, lock_ms);
}

void nvs_sleeper_return(void)
{
	begin(RETURN, 0); /* the thread is there since the process left */
}

bool nvs_sleeper_ended(CUresult *error, bool *locked)
{
	pthread_mutex_lock(&sleeper.lock);
	bool ended = sleeper.ended;
	if (ended) {
		*error = sleeper.error;
		*locked = sleeper.stage != RUNNING;
		sleeper.ended = false;
		sleeper.task = NOTHING;
	}
	pthread_mutex_unlock(&sleeper.lock);
	return ended;
}

void nvs_sleeper_after_fork(void)
{
	pthread_mutex_init(&sleeper.lock, NULL);
	pthread_cond_init(&sleeper.wake, NULL);
	sleeper.running = sleeper.ended = false;
	sleeper.task = NOTHING;
	sleeper.stage = RUNNING;
}
