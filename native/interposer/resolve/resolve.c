#include "resolve/resolve.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "resolve/libc_symbols.h"
#include "resolve/passes.h"
#include "resolve/unknown.h"

struct nvs_real nvs_real;
struct nvs_passed nvs_passed;
struct nvs_real_nvml nvs_nvml;
__thread int nvs_inside;

/* ---- the C library's lookups ---- */

typedef void *(*dlsym_fn)(void *, const char *);
typedef void *(*dlvsym_fn)(void *, const char *, const char *);

static void *no_dlsym(void *handle, const char *name)
{
	return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version)
{
	return NULL;
}

/* Read by trampoline.S after the route function returned. */
__attribute__((visibility("hidden"))) dlsym_fn nvs_libc_dlsym;
__attribute__((visibility("hidden"))) dlvsym_fn nvs_libc_dlvsym;

static void find_libc(void)
{
	if (__atomic_load_n(&nvs_libc_dlvsym, __ATOMIC_ACQUIRE) != NULL)
		return;
	dlsym_fn sym = (dlsym_fn)nvs_libc_symbol("dlsym");
	dlvsym_fn vsym = (dlvsym_fn)nvs_libc_symbol("dlvsym");
	__atomic_store_n(&nvs_libc_dlsym, sym != NULL ? sym : no_dlsym, __ATOMIC_RELEASE);
	__atomic_store_n(&nvs_libc_dlvsym, vsym != NULL ? vsym : no_dlvsym, __ATOMIC_RELEASE);
}

void *nvs_real_dlsym(void *handle, const char *name)
{
	find_libc();
	return nvs_libc_dlsym(handle, name);
}

/* ---- the list, as data ---- */

struct hook {
	const char *name;
	void *wrapper;
};

static const struct hook driver_hooks[] = {
#define NVS_SUBMIT(name, params, args, stream) {#name, (void *)name},
#define NVS_HOOK(name, params, args) {#name, (void *)name},
#include "hooks.def"
#define NVS_PASSED_HOOK(symbol, takes) {#symbol, (void *)symbol},
#define NVS_SURFACE(symbol, class, since, reason, takes) NVS_UNLESS_HOOKED(reason, NVS_PASSED_HOOK)(symbol, takes)
#include "surface.def"
};

