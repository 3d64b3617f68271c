#include "hostpages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pagemap.h"

#define LEAST ((size_t)64 << 10)    /* below this bytes are cheaper than asking the kernel */
#define FILE_SIZE ((size_t)2 << 20) /* of a pattern file: soon made, and 12 GiB need few enough mappings */
#define UNIT ((size_t)64 << 10)     /* that a pattern file is written by */
#define FARTHEST ((size_t)64 << 20) /* that one look at memory goes */
#define FILES 64                    /* kept open */
#define SCARCE 4096                 /* with fewer mappings left, counting again waits for as many refusals */

struct pattern_file {
	uint32_t pattern;
	struct nvs_kept_file file;
	uint64_t used;
};

static struct pattern_file files[FILES];
static uint64_t uses;

void nvs_fill_bytes(uint8_t *to, size_t phase, size_t length, uint32_t pattern)
{
	uint8_t word[4];
	memcpy(word, &pattern, sizeof(word));
	if (word[0] == word[1] && word[1] == word[2] && word[2] == word[3]) {
		memset(to, word[0], length);
		return;
	}
	size_t i = 0;
	for (; i < length && ((phase + i) & 3) != 0; i++)
		to[i] = word[(phase + i) & 3];
	for (; i + 4 <= length; i += 4)
		memcpy(to + i, word, sizeof(word));
	for (; i < length; i++)
		to[i] = word[(phase + i) & 3];
}

/* Sealed: nobody can ever make its name untrue. */
static int make_file(uint32_t pattern)
{
	static uint8_t unit[UNIT];
	struct iovec parts[FILE_SIZE / UNIT];
	char name[32];
	snprintf(name, sizeof(name), NVS_PATTERN_FILE "%08x", pattern);
	int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING); /* glibc: from 2.27 */
	if (fd < 0)
		return -1;
	nvs_fill_bytes(unit, 0, UNIT, pattern);
	for (size_t i = 0; i < FILE_SIZE / UNIT; i++)
		parts[i] = (struct iovec){unit, UNIT};
	if (writev(fd, parts, FILE_SIZE / UNIT) == (ssize_t)FILE_SIZE &&
		fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		return fd;
	close(fd);
	return -1;
}

/* The file of a pattern; -1: there is none, and none is made for so little. */
static int file_of(uint32_t pattern, size_t length)
{
	struct pattern_file *place = &files[0];
	for (struct pattern_file *at = files; at < files + FILES; at++) {
		if (at->pattern == pattern && nvs_kept_file_is_whole(&at->file)) {
			at->used = ++uses;
			return at->file.fd;
		}
		if (at->used < place->used)
			place = at;
	}
	if (length < FILE_SIZE)
		return -1;
	nvs_kept_file_close(&place->file);
	*place = (struct pattern_file){pattern, nvs_kept_file(make_file(pattern)), ++uses};
	return place->file.open ? place->file.fd : -1;
}

/* The kernel bounds the mappings of a process; most of them stay the program's own. */
static bool may_map(void)
{
	static size_t allowance, patience;
	if (allowance == 0 && patience == 0) {
		size_t limit = nvs_area_limit() / 8 * 5, count = nvs_area_count();
		allowance = count < limit ? limit - count : 0;
		patience = allowance < SCARCE ? SCARCE : 0;
	}
	bool may = allowance > 0;
	*(may ? &allowance : &patience) -= 1;
	return may;
}

static bool map_fixed(uint64_t at, size_t length, int flags, int fd)
{
	void *wanted = (void *)(uintptr_t)at;
	return mmap(wanted, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | flags, fd, 0) ==
	       wanted;
}

/* A failure may have come after the kernel removed what was there. */
static void close_hole(uint64_t at, size_t length)
{
	if (msync((void *)(uintptr_t)at, length, MS_ASYNC) != 0 && errno == ENOMEM)
		map_fixed(at, length, MAP_ANONYMOUS, -1);
}

static bool make_zero(uint64_t start, uint64_t end, bool anonymous)
{
	if (anonymous && madvise((void *)(uintptr_t)start, end - start, MADV_DONTNEED) == 0)
		return true;
	if (map_fixed(start, end - start, MAP_ANONYMOUS, -1))
		return true;
	close_hole(start, end - start);
	return false;
}

