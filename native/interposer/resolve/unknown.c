#include "resolve/unknown.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bars.h"
#include "base/env.h"
#include "base/log.h"
#include "resolve/resolve.h"

#define MOST_NAMED 64 /* a driver that brings more is not served by a longer list */

static pthread_mutex_t unknown_lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t named[MOST_NAMED];
static unsigned named_count;

/* The library that an address belongs to. */
static const void *base_of(const void *address)
{
	Dl_info info;
	return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
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
	if (nvs_wrapper_for(address) != address || base_of(address) != base_of((const void *)nvs_real.cuInit))
		return;
	nvs_bar_raise(NVS_BAR_UNGATED);
	if (nvs_env()->debug && first_time((uintptr_t)address))
		NVS_DEBUG("%s: the driver has a form of it that this nvshare does not know; it passes through, "
			  "neither held back nor counted, and the program cannot sleep",
			name);
}

void nvs_unknown_after_fork(void)
{
	pthread_mutex_init(&unknown_lock, NULL);
}
