/* What this folder remembers. Each variable belongs to one file, which guards it; tests check that nothing is left. */
#ifndef NVS_MEMORY_STATE_H
#define NVS_MEMORY_STATE_H

struct counted;
struct nvs_allocation;

/* table.c: the same allocations twice, by address (tsearch) and as a list. */
extern void *nvs_allocation_tree __attribute__((visibility("hidden")));
extern struct nvs_allocation *nvs_allocation_list __attribute__((visibility("hidden")));

/* counted.c: the same entries twice, by kind and key (tsearch) and as a list. */
extern void *nvs_counted_tree __attribute__((visibility("hidden")));
extern struct counted *nvs_counted_list __attribute__((visibility("hidden")));

/* memory.c: so many small frees share a drain. */
#define NVS_PARKED_PIECES 64

#endif