/* Exchange pages from start on; where that ended. Cut at multiples of the file's size, so that filling a buffer again
 * in other parts does not make ever more mappings. */
static uint64_t exchange(uint64_t start, uint64_t end, uint32_t pattern, bool anonymous)
{
	if (pattern == 0)
		return make_zero(start, end, anonymous) ? end : start;
	int fd = file_of(pattern, end - start);
	uint64_t at = start;
	while (fd >= 0 && at < end) {
		uint64_t next = (at / FILE_SIZE + 1) * FILE_SIZE;
		next = next < end ? next : end;
		if (!may_map())
			break;
		if (!map_fixed(at, next - at, 0, fd)) {
			close_hole(at, next - at);
			break;
		}
		at = next;
	}
	return at;
}

/* The longest run of areas at start whose pages may be exchanged; false: of such whose pages may not. */
static bool find_run(uint64_t start, uint64_t limit, uint64_t *end, bool *anonymous)
{
	struct nvs_area area = nvs_area_at(start, limit);
	bool exchangeable = area.kind != NVS_AREA_UNKNOWN;
	*anonymous = true;
	do {
		*anonymous &= area.kind == NVS_AREA_ANONYMOUS;
		*end = area.end;
		area = *end < limit ? nvs_area_at(*end, limit) : area;
	} while (*end < limit && exchangeable && area.kind != NVS_AREA_UNKNOWN);
	return exchangeable;
}

static void fill_pages(uint64_t start, uint64_t limit, uint32_t pattern)
{
	nvs_areas_forget();
	while (start < limit) {
		uint64_t end, done = start;
		bool anonymous;
		if (find_run(start, limit, &end, &anonymous))
			done = exchange(start, end, pattern, anonymous);
		nvs_areas_forget();
		if (done < end)
			nvs_fill_bytes((uint8_t *)(uintptr_t)done, 0, end - done, pattern);
		start = end;
	}
}

void nvs_host_fill(uint8_t *to, size_t length, uint32_t pattern, bool exchangeable)
{
	uint64_t start = (uint64_t)(uintptr_t)to, end = start + length, page = nvs_page_size();
	uint64_t first = (start + page - 1) / page * page, last = end / page * page;
	if (!exchangeable || last < first + LEAST) {
		nvs_fill_bytes(to, start, length, pattern);
		return;
	}
	nvs_fill_bytes(to, start, first - start, pattern);
	fill_pages(first, last, pattern);
	nvs_fill_bytes((uint8_t *)(uintptr_t)last, last, end - last, pattern);
}

/* The areas from start on whose untouched pages read the same, as one. */
static struct nvs_area alike(uint64_t start, uint64_t limit)
{
	struct nvs_area area = nvs_area_at(start, limit);
	while (area.kind != NVS_AREA_UNKNOWN && area.end < limit) {
		struct nvs_area next = nvs_area_at(area.end, limit);
		if (next.kind == NVS_AREA_UNKNOWN || next.pattern != area.pattern)
			break;
		area.end = next.end;
	}
	return area;
}

struct nvs_view nvs_host_view(const uint8_t *from, size_t max)
{
	struct nvs_view bytes = {.bytes = from, .length = max};
	uint64_t start = (uint64_t)(uintptr_t)from, page = nvs_page_size();
	if (max < LEAST)
		return bytes;
	struct nvs_area area = alike(start, start + (max < FARTHEST ? max : FARTHEST));
	bytes.length = area.end - start;
	uint64_t first = start / page * page, last = (area.end + page - 1) / page * page, own_start, own_end;
	if (area.kind == NVS_AREA_UNKNOWN || !nvs_own_pages(first, last, &own_start, &own_end))
		return bytes;
	if (own_start > start)
		return (struct nvs_view){
			.pattern = area.pattern, .length = (own_start < area.end ? own_start : area.end) - start};
	bytes.length = (own_end < area.end ? own_end : area.end) - start;
	return bytes;
}
