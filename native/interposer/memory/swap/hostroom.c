/* How much host memory is left for this process: the host's own figure, and every limit on the way up the tree of
 * control groups. Inside a container the tree often starts at the container's own group; a path that is not there is
 * taken to be its root. */
#include "memory/swap/hostmem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/swap/state.h"

#define MIB (1ull << 20)
#define HEADROOM_MIN (64 * MIB)
#define HEADROOM_MAX (1024 * MIB)
#define NO_LIMIT (1ull << 60) /* what control groups without a limit say is above */

const char *nvs_proc_root = "/proc", *nvs_group_root = "/sys/fs/cgroup";

/* Reads a small file; empty when it cannot be read. */
static void read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, text, size - 1) : 0;
	text[length > 0 ? length : 0] = '\0';
	if (fd >= 0)
		close(fd);
}

/* The number behind a word at the start of a line. */
static bool find_number(const char *text, const char *word, uint64_t *value)
{
	size_t length = strlen(word);
	for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, word, length) != 0)
			continue;
		*value = strtoull(line + length, NULL, 10);
		return true;
	}
	return false;
}

/* Some is left for everybody else: a twentieth. */
static uint64_t less_headroom(uint64_t left, uint64_t of)
{
	uint64_t headroom = of / 20;
	headroom = headroom < HEADROOM_MIN ? HEADROOM_MIN : headroom > HEADROOM_MAX ? HEADROOM_MAX : headroom;
	return left > headroom ? left - headroom : 0;
}

static uint64_t host_room(void)
{
	char path[256], text[4096];
	uint64_t available, total;
	snprintf(path, sizeof(path), "%s/meminfo", nvs_proc_root);
	read_text(path, text, sizeof(text));
	if (!find_number(text, "MemAvailable:", &available) || !find_number(text, "MemTotal:", &total))
		return UINT64_MAX;
	return less_headroom(available << 10, total << 10);
}

static bool read_value(const char *directory, const char *name, uint64_t *value)
{
	char path[1024], text[64];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	read_text(path, text, sizeof(text));
	if (text[0] < '0' || text[0] > '9') /* also "max" */
		return false;
	*value = strtoull(text, NULL, 10);
	return true;
}

struct names {
	const char *limit, *used, *cache;
};
static const struct names version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
static const struct names version2 = {"memory.max", "memory.current", "inactive_file "};

/* What one group leaves. Its cache of files gives way when memory is needed. */
static uint64_t group_room(const char *directory, const struct names *names)
{
	char path[1024], text[8192];
	uint64_t limit, used, cache = 0;
	if (!read_value(directory, names->limit, &limit) || limit >= NO_LIMIT ||
		!read_value(directory, names->used, &used))
		return UINT64_MAX;
	snprintf(path, sizeof(path), "%s/memory.stat", directory);
	read_text(path, text, sizeof(text));
	find_number(text, names->cache, &cache);
	used -= cache < used ? cache : used;
	return less_headroom(limit > used ? limit - used : 0, limit);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* From the group up to the root. */
static uint64_t tree_room(const char *root, const char *group, const struct names *names)
{
	char directory[768];
	int length = snprintf(directory, sizeof(directory), "%s%s", root, group);
	uint64_t room = UINT64_MAX;
	if (length >= (int)sizeof(directory))
		return room;
	for (size_t top = strlen(root); strlen(directory) > top; *strrchr(directory, '/') = '\0')
		room = smaller(room, group_room(directory, names));
	return smaller(room, group_room(root, names));
}

/* Lines of /proc/self/cgroup: "0::/path" for version 2, "4:memory:/path" for version 1. */
uint64_t nvs_host_room(void)
{
	char path[256], text[4096], root[256];
	uint64_t room = host_room();
	snprintf(path, sizeof(path), "%s/self/cgroup", nvs_proc_root);
	read_text(path, text, sizeof(text));
	for (char *save, *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(line, ':'),
		     *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
		if (group == NULL)
			continue;
		*group++ = '\0';
		bool is_version1 = strstr(controllers + 1, "memory") != NULL;
		if (!is_version1 && controllers[1] != '\0')
			continue;
		snprintf(root, sizeof(root), "%s%s", nvs_group_root, is_version1 ? "/memory" : "");
		room = smaller(room,
			tree_room(root, strcmp(group, "/") != 0 ? group : "", is_version1 ? &version1 : &version2));
	}
	return room;
}
