/* How symbols reach us, and the real functions behind them. hooks.def is the one list: it declares the table of real
 * functions below, the wrappers that are exported, and the map from a real function's address to its wrapper. */
#ifndef NVS_RESOLVE_H
#define NVS_RESOLVE_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "nvml_abi.h"

#define NVS_EXPORT __attribute__((visibility("default")))
#define NVS_PER_THREAD(stream) ((CUstream)(stream) != NULL ? (CUstream)(stream) : CU_STREAM_PER_THREAD)

struct nvs_real {
#define NVS_FUNCTION(ret, name, params) ret(*name) params;
#include "hooks.def"
};

/* Real driver functions. An entry is NULL when the driver has no such symbol. Valid after nvs_resolve_driver() returned
 * true. */
extern struct nvs_real nvs_real;

/* The same for NVML, from nvml_hooks.def. Valid after nvs_resolve_nvml() returned true. */
struct nvs_real_nvml {
#define NVML_FUNCTION(ret, name, params) ret(*name) params;
#include "nvml_hooks.def"
};
extern struct nvs_real_nvml nvs_nvml;

/* Find the real libcuda (once). False when there is none. Safe from any thread, from inside another library's
 * constructor, and before our own initialisation. */
bool nvs_resolve_driver(void);
bool nvs_resolve_nvml(void);

/* The wrapper for a real driver function's address, or the address itself. */
void *nvs_wrapper_for(void *real);

/* Declarations of all wrappers, so that each file that defines one is checked against the list. */
#define NVS_SUBMIT(name, params, args, stream) NVS_EXPORT CUresult name params;
#define NVS_HOOK(name, params, args) NVS_EXPORT CUresult name params;
#include "hooks.def"
#define NVML_HOOK(name, params, args) NVS_EXPORT nvmlReturn_t name params;
#include "nvml_hooks.def"

/* After fork, in the child. */
void nvs_resolve_after_fork(void);

/* The real dlsym, found in the C library itself. */
void *nvs_real_dlsym(void *handle, const char *name);

/* Set while this thread is inside the library: hooks pass straight through. */
extern __thread int nvs_inside __attribute__((tls_model("initial-exec")));

#endif
