/* Functions of the driver that hooks.def does not have: they pass, through the entry alone (gate/passes.c). */
#ifndef NVS_PASSES_H
#define NVS_PASSES_H

#include "resolve/resolve.h"
#include "signatures.h"

#define NVS_MEMBER(symbol, takes) CUresult(*symbol) NVS_PARAMETERS_##takes;
#define NVS_WRAPPER(symbol, takes) NVS_EXPORT CUresult symbol NVS_PARAMETERS_##takes;

/* The real functions; NULL when the driver has no such symbol. Valid after nvs_resolve_driver() returned true. */
struct nvs_passed {
#define NVS_SURFACE(symbol, class, since, reason, takes) NVS_UNLESS_HOOKED(reason, NVS_MEMBER)(symbol, takes)
#include "surface.def"
};
extern struct nvs_passed nvs_passed __attribute__((visibility("hidden")));

#define NVS_SURFACE(symbol, class, since, reason, takes) NVS_UNLESS_HOOKED(reason, NVS_WRAPPER)(symbol, takes)
#include "surface.def"

#endif
