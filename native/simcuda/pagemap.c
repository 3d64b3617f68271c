#include "pagemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLOSEST_LOOK 512 /* pages with bytes of their own in one answer */

size_t nvs_page_size(void)
{
	static size_t size;
	if (size == 0)
		size = (size_t)sysconf(_SC_PAGESIZE);
	return size;
}

struct nvs_kept_file nvs_kept_file(int fd)
{
	struct stat status;
	if (fd < 0 || fstat(fd, &status) != 0)
		return (struct nvs_kept_file){.fd = -1};
	return (struct nvs_kept_file){.fd = fd, .device = status.st_dev, .inode = status.st_ino, .open = true};
}

bool nvs_kept_file_is_whole(const struct nvs_kept_file *file)
{
	struct stat status;
	return file->open && fstat(file->fd, &status) == 0 && status.st_dev == file->device &&
	       status.st_ino == file->inode;
}

void nvs_kept_file_close(struct nvs_kept_file *file)
{
	if (nvs_kept_file_is_whole(file))
		close(file->fd);
	file->open = false;
}

/* Open, from the last time if possible; -1: there is none. */
static int keep_open(struct nvs_kept_file *file, const char *path)
{
	if (!nvs_kept_file_is_whole(file))
		*file = nvs_kept_file(open(path, O_RDONLY | O_CLOEXEC));
	return file->open ? file->fd : -1;
}

static int maps_file(void)
{
	static struct nvs_kept_file file;
	return keep_open(&file, "/proc/self/maps");
}

static int pagemap_file(void)
{
	static struct nvs_kept_file file;
	return keep_open(&file, "/proc/self/pagemap");
}

static struct nvs_area judge(uint64_t end, bool private_and_open, uint64_t inode, const char *name)
{
	static const char pattern_name[] = "/memfd:" NVS_PATTERN_FILE;
	struct nvs_area area = {.end = end};
	unsigned pattern;
	if (!private_and_open)
		return area;
	if (inode == 0) {
		area.kind = NVS_AREA_ANONYMOUS;
	} else if (strncmp(name, pattern_name, sizeof(pattern_name) - 1) == 0 &&
		   sscanf(name + sizeof(pattern_name) - 1, "%8x", &pattern) == 1) {
		area.kind = NVS_AREA_PATTERN;
		area.pattern = pattern;
	}
	return area;
}

/* ---- single questions: Linux 6.11 for areas, 6.7 for pages (from the kernel's documented interface) ---- */

struct procmap_query {
	uint64_t size, query_flags, query_addr;
	uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
	uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
	uint64_t vma_name_addr, build_id_addr;
};
#define ASK_FOR_AREA _IOWR('f', 17, struct procmap_query)
#define READABLE 1u
#define WRITABLE 2u
#define SHARED 8u

struct page_region {
	uint64_t start, end, categories;
};

struct page_scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_PAGES _IOWR('f', 16, struct page_scan)
#define IS_FILE (1u << 2)
#define IS_PRESENT (1u << 3)
#define IS_SWAPPED (1u << 4)
#define IS_ZERO_PAGE (1u << 5)

static bool can_ask = true, can_scan = true;

static bool ask(uint64_t address, struct nvs_area *area)
{
	char name[128] = "";
	struct procmap_query query = {.size = sizeof(query),
		.query_addr = address,
		.vma_name_size = sizeof(name),
		.vma_name_addr = (uint64_t)(uintptr_t)name};
	int fd = maps_file();
	if (fd < 0)
		return false;
	if (ioctl(fd, ASK_FOR_AREA, &query) == 0) {
		bool good = (query.vma_flags & (READABLE | WRITABLE | SHARED)) == (READABLE | WRITABLE);
		*area = judge(query.vma_end, good, query.inode, name);
		return true;
	}
	can_ask = errno != ENOTTY && errno != EINVAL;
	*area = (struct nvs_area){.end = UINT64_MAX}; /* not mapped, or a long name */
	return can_ask;
}

static bool scan(uint64_t start, uint64_t end, uint64_t *own_start, uint64_t *own_end)
{
	struct page_region region;
	struct page_scan args = {.size = sizeof(args),
		.start = start,
		.end = end,
		.vec = (uint64_t)(uintptr_t)&region,
		.vec_len = 1,
		.max_pages = CLOSEST_LOOK,
		.category_inverted = IS_FILE | IS_ZERO_PAGE,
		.category_mask = IS_FILE | IS_ZERO_PAGE,
		.category_anyof_mask = IS_PRESENT | IS_SWAPPED,
		.return_mask = IS_PRESENT};
	int fd = pagemap_file();
	int found = fd < 0 ? -1 : ioctl(fd, SCAN_PAGES, &args);
	if (found < 0) {
		can_scan = fd >= 0 && errno != ENOTTY && errno != EINVAL;
		return false;
	}
	*own_start = found > 0 ? region.start : end;
	*own_end = found > 0 ? region.end : end;
	return true;
}

