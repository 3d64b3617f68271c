/* What a slice is billed, as the client sees it. */
#include "client/client.h"

uint64_t nvs_bill_used(uint64_t clock, uint64_t gpu)
{
	/* The GPU's own clock is more exact at both ends than this process can be. It misses what was submitted first
	 * in another stream, so it is believed only within what can pass unseen. */
	uint64_t least = clock > NVS_GRAIN_NS ? clock - NVS_GRAIN_NS : clock;
	return gpu == 0 || gpu >= clock ? clock : gpu < least ? least : gpu;
}

uint64_t nvs_bill_busy(const struct nvs_seen *seen, uint64_t used)
{
	/* Samples can miss: where long and short kernels alternate they are few, and each speaks for its neighbours.
	 * What was in flight at every look is sure, but not everything has a mark to be seen by. */
	uint64_t busy = seen->samples > seen->in_flight ? seen->samples : seen->in_flight;
	if (busy == 0 && seen->marked)
		busy = NVS_NS_PER_US; /* it was looked at, and is hardly ever at work: not the same as "not known" */
	return busy < used ? busy : used;
}
