#include "resolve/unknown.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/env.h"
#include "base/log.h"
#include "resolve/resolve.h"

static const char *const known_names[] = {
#define NVS_SURFACE(symbol, class, since, reason) #symbol,
#include "surface.def"
};

#define KNOWN (sizeof(known_names) / sizeof(known_names[0]))
#define MOST_NAMED 64 /* a driver that brings more is not served by a longer list */

static pthread_mutex_t unknown_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t known_once = PTHREAD_ONCE_INIT;
static uintptr_t known[KNOWN]; /* addresses of this driver's functions that the table has, in order */
static const void *driver_base;
static uintptr_t named[MOST_NAMED];
static unsigned named_count;

static int compare_addresses(const void *left, const void *right)
{
	uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
	return a < b ? -1 : a > b;
}

/* The library that an address belongs to. */
static const void *base_of(const void *address)
{
	Dl_info info;
	return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

static void find_known(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	for (size_t i = 0; driver != NULL && i < KNOWN; i++)
		known[i] = (uintptr_t)nvs_real_dlsym(driver, known_names[i]);
	qsort(known, KNOWN, sizeof(known[0]), compare_addresses);
	driver_base = base_of((const void *)nvs_real.cuInit);
	if (driver != NULL)
		dlclose(driver);
}

static bool first_time(uintptr_t address)
{
	pthread_mutex_lock(&unknown_lock);
	bool is_new = named_count < MOST_NAMED;
	for (unsigned i = 0; is_new && i < named_count; i++)
		is_new = named[i] != address;
	if (is_new)
		named[named_count++] = address;
	pthread_mutex_unlock(&unknown_lock);
	return is_new;
}

/* By address, because a known name may stand for a newer form of its function. */
void nvs_unknown_note(const char *name, void *address)
{
	uintptr_t wanted = (uintptr_t)address;
	if (!nvs_env()->debug || address == NULL)
		return;
	pthread_once(&known_once, find_known);
	if (driver_base == NULL || base_of(address) != driver_base ||
		bsearch(&wanted, known, KNOWN, sizeof(known[0]), compare_addresses) != NULL)
		return;
	if (first_time(wanted))
		NVS_DEBUG("%s: the driver has a form of it that this nvshare does not know; it passes through, "
			  "neither held back nor counted",
			name);
}

void nvs_unknown_after_fork(void)
{
	pthread_mutex_init(&unknown_lock, NULL);
}