static const struct hook nvml_hooks[] = {
#define NVML_HOOK(name, params, args) {#name, (void *)name},
#include "nvml_hooks.def"
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Power of two and at least four times the hooks, so that a probe is short. */
#define SLOTS 4096u
_Static_assert(COUNT(driver_hooks) * 4 < SLOTS, "grow SLOTS");

/* Name -> is it hooked? Filled at the first lookup, then only read. */
static const struct hook *by_name[SLOTS];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static uint32_t name_slot(const char *name)
{
	uint32_t hash = 2166136261u;
	for (; *name != '\0'; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return hash & (SLOTS - 1);
}

static void add_names(const struct hook *hooks, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t slot = name_slot(hooks[i].name);
		while (by_name[slot] != NULL)
			slot = (slot + 1) & (SLOTS - 1);
		by_name[slot] = &hooks[i];
	}
}

static void fill_names(void)
{
	add_names(driver_hooks, COUNT(driver_hooks));
	add_names(nvml_hooks, COUNT(nvml_hooks));
}

/* Most lookups of a process have nothing to do with us: two characters decide. */
static const struct hook *hook_named(const char *name)
{
	if (name == NULL || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
		return NULL;
	pthread_once(&names_once, fill_names);
	for (uint32_t slot = name_slot(name); by_name[slot] != NULL; slot = (slot + 1) & (SLOTS - 1))
		if (strcmp(by_name[slot]->name, name) == 0)
			return by_name[slot];
	return NULL;
}

/* ---- real address -> wrapper ---- */

struct mapping {
	void *real;
	void *wrapper;
};

static struct mapping by_address[SLOTS];

static uint32_t address_slot(const void *address)
{
	return (uint32_t)(((uintptr_t)address >> 4) * 2654435761u >> 7) & (SLOTS - 1);
}

static void map_address(void *real, void *wrapper)
{
	uint32_t slot = address_slot(real);
	while (by_address[slot].real != NULL && by_address[slot].real != real)
		slot = (slot + 1) & (SLOTS - 1);
	if (by_address[slot].real == NULL)
		by_address[slot] = (struct mapping){real, wrapper};
}

void *nvs_wrapper_for(void *real)
{
	for (uint32_t slot = address_slot(real); by_address[slot].real != NULL; slot = (slot + 1) & (SLOTS - 1))
		if (by_address[slot].real == real)
			return by_address[slot].wrapper;
	return real;
}

/* ---- finding the real libraries ---- */

enum { UNRESOLVED = 0, RESOLVED = 1 };
static _Atomic int driver_state, nvml_state;
static pthread_mutex_t resolve_lock = PTHREAD_MUTEX_INITIALIZER;

/* The library that the application loaded under this name, else the one the loader finds. */
static void *open_library(const char *name)
{
	void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
	return handle != NULL ? handle : dlopen(name, RTLD_LAZY);
}

static void fill_driver(void *handle)
{
#define NVS_FUNCTION(ret, name, params) *(void **)&nvs_real.name = nvs_real_dlsym(handle, #name);
#include "hooks.def"
#define NVS_RESOLVE_PASSED(symbol, takes) *(void **)&nvs_passed.symbol = nvs_real_dlsym(handle, #symbol);
#define NVS_SURFACE(symbol, class, since, reason, takes) NVS_UNLESS_HOOKED(reason, NVS_RESOLVE_PASSED)(symbol, takes)
#include "surface.def"
	for (size_t i = 0; i < COUNT(driver_hooks); i++) {
		void *real = nvs_real_dlsym(handle, driver_hooks[i].name);
		if (real != NULL)
			map_address(real, driver_hooks[i].wrapper);
	}
}

static void fill_nvml(void *handle)
{
#define NVML_FUNCTION(ret, name, params) *(void **)&nvs_nvml.name = nvs_real_dlsym(handle, #name);
#include "nvml_hooks.def"
}

/* The lock may be held while a library's constructors run; those that come back to us on this thread find nvs_inside
 * set and are passed through, so they cannot wait for it. */
static bool resolve(_Atomic int *state, const char *library, void (*fill)(void *))
{
	if (atomic_load_explicit(state, memory_order_acquire) == RESOLVED)
		return true;
	if (nvs_inside)
		return false;
	nvs_inside++;
	pthread_mutex_lock(&resolve_lock);
	if (atomic_load(state) != RESOLVED) {
		void *handle = open_library(library);
		if (handle != NULL) {
			fill(handle);
			atomic_store_explicit(state, RESOLVED, memory_order_release);
		}
	}
	pthread_mutex_unlock(&resolve_lock);
	nvs_inside--;
	return atomic_load(state) == RESOLVED;
}

bool nvs_resolve_driver(void)
{
	return resolve(&driver_state, "libcuda.so.1", fill_driver);
}

bool nvs_resolve_nvml(void)
{
	return resolve(&nvml_state, "libnvidia-ml.so.1", fill_nvml);
}

void nvs_resolve_after_fork(void)
{
	pthread_mutex_init(&resolve_lock, NULL);
	nvs_unknown_after_fork();
	nvs_inside = 0;
}

/* ---- dlsym and dlvsym ---- */

static bool is_nvml(const struct hook *hook)
{
	return hook >= nvml_hooks && hook < nvml_hooks + COUNT(nvml_hooks);
}

/* What the application gets for a hooked name that the real lookup found at `real`; NULL: let the real lookup answer. A
 * lookup that fails, or finds something that is not the driver's (another interposer), is not ours to answer. */
static void *answer(const struct hook *hook, void *real)
{
	if (real == NULL || real == hook->wrapper)
		return real;
	if (is_nvml(hook))
		return nvs_resolve_nvml() ? hook->wrapper : NULL;
	if (!nvs_resolve_driver())
		return NULL;
	void *wrapper = nvs_wrapper_for(real);
	return wrapper != real ? wrapper : NULL;
}

/* Without a hook it is the driver's own, or one that we do not know. */
static void note_lookup(void *handle, const char *name)
{
	bool is_driver = name != NULL && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
	void *found = is_driver ? nvs_libc_dlsym(handle, name) : NULL;
	if (found != NULL && nvs_resolve_driver())
		nvs_unknown_note(name, found);
}

__attribute__((visibility("hidden"), used)) void *nvs_route_dlsym(void *handle, const char *name)
{
	find_libc();
	const struct hook *hook = hook_named(name);
	/* RTLD_NEXT depends on who asks: the jump that follows keeps it right, and finds us or the driver as the link
	 * order says. */
	if (nvs_inside || handle == RTLD_NEXT)
		return NULL;
	if (hook != NULL)
		return answer(hook, nvs_libc_dlsym(handle, name));
	note_lookup(handle, name);
	return NULL;
}

__attribute__((visibility("hidden"), used)) void *nvs_route_dlvsym(void *handle, const char *name, const char *version)
{
	find_libc();
	const struct hook *hook = hook_named(name);
	if (hook == NULL || nvs_inside || handle == RTLD_NEXT)
		return NULL;
	return answer(hook, nvs_libc_dlvsym(handle, name, version));
}
