/* A wrapper for every function that submits work or needs its memory, made from the list. The common case is a handful
 * of instructions between the application and the driver, with one call that forwards the arguments where they are; all
 * else is behind that call, in the cold stand-in that takes the driver's place. */
#include "gate/entry.h"
#include "gate/gate.h"
#include "resolve/resolve.h"

/* In this library: no detour over the table of external symbols. */
extern struct nvs_real nvs_real __attribute__((visibility("hidden")));

#define NVS_SUBMIT(name, params, args, stream)                                                                         \
	static __attribute__((noinline, cold)) CUresult slow_##name params                                             \
	{                                                                                                              \
		bool known = nvs_resolve_driver() && nvs_real.name != NULL;                                            \
		CUresult refused = nvs_gate_enter_slow((CUstream)(stream));                                            \
		if (refused != CUDA_SUCCESS)                                                                           \
			return refused;                                                                                \
		return known ? nvs_real.name args : CUDA_ERROR_NOT_INITIALIZED;                                        \
	}                                                                                                              \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		CUresult(*real) params = nvs_real.name;                                                                \
		if (__builtin_expect(real == NULL || !nvs_gate_try_enter(), 0))                                        \
			real = slow_##name;                                                                            \
		CUresult result = real args;                                                                           \
		nvs_gate_leave();                                                                                      \
		return result;                                                                                         \
	}
#define NVS_SUBMIT_SET(name, params, args, stream, bytes)                                                              \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		if (!nvs_resolve_driver() || nvs_real.name == NULL)                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		CUresult result = nvs_gate_enter_sized((CUstream)(stream), bytes);                                     \
		if (__builtin_expect(result == CUDA_SUCCESS, 1))                                                       \
			result = nvs_real.name args;                                                                   \
		nvs_gate_leave();                                                                                      \
		return result;                                                                                         \
	}
#define NVS_SUBMIT_WAIT(name, params, args, stream)                                                                    \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		if (!nvs_resolve_driver() || nvs_real.name == NULL)                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		CUresult result = nvs_gate_enter((CUstream)(stream));                                                  \
		if (__builtin_expect(result == CUDA_SUCCESS, 1))                                                       \
			result = nvs_real.name args;                                                                   \
		nvs_gate_leave();                                                                                      \
		nvs_gate_waited();                                                                                     \
		return result;                                                                                         \
	}
#define NVS_WAIT(name, params, args)                                                                                   \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		if (!nvs_resolve_driver() || nvs_real.name == NULL)                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		NVS_ENTER_DRIVER;                                                                                      \
		CUresult result = nvs_real.name args;                                                                  \
		nvs_gate_waited();                                                                                     \
		return result;                                                                                         \
	}
/* A call that submits nothing waits for the memory it names, and keeps it where it is until it is through. */
#define NVS_NEEDS(name, params, args)                                                                                  \
	NVS_EXPORT CUresult name params                                                                                \
	{                                                                                                              \
		if (!nvs_resolve_driver() || nvs_real.name == NULL)                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		CUresult result = nvs_gate_enter_unmeasured();                                                         \
		if (__builtin_expect(result == CUDA_SUCCESS, 1))                                                       \
			result = nvs_real.name args;                                                                   \
		nvs_gate_leave();                                                                                      \
		return result;                                                                                         \
	}
#include "hooks.def"
