/* Opening the shared state, its lock, its clock. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "node/node.h"

#define LONGEST_SLEEP_NS 20000000 /* so that the death of another process is noticed */
#define SHORTEST_SLEEP_NS 10000   /* below this a sleep takes longer than the wait */

void nvs_sim_say(const char *format, ...)
{
	char line[1024];
	va_list args;
	va_start(args, format);
	int length = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (length < 0)
		return;
	if (length > (int)sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	if (write(STDERR_FILENO, "simulated GPU: ", 15) < 0 || write(STDERR_FILENO, line, (size_t)length) < 0)
		return;
}

static int64_t wall_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void read_boot_id(char *to, size_t size)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, to, size - 1);
	to[length > 0 ? length : 0] = '\0';
	if (fd >= 0)
		close(fd);
}

static void fill_header(struct nvs_node *node)
{
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&node->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	node->version = NVS_NODE_VERSION;
	node->gpus_offset = offsetof(struct nvs_node, gpus);
	node->gpu_stride = sizeof(struct nvs_gpu);
	node->used_offset = offsetof(struct nvs_gpu, used);
	node->counters_offset = offsetof(struct nvs_gpu, counters);
	node->slots_offset = offsetof(struct nvs_node, slots);
	node->slot_stride = sizeof(struct nvs_slot);
	node->slot_count = NVS_SLOTS;
	node->accounts_offset = offsetof(struct nvs_node, accounts);
	node->account_stride = sizeof(struct nvs_account);
	node->account_count = NVS_ACCOUNTS;
	node->epoch_wall_ns = wall_ns();
	read_boot_id(node->boot_id, sizeof(node->boot_id));
	node->magic = NVS_NODE_MAGIC;
}

/* A state from before the last boot has a clock that is no longer true and only dead processes: start afresh. */
static bool is_stale(const struct nvs_node *node)
{
	char boot_id[sizeof(node->boot_id)];
	read_boot_id(boot_id, sizeof(boot_id));
	return node->magic != NVS_NODE_MAGIC || strcmp(boot_id, node->boot_id) != 0;
}

static struct nvs_node *map_state(int fd, const char *directory)
{
	struct stat status;
	if (fstat(fd, &status) != 0 || (status.st_size == 0 && ftruncate(fd, sizeof(struct nvs_node)) != 0)) {
		nvs_sim_say("cannot make the state of node %s: %s", directory, strerror(errno));
		return NULL;
	}
	if (status.st_size != 0 && status.st_size != sizeof(struct nvs_node)) {
		nvs_sim_say("node %s was made by another version; end it with: nvshare sim down", directory);
		return NULL;
	}
	struct nvs_node *node = mmap(NULL, sizeof(*node), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (node == MAP_FAILED) {
		nvs_sim_say("cannot map the state of node %s: %s", directory, strerror(errno));
		return NULL;
	}
	madvise(node, sizeof(*node), MADV_DONTDUMP);
	return node;
}

static bool prepare(struct nvs_node *node, int fd, const char *directory)
{
	char error[4352];
	if (!is_stale(node)) {
		if (node->version == NVS_NODE_VERSION)
			return true;
		nvs_sim_say("node %s was made by another version; end it with: nvshare sim down", directory);
		return false;
	}
	/* Emptied through the file, so that the state stays sparse. */
	if (ftruncate(fd, 0) != 0 || ftruncate(fd, sizeof(*node)) != 0)
		return false;
	if (!nvs_config_read(directory, node, error, sizeof(error))) {
		nvs_sim_say("%s; make the node with: nvshare sim up", error);
		return false;
	}
	fill_header(node);
	return true;
}

struct nvs_node *nvs_node_open(void)
{
	const char *directory = getenv("NVSHARE_SIM_NODE");
	char path[4096];
	if (directory == NULL || directory[0] == '\0') {
		nvs_sim_say("NVSHARE_SIM_NODE is not set; start the program with: nvshare run --sim 2xT4 -- PROGRAM");
		return NULL;
	}
	snprintf(path, sizeof(path), "%s/state", directory);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0) {
		nvs_sim_say("there is no node at %s (%s); make it with: nvshare sim up", directory, strerror(errno));
		return NULL;
	}
	flock(fd, LOCK_EX);
	struct nvs_node *node = map_state(fd, directory);
	if (node != NULL && !prepare(node, fd, directory)) {
		munmap(node, sizeof(*node));
		node = NULL;
	}
	flock(fd, LOCK_UN);
	close(fd);
	return node;
}

double nvs_node_now(const struct nvs_node *node)
{
	return (double)(wall_ns() - node->epoch_wall_ns) * node->speed;
}

/* The dead holder may have been in the middle of anything: sums are made new, engines look for their work again. */
static void repair(struct nvs_node *node)
{
	for (uint32_t i = 0; i < node->slot_top; i++) {
		struct nvs_slot *slot = &node->slots[i];
		slot->assigned = 0;
		for (int engine = 0; engine < NVS_ENGINES; engine++)
			slot->current[engine] = 0;
	}
	nvs_slot_recount(node);
	nvs_members_repair(node);
	nvs_members_reap(node, true);
}

void nvs_node_lock(struct nvs_node *node)
{
	if (pthread_mutex_lock(&node->lock) == EOWNERDEAD) {
		pthread_mutex_consistent(&node->lock);
		repair(node);
	}
	nvs_members_reap(node, false);
	nvs_node_advance(node, nvs_node_now(node));
	nvs_members_advance(node);
}

void nvs_node_unlock(struct nvs_node *node)
{
	pthread_mutex_unlock(&node->lock);
}

static void futex_sleep(struct nvs_node *node, uint32_t seen, int64_t ns)
{
	struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	/* The kernel may lengthen a sleep by the thread's slack, 50 us unless told: too much for work that takes as
	 * long. */
	int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	syscall(SYS_futex, &node->wake, FUTEX_WAIT, seen, &timeout, NULL, 0);
	if (slack > 0)
		prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

void nvs_node_sleep(struct nvs_node *node, double until, uint32_t seen)
{
	double ns = (until - nvs_node_now(node)) / node->speed;
	if (ns >= SHORTEST_SLEEP_NS) {
		futex_sleep(node, seen, ns < LONGEST_SLEEP_NS ? (int64_t)ns : LONGEST_SLEEP_NS);
		return;
	}
	while (nvs_node_now(node) < until)
		continue;
}

void nvs_node_wake(struct nvs_node *node)
{
	__atomic_add_fetch(&node->wake, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &node->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