/* ---- tables of older kernels ---- */

struct entry {
	uint64_t start;
	struct nvs_area area;
};

static struct entry *entries; /* of /proc/self/maps, as long as nothing changed */
static size_t entry_count, entry_room;

static bool add_entry(const char *line)
{
	unsigned long long start, end, inode;
	char permissions[5];
	int name = 0;
	if (sscanf(line, "%llx-%llx %4s %*x %*x:%*x %llu %n", &start, &end, permissions, &inode, &name) != 4)
		return true;
	if (entry_count == entry_room) {
		size_t room = entry_room * 2 + 256;
		struct entry *grown = realloc(entries, room * sizeof(*grown));
		if (grown == NULL)
			return false;
		entries = grown;
		entry_room = room;
	}
	bool good = strncmp(permissions, "rw", 2) == 0 && permissions[3] == 'p';
	entries[entry_count++] = (struct entry){start, judge(end, good, inode, line + name)};
	return true;
}

static void read_entries(void)
{
	char line[512];
	FILE *file = fopen("/proc/self/maps", "re");
	if (file == NULL)
		return;
	bool whole_line = true, good = true;
	while (good && fgets(line, sizeof(line), file) != NULL) {
		if (whole_line)
			good = add_entry(line);
		whole_line = strchr(line, '\n') != NULL;
	}
	fclose(file);
	if (!good)
		nvs_areas_forget();
}

void nvs_areas_forget(void)
{
	entry_count = 0;
}

static struct nvs_area look_up(uint64_t address)
{
	if (entry_count == 0)
		read_entries();
	size_t low = 0, high = entry_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (entries[middle].area.end > address)
			high = middle;
		else
			low = middle + 1;
	}
	if (low == entry_count || entries[low].start > address)
		return (struct nvs_area){.end = low < entry_count ? entries[low].start : UINT64_MAX};
	return entries[low].area;
}

/* One word per page: bit 63 present, 62 swapped, 61 of a file. */
static bool read_pages(uint64_t start, uint64_t end, uint64_t *own_start, uint64_t *own_end)
{
	static uint64_t words[8192];
	size_t page = nvs_page_size(), found = 0;
	*own_start = *own_end = end;
	for (uint64_t at = start; at < end;) {
		size_t count = (end - at) / page < 8192 ? (end - at) / page : 8192;
		ssize_t got = pread(pagemap_file(), words, count * 8, (off_t)(at / page * 8));
		if (got < 8)
			return false;
		for (size_t i = 0; i < (size_t)got / 8; i++, at += page) {
			bool own = (words[i] >> 62 & 1) != 0 || words[i] >> 61 == 4;
			if (own && found++ == 0)
				*own_start = at;
			if (found > 0 && (!own || found == CLOSEST_LOOK)) {
				*own_end = own ? at + page : at;
				return true;
			}
		}
	}
	return true;
}

/* ---- */

struct nvs_area nvs_area_at(uint64_t address, uint64_t limit)
{
	struct nvs_area area;
	if (!can_ask || !ask(address, &area))
		area = look_up(address);
	area.end = area.end < limit ? area.end : limit;
	return area;
}

bool nvs_own_pages(uint64_t start, uint64_t end, uint64_t *own_start, uint64_t *own_end)
{
	return (can_scan && scan(start, end, own_start, own_end)) || read_pages(start, end, own_start, own_end);
}

size_t nvs_area_count(void)
{
	char text[4096];
	size_t lines = 0;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	ssize_t length;
	while (fd >= 0 && (length = read(fd, text, sizeof(text))) > 0)
		for (ssize_t i = 0; i < length; i++)
			lines += text[i] == '\n';
	if (fd >= 0)
		close(fd);
	return fd >= 0 ? lines : SIZE_MAX;
}

size_t nvs_area_limit(void)
{
	unsigned long limit = 65530;
	FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
	if (file == NULL)
		return limit;
	if (fscanf(file, "%lu", &limit) != 1)
		limit = 65530;
	fclose(file);
	return limit;
}
