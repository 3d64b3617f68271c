/* The only reader of environment variables in the library. Read once, at the first CUDA call. */
#ifndef NVS_ENV_H
#define NVS_ENV_H

#include <stdbool.h>
#include <stdint.h>

#define NVS_SYSTEM_SOCKET "/var/run/nvshare/scheduler.sock"

struct nvs_env {
	char socket_path[108]; /* NVSHARE_SOCK; else the system's if there; else the user's own (as config.py's
				  find_socket) */
	uint64_t mem_limit;    /* NVSHARE_GPU_MEMORY_LIMIT in bytes, 0 for none */
	uint32_t core_limit;   /* the cap of NVSHARE_GPU_CORE_LIMIT in percent, 0 for none */
	uint32_t core_floor;   /* its floor in percent, 0 for none */
	uint32_t idle_ms;    /* NVSHARE_IDLE_MS: a pause after which a memory turn is given up; 0: as patience.h says */
	uint32_t priority;   /* NVSHARE_PRIORITY: 1 for high */
	bool require;        /* NVSHARE_REQUIRE */
	bool swap_off;       /* NVSHARE_DISABLE_SWAP: memory stays on the card */
	bool single_oversub; /* NVSHARE_ENABLE_SINGLE_OVERSUB: this process may be larger than the card */
	bool simulated;      /* NVSHARE_SIM_NODE: on a simulated card */
	uint64_t sim_host;   /* NVSHARE_SIM_HOST_MEMORY: host memory for what leaves a simulated card; 0: any */
	bool debug;          /* NVSHARE_DEBUG */
	char pod_name[256];  /* NVSHARE_POD_NAME, else HOSTNAME when in a pod */
	char pod_namespace[64];
};

/* Valid from the first call on; later calls return the same. A bad value is named in one warning and its default used.
 */
const struct nvs_env *nvs_env(void);

/* "4Gi", "4GiB", "4G", "4GB", "1.5Gi", "512Mi", bytes; as config.py's parse_size. False when it does not parse, is
 * zero, or larger than 2^56. */
bool nvs_parse_size(const char *text, uint64_t *bytes);

/* "60", "30..60", "30..", "..60", each number with or without "%", white space around the whole; as cores.py's parse.
 * False, and nothing is written, when it does not parse, a number is not within 1 to 100, or the floor is above the
 * cap.
 */
bool nvs_parse_cores(const char *text, uint32_t *floor, uint32_t *cap);

#endif
