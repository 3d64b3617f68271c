#include "base/bars.h"

#include <stdatomic.h>

static _Atomic uint32_t raised; /* a bit for each */

void nvs_bar_raise(enum nvs_bar_reason bar)
{
	if (bar != NVS_BAR_NONE && (atomic_load_explicit(&raised, memory_order_relaxed) & 1u << bar) == 0)
		atomic_fetch_or(&raised, 1u << bar);
}

CUresult nvs_bar_after(CUresult result, enum nvs_bar_reason bar)
{
	if (result == CUDA_SUCCESS)
		nvs_bar_raise(bar);
	return result;
}

enum nvs_bar_reason nvs_bar(void)
{
	uint32_t bits = atomic_load(&raised);
	return bits != 0 ? (enum nvs_bar_reason)__builtin_ctz(bits) : NVS_BAR_NONE;
}
