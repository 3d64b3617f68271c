/* Why this process cannot sleep, as far as its calls told. Once raised, a bar stays. */
#ifndef NVS_BARS_H
#define NVS_BARS_H

#include "nvshare_protocol.h"

/* Any thread. NVS_BAR_NONE raises nothing. */
void nvs_bar_raise(enum nvs_bar_reason bar);
/* The first of those raised, or NVS_BAR_NONE. */
enum nvs_bar_reason nvs_bar(void);

#endif
