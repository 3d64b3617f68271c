/* What the kernel knows about this process's memory: which kind of mapping is at an address, which of its pages hold
 * bytes of their own. Nothing is remembered, so nothing can be out of date: a program may map, unmap, write and fork as
 * it likes. The newest kernels answer single questions; older ones have their tables read. */
#ifndef NVS_SIM_PAGEMAP_H
#define NVS_SIM_PAGEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A file whose name starts so holds one 32-bit word over and over; its eight hexadecimal digits follow. */
#define NVS_PATTERN_FILE "nvshare-pattern-"

enum nvs_area_kind {
	NVS_AREA_UNKNOWN, /* not mapped, or of any other kind, or the kernel does not say */
	NVS_AREA_ANONYMOUS,
	NVS_AREA_PATTERN, /* a private mapping of a pattern file */
};

/* The part of a mapping from the address that was asked for. Kinds other than UNKNOWN are private, readable and
 * writable. */
struct nvs_area {
	uint64_t end;
	enum nvs_area_kind kind;
	uint32_t pattern; /* that untouched pages read as */
};

/* A descriptor that is kept open in somebody else's program, which may close it or give its number to another file. */
struct nvs_kept_file {
	int fd; /* as made; used only while nvs_kept_file_is_whole */
	dev_t device;
	ino_t inode;
	bool open;
};

struct nvs_kept_file nvs_kept_file(int fd);
bool nvs_kept_file_is_whole(const struct nvs_kept_file *file);
void nvs_kept_file_close(struct nvs_kept_file *file);

/* `end` of the answer is at most `limit`. */
struct nvs_area nvs_area_at(uint64_t address, uint64_t limit);
/* After mappings changed, and before memory is looked at anew. */
void nvs_areas_forget(void);
/* The first run of pages in [start, end), whole pages of one area, that hold bytes of their own: written since they
 * were mapped. Empty at `end` when there is none; at most 2 MiB are looked at closely. False: the kernel does not say.
 */
bool nvs_own_pages(uint64_t start, uint64_t end, uint64_t *own_start, uint64_t *own_end);
/* How many mappings the process has, and may have. */
size_t nvs_area_count(void);
size_t nvs_area_limit(void);
size_t nvs_page_size(void);

#endif
