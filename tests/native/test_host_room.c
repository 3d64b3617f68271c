/* How much host memory may be taken: the host, and control groups of both versions, from files of the test's own. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "memory/swap/hostmem.h"
#include "memory/swap/state.h"

#define MIB (1ull << 20)
#define GIB (1024 * MIB)

static char root[64];

static void put(const char *path, const char *text)
{
	char whole[256];
	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
		*slash = '\0';
		mkdir(whole, 0700);
		*slash = '/';
	}
	FILE *file = fopen(whole, "w");
	assert(file != NULL && fputs(text, file) >= 0);
	fclose(file);
}

static void clean(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -r '%s'", root);
	assert(system(command) == 0);
}

/* A host of 64 GiB, 40 of them available. */
static void begin(const char *groups)
{
	static char proc[96], group[96];
	snprintf(root, sizeof(root), "/tmp/nvshare-test-XXXXXX");
	assert(mkdtemp(root) != NULL);
	snprintf(proc, sizeof(proc), "%s/proc", root);
	snprintf(group, sizeof(group), "%s/sys", root);
	nvs_proc_root = proc;
	nvs_group_root = group;
	put("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   41943040 kB\n");
	put("/proc/self/cgroup", groups);
}

static void test_the_host_alone(void)
{
	begin("0::/\n");
	assert(nvs_host_room() == 39 * GIB); /* less a headroom of a twentieth, at most 1 GiB */
	clean();
}

static void test_a_container_limit_of_version_2(void)
{
	begin("0::/\n");
	put("/sys/memory.max", "10737418240\n");
	put("/sys/memory.current", "6442450944\n");
	assert(nvs_host_room() == 4 * GIB - 512 * MIB);
	/* WHEN a part of it is cache of files THEN that counts as free */
	put("/sys/memory.stat", "anon 5\ninactive_file 1073741824\nactive_file 7\n");
	assert(nvs_host_room() == 5 * GIB - 512 * MIB);
	put("/sys/memory.max", "max\n");
	assert(nvs_host_room() == 39 * GIB);
	clean();
}

static void test_every_limit_up_the_tree_counts(void)
{
	begin("0::/pods/a/task\n");
	put("/sys/pods/a/task/memory.max", "max\n");
	put("/sys/pods/a/task/memory.current", "0\n");
	put("/sys/pods/a/memory.max", "21474836480\n");
	put("/sys/pods/a/memory.current", "0\n");
	put("/sys/pods/memory.max", "2147483648\n");
	put("/sys/pods/memory.current", "1073741824\n");
	assert(nvs_host_room() == GIB - 2 * GIB / 20);
	clean();
}

static void test_a_limit_of_version_1_beside_other_controllers(void)
{
	begin("9:name=systemd:/x\n5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n");
	put("/sys/memory/x/memory.limit_in_bytes", "4294967296\n");
	put("/sys/memory/x/memory.usage_in_bytes", "4294967296\n");
	assert(nvs_host_room() == 0);
	put("/sys/memory/x/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
	assert(nvs_host_room() == 39 * GIB);
	clean();
}

/* In a container the path may be that of the host, while the tree starts at the container's own group. */
static void test_a_path_that_is_not_there_is_the_root(void)
{
	begin("4:memory:/kubepods/burstable/pod1\n");
	put("/sys/memory/memory.limit_in_bytes", "2147483648\n");
	put("/sys/memory/memory.usage_in_bytes", "1073741824\n");
	assert(nvs_host_room() == GIB - 2 * GIB / 20);
	clean();
}

static void test_a_system_that_tells_nothing_sets_no_limit(void)
{
	begin("0::/\n");
	nvs_proc_root = nvs_group_root = "/nonexistent";
	assert(nvs_host_room() == UINT64_MAX);
	clean();
}

int main(void)
{
	test_the_host_alone();
	test_a_container_limit_of_version_2();
	test_every_limit_up_the_tree_counts();
	test_a_limit_of_version_1_beside_other_controllers();
	test_a_path_that_is_not_there_is_the_root();
	test_a_system_that_tells_nothing_sets_no_limit();
	puts("PASS");
	return 0;
}
