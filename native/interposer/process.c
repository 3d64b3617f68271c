#include "base/process.h"

#include <pthread.h>
#include <stdlib.h>

#include "gate/gate.h"
#include "gate/meter.h"
#include "ipc/ipc.h"
#include "link/link.h"
#include "link/sleep.h"
#include "memory/memory.h"
#include "memory/ordered/ordered.h"
#include "memory/swap/mover.h"
#include "memory/virtual/virtual.h"
#include "resolve/resolve.h"

static void child_after_fork(void)
{
	nvs_resolve_after_fork();
	nvs_link_after_fork();
	nvs_gate_after_fork();
	nvs_memory_after_fork();
	nvs_ordered_after_fork();
	nvs_virtual_after_fork();
	nvs_ipc_after_fork();
}

static void process_ends(void)
{
	nvs_sleep_end();
	nvs_meter_stop();
	nvs_mover_stop();
}

static void watch(void)
{
	pthread_atfork(NULL, NULL, child_after_fork);
	atexit(process_ends);
}

void nvs_process_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, watch);
}
