/* cuCheckpointProcess*: a process leaves its cards and comes back. All of it happens in the shared state, so that any
 * process of the node can do it to another of the same user.
 *
 * As on a real card, where another thread that polled an event killed its process: no thread of the process may be in
 * the driver, or enter it, from the end of the lock to the end of the checkpoint. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

static const struct {
	enum nvs_stage from, to;
} steps[NVS_OPERATIONS] = {
	[NVS_LOCK] = {NVS_RUNNING, NVS_LOCKED},
	[NVS_CHECKPOINT] = {NVS_LOCKED, NVS_CHECKPOINTED},
	[NVS_RESTORE] = {NVS_CHECKPOINTED, NVS_LOCKED},
	[NVS_UNLOCK] = {NVS_LOCKED, NVS_RUNNING},
};

/* ---- the way in and out of every other call ---- */

/* A handler of the program may show where that was. */
static void die(void)
{
	raise(SIGSEGV);
	signal(SIGSEGV, SIG_DFL);
	raise(SIGSEGV);
}

/* Wait until the process runs; CUDA_ERROR_OPERATING_SYSTEM when it never will. */
static CUresult wait_to_enter(struct nvs_node *node, struct nvs_member *self)
{
	nvs_node_lock(node);
	self->held++;
	__atomic_sub_fetch(&self->inside, 1, __ATOMIC_SEQ_CST);
	nvs_members_advance(node); /* a lock may have waited for this thread alone */
	while (self->stage != NVS_RUNNING && self->stage != NVS_FAILED) {
		uint32_t seen = node->wake;
		double until = self->stage >= NVS_MOVING ? self->until : INFINITY;
		bool fatal = self->stage == NVS_CHECKPOINTING;
		nvs_node_unlock(node);
		if (fatal)
			die();
		nvs_node_sleep(node, until, seen);
		nvs_node_lock(node);
	}
	bool runs = self->stage == NVS_RUNNING;
	self->held--;
	if (runs)
		__atomic_add_fetch(&self->inside, 1, __ATOMIC_SEQ_CST);
	nvs_node_unlock(node);
	return runs ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* Whoever locks shuts first and then counts who is inside; whoever enters counts itself first and then looks. */
CUresult nvs_enter(void)
{
	struct nvs_member *self = nvs_process.member;
	__atomic_add_fetch(&self->inside, 1, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&self->shut, __ATOMIC_SEQ_CST) == 0 ? CUDA_SUCCESS
								   : wait_to_enter(nvs_process.node, self);
}

void nvs_leave(void)
{
	struct nvs_member *self = nvs_process.member;
	uint32_t left = __atomic_sub_fetch(&self->inside, 1, __ATOMIC_SEQ_CST);
	if (left == 0 && __atomic_load_n(&self->shut, __ATOMIC_SEQ_CST) != 0)
		nvs_node_wake(nvs_process.node);
}

void nvs_immovable(int pieces)
{
	__atomic_add_fetch(&nvs_process.member->immovable, (uint32_t)pieces, __ATOMIC_SEQ_CST);
}

/* ---- who may do it to whom ---- */

/* The process's number in the node. Other processes are named as in the node's process table. */
static CUresult find_number(int pid, int *number)
{
	char path[4096];
	struct stat status;
	*number = pid == getpid() ? nvs_process.member->pid : pid;
	if (pid == getpid())
		return CUDA_SUCCESS;
	snprintf(path, sizeof(path), "%s/%d", nvs_process_table(), pid);
	if (pid <= 0 || stat(path, &status) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	uid_t self = geteuid();
	return self == 0 || self == status.st_uid ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* The process that a call is about, with the node locked; on an error it is not. */
static CUresult begin(int pid, struct nvs_member **member)
{
	int number;
	if (nvs_process.forked || __atomic_load_n(&nvs_process.node, __ATOMIC_ACQUIRE) == NULL)
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = find_number(pid, &number);
	if (result != CUDA_SUCCESS)
		return result;
	nvs_node_lock(nvs_process.node);
	*member = nvs_member_find(nvs_process.node, number);
	if (*member != NULL)
		return CUDA_SUCCESS;
	nvs_node_unlock(nvs_process.node);
	return CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- the four operations: begin them with the node locked ---- */

static CUresult start_checkpoint(struct nvs_node *node, struct nvs_member *member)
{
	bool alone = member->held == 0 && __atomic_load_n(&member->inside, __ATOMIC_SEQ_CST) == 0;
	bool movable = __atomic_load_n(&member->immovable, __ATOMIC_SEQ_CST) == 0;
	if (!alone || !movable) {
		/* The real driver promises nothing about a process after an error: so this one is of no more use. */
		nvs_member_set(node, member, NVS_FAILED);
		return alone ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OPERATING_SYSTEM;
	}
	member->until = node->time + nvs_checkpoint_ns(node, member);
	nvs_member_set(node, member, NVS_CHECKPOINTING);
	return CUDA_SUCCESS;
}

static CUresult start_restore(struct nvs_node *node, struct nvs_member *member)
{
	if (member->stuck)
		return CUDA_ERROR_OPERATING_SYSTEM;
	double ns = nvs_restore_ns(node, member);
	member->stuck = !nvs_member_take_room(node, member);
	if (member->stuck)
		return CUDA_ERROR_OUT_OF_MEMORY;
	member->until = node->time + ns;
	nvs_member_set(node, member, NVS_RESTORING);
	return CUDA_SUCCESS;
}

static CUresult start(struct nvs_node *node, struct nvs_member *member, enum nvs_operation operation, unsigned limit_ms)
{
	switch (operation) {
	case NVS_LOCK:
		member->until = limit_ms > 0 ? node->time + 1e6 * limit_ms : INFINITY;
		nvs_member_set(node, member, NVS_LOCKING);
		nvs_members_advance(node);
		return CUDA_SUCCESS;
	case NVS_CHECKPOINT:
		return start_checkpoint(node, member);
	case NVS_RESTORE:
		return start_restore(node, member);
	default:
		nvs_member_set(node, member, NVS_RUNNING);
		return CUDA_SUCCESS;
	}
}

static const struct nvs_fault *planted(struct nvs_member *member, enum nvs_operation operation)
{
	static const struct nvs_fault none;
	const struct nvs_fault *fault = &member->faults[operation];
	uint32_t asked = ++member->asked[operation];
	return fault->at == 0 || fault->at == asked ? fault : &none;
}

static CUresult fail(
	struct nvs_node *node, struct nvs_member *member, enum nvs_operation operation, const struct nvs_fault *fault)
{
	if (fault->kind == NVS_BREAK)
		nvs_member_set(node, member, NVS_FAILED);
	else if (operation == NVS_RESTORE)
		member->stuck = 1;
	return (CUresult)fault->code;
}

/* ---- waiting for their end ---- */

/* Values that streams of this process wait for come by its own calls, of which there may be none now. */
static void help(const struct nvs_member *member)
{
	if (member != nvs_process.member)
		return;
	nvs_lock();
	nvs_catch_up();
	nvs_unlock();
}

static bool is_gone(const struct nvs_member *member, const struct nvs_member *as_it_was)
{
	return member->pid != as_it_was->pid || member->start_time != as_it_was->start_time ||
	       nvs_process_start(as_it_was->pid) != as_it_was->start_time;
}

/* Wait, with the node locked before and after, until nothing is under way: the stage then. Who is gone has failed. */
static enum nvs_stage settle(const struct nvs_member *member)
{
	struct nvs_node *node = nvs_process.node;
	const struct nvs_member as_it_was = *member;
	while (member->stage >= NVS_MOVING && !is_gone(member, &as_it_was)) {
		bool locking = member->stage == NVS_LOCKING;
		double until = member->until;
		uint32_t seen = node->wake;
		nvs_node_unlock(node);
		if (locking)
			help(member);
		nvs_node_sleep(node, until, seen);
		nvs_node_lock(node);
	}
	return is_gone(member, &as_it_was) ? NVS_FAILED : member->stage;
}

static void end(int pid, int with)
{
	if (pid == getpid() && with == SIGSEGV)
		die();
	kill(pid, with);
}

/* What came of an operation that was begun. */
static CUresult outcome(enum nvs_operation operation, enum nvs_stage stage)
{
	if (stage == steps[operation].to)
		return CUDA_SUCCESS;
	bool timed_out = operation == NVS_LOCK && stage == NVS_RUNNING;
	return timed_out ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult operate(int pid, enum nvs_operation operation, unsigned limit_ms)
{
	struct nvs_member *member;
	CUresult result = begin(pid, &member);
	if (result != CUDA_SUCCESS)
		return result;
	struct nvs_node *node = nvs_process.node;
	struct nvs_fault fault = {.kind = NVS_NO_FAULT};
	bool fatal = false;
	enum nvs_stage stage = settle(member);
	if (stage == steps[operation].from) {
		fault = *planted(member, operation);
		bool fails = fault.kind == NVS_RETURN || fault.kind == NVS_BREAK;
		result = fails ? fail(node, member, operation, &fault) : start(node, member, operation, limit_ms);
		fatal = !fails && operation == NVS_CHECKPOINT && result == CUDA_ERROR_OPERATING_SYSTEM;
	} else {
		result = stage == NVS_FAILED ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_ILLEGAL_STATE;
	}
	if (result == CUDA_SUCCESS)
		result = outcome(operation, settle(member));
	nvs_node_unlock(node);
	if (fatal)
		end(pid, SIGSEGV);
	if (result == CUDA_SUCCESS && fault.kind == NVS_KILL)
		end(pid, SIGKILL);
	return result;
}

/* ---- the calls ---- */

NVS_API cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	static const CUcheckpointLockArgs none;
	if (args != NULL &&
		(args->reserved0 != 0 || memcmp(args->reserved1, none.reserved1, sizeof(none.reserved1)) != 0))
		return CUDA_ERROR_INVALID_VALUE;
	return operate(pid, NVS_LOCK, args != NULL ? args->timeoutMs : 0);
}

NVS_API cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	static const CUcheckpointCheckpointArgs none;
	if (args != NULL && memcmp(args, &none, sizeof(none)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	return operate(pid, NVS_CHECKPOINT, 0);
}

/* To the cards that it came from. */
NVS_API cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	static const CUcheckpointRestoreArgs none;
	if (args != NULL && args->gpuPairsCount > 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (args != NULL && (memcmp(args->reserved, none.reserved, sizeof(none.reserved)) != 0 || args->reserved1 != 0))
		return CUDA_ERROR_INVALID_VALUE;
	return operate(pid, NVS_RESTORE, 0);
}

NVS_API cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	static const CUcheckpointUnlockArgs none;
	if (args != NULL && memcmp(args, &none, sizeof(none)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	return operate(pid, NVS_UNLOCK, 0);
}

NVS_API cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	static const CUprocessState during[] = {[NVS_LOCKING] = CU_PROCESS_STATE_RUNNING,
		[NVS_CHECKPOINTING] = CU_PROCESS_STATE_LOCKED,
		[NVS_RESTORING] = CU_PROCESS_STATE_CHECKPOINTED};
	struct nvs_member *member;
	if (state == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = begin(pid, &member);
	if (result != CUDA_SUCCESS)
		return result;
	*state = member->stage < NVS_MOVING ? (CUprocessState)member->stage : during[member->stage];
	nvs_node_unlock(nvs_process.node);
	return CUDA_SUCCESS;
}

/* The main thread stands in for the driver's own, which nothing here needs. */
NVS_API cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct nvs_member *member;
	if (tid == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = begin(pid, &member);
	if (result != CUDA_SUCCESS)
		return result;
	nvs_node_unlock(nvs_process.node);
	*tid = pid;
	return CUDA_SUCCESS;
}
