/* Who has memory on a card without nvshare's knowing. */
#ifndef NVS_OUTSIDERS_H
#define NVS_OUTSIDERS_H

#include <stddef.h>

/* In words, the largest first: "python3 (pid 7, 900 MiB), Xorg (pid 9)". Empty when NVML shows nobody. May load NVML
 * and takes milliseconds: for messages only. */
void nvs_outsiders(const char *uuid, char *text, size_t size);

#endif
