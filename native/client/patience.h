/* How long a process that holds its memory turn may pause before it is taken for idle. Who gives its turn up and is
 * back at once has paid for a switch, or for two, and won nothing: it waits twice as long the next time, up to half of
 * what such a switch takes. Who stays away was right to go. So steps with pauses between them, of which a task may have
 * hundreds in a turn, do not become switches, and a task that has ended its work still goes soon. Pure: no clock. */
#ifndef NVS_PATIENCE_H
#define NVS_PATIENCE_H

#include <stdint.h>

#include "compute_constants.h"

struct nvs_patience {
	uint64_t grown;   /* ns; 0: not beyond the least */
	uint64_t gone_at; /* its turn was given up then, ns; 0: it was not, or it is known when it was back */
};

static inline uint64_t nvs_patience(const struct nvs_patience *patience)
{
	return patience->grown > NVS_RARELY_NS ? patience->grown : NVS_RARELY_NS;
}

static inline void nvs_patience_gone(struct nvs_patience *patience, uint64_t now)
{
	patience->gone_at = now;
}

/* There is work again. `switching`: what moving its memory out and in took the last time, ns. */
static inline void nvs_patience_back(struct nvs_patience *patience, uint64_t now, uint64_t switching)
{
	if (patience->gone_at == 0)
		return;
	uint64_t away = now - patience->gone_at;
	patience->gone_at = 0;
	if (away < switching / 4)
		patience->grown = 2 * nvs_patience(patience);
	else if (away > switching)
		patience->grown /= 2;
	if (patience->grown > switching / 2)
		patience->grown = switching / 2;
}

#endif
