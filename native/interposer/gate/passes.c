/* A wrapper for every function of the driver that hooks.def does not have: it is called as it is, through the entry. */
#include "resolve/passes.h"

#include "base/bars.h"
#include "gate/entry.h"

enum {
#define NVS_REASON(reason, bar, why) BAR_AFTER_##reason = NVS_BAR_##bar,
#include "surface.def"
};

#define PASS(symbol, takes, bar)                                                                                       \
	NVS_EXPORT CUresult symbol NVS_PARAMETERS_##takes                                                              \
	{                                                                                                              \
		if (__builtin_expect(nvs_passed.symbol == NULL, 0)) {                                                  \
			if (!nvs_resolve_driver())                                                                     \
				return CUDA_ERROR_NOT_INITIALIZED;                                                     \
			if (nvs_passed.symbol == NULL)                                                                 \
				return CUDA_ERROR_NOT_SUPPORTED;                                                       \
		}                                                                                                      \
		NVS_ENTER_DRIVER;                                                                                      \
		CUresult result = nvs_passed.symbol NVS_ARGUMENTS_##takes;                                             \
		return (int)(bar) == (int)NVS_BAR_NONE ? result : nvs_bar_after(result, (enum nvs_bar_reason)(bar));   \
	}

#define NVS_SURFACE(symbol, class, since, reason, takes)                                                               \
	NVS_UNLESS_HOOKED(reason, PASS)(symbol, takes, BAR_AFTER_##reason)
#include "surface.def"
