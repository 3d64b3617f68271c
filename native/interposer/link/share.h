/* What the run, pod or task around this process has of a card, asked of the scheduler. */
#ifndef NVS_SHARE_H
#define NVS_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#define NVS_UUID_TEXT 96 /* the longest that NVML gives, with its end */

struct nvs_process_entry;

struct nvs_group_share {
	uint64_t card; /* bytes; the size of the card as its tasks see it */
	uint64_t used; /* bytes that all of its processes have allocated */
	uint32_t count;
	struct nvs_process_entry *processes; /* to be given to free */
};

/* Also in processes that never use CUDA (nvidia-smi): a connection of its own, for this one question. False: there is
 * no scheduler, it does not answer within a moment, or we belong to nobody it knows; then *share is untouched. */
bool nvs_share_ask(const char *uuid, struct nvs_group_share *share);

#endif
