#include "base/env.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/log.h"

#define NAMESPACE_FILE "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
#define LARGEST_SIZE (1ull << 56) /* as config.py's MAX_SIZE */
#define WHOLE 100                 /* percent of one card's time */
#define SIZE_FORMS "use 4Gi or 4GiB (2^32 bytes), 4G or 4GB (4*10^9 bytes), 512Mi, or plain bytes"

static struct nvs_env environment;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- sizes ---- */

static const char *skip_space(const char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	return text;
}

/* The factor of a unit such as "Gi", "GB" or nothing; 0 when there is no such unit. */
static uint64_t unit_factor(const char *unit, size_t length)
{
	if (length == 0 || (length == 1 && toupper((unsigned char)unit[0]) == 'B'))
		return 1;
	static const char letters[] = "KMGTP";
	const char *letter = strchr(letters, toupper((unsigned char)unit[0]));
	if (letter == NULL)
		return 0;
	uint64_t base;
	if (length == 1 || (length == 2 && strncasecmp(unit + 1, "B", 1) == 0))
		base = 1000;
	else if ((length == 2 && strncasecmp(unit + 1, "I", 1) == 0) ||
		 (length == 3 && strncasecmp(unit + 1, "IB", 2) == 0))
		base = 1024;
	else
		return 0;
	uint64_t factor = 1;
	for (const char *step = letters; step <= letter; step++)
		factor *= base;
	return factor;
}

bool nvs_parse_size(const char *text, uint64_t *bytes)
{
	const char *at = skip_space(text);
	unsigned __int128 number = 0;
	uint64_t scale = 1;
	int whole = 0, fraction = 0;
	for (; isdigit((unsigned char)*at); at++, whole++)
		number = number * 10 + (unsigned)(*at - '0');
	if (*at == '.')
		for (at++; isdigit((unsigned char)*at) && fraction < 9; at++, fraction++, scale *= 10)
			number = number * 10 + (unsigned)(*at - '0');
	if (whole == 0 || whole > 20 || (at[-1] == '.'))
		return false;
	const char *unit = skip_space(at), *end = unit;
	while (isalpha((unsigned char)*end))
		end++;
	uint64_t factor = unit_factor(unit, (size_t)(end - unit));
	if (factor == 0 || *skip_space(end) != '\0')
		return false;
	/* Refused before it is multiplied: 29 digits times 2^50 would overflow 128 bits. */
	if (number / scale > LARGEST_SIZE / factor)
		return false;
	number = number * factor / scale;
	if (number == 0 || number > LARGEST_SIZE)
		return false;
	*bytes = (uint64_t)number;
	return true;
}

/* ---- compute quotas ---- */

/* Moves `at` behind a percentage; 0 when there is none, and more than WHOLE when it is none from 1 to WHOLE. */
static uint32_t read_percent(const char **at)
{
	uint32_t percent = 0;
	const char *start = *at;
	for (; isdigit((unsigned char)**at); (*at)++)
		percent = percent > WHOLE ? percent : percent * 10 + (uint32_t)(**at - '0');
	if (*at == start)
		return 0;
	if (**at == '%')
		(*at)++;
	return percent == 0 ? WHOLE + 1 : percent;
}

bool nvs_parse_cores(const char *text, uint32_t *floor, uint32_t *cap)
{
	const char *at = skip_space(text);
	uint32_t first = read_percent(&at), last = first, least = 0;
	if (strncmp(at, "..", 2) == 0) {
		at += 2;
		least = first;
		last = read_percent(&at);
		if (last == 0 && first != 0)
			last = WHOLE;
	}
	if (last == 0 || last > WHOLE || least > last || *skip_space(at) != '\0')
		return false;
	*floor = least;
	*cap = last;
	return true;
}

/* ---- single variables; an empty one counts as not set ---- */

static const char *given(const char *name)
{
	const char *text = getenv(name);
	return text != NULL && *skip_space(text) != '\0' ? text : NULL;
}

static void warn(const char *name, const char *text, const char *allowed, const char *fallback)
{
	NVS_WARN("%s='%s' cannot be used: allowed is %s; using the default, %s", name, text, allowed, fallback);
}

static bool read_switch(const char *name)
{
	const char *text = given(name);
	if (text == NULL)
		return false;
	static const char *const words[][2] = {{"0", "1"}, {"off", "on"}, {"false", "true"}, {"no", "yes"}};
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		for (int value = 0; value < 2; value++)
			if (strcasecmp(text, words[i][value]) == 0)
				return value == 1;
	warn(name, text, "on or off (also 1, 0, true, false, yes, no)", "off");
	return false;
}

static uint64_t read_size(const char *name)
{
	const char *text = given(name);
	uint64_t bytes = 0;
	if (text != NULL && !nvs_parse_size(text, &bytes))
		warn(name, text, "a size (" SIZE_FORMS ")", "none");
	return bytes;
}

/* A whole number from 1 on, or 0. */
static uint32_t read_number(const char *name, long most, const char *allowed, const char *fallback)
{
	const char *text = given(name);
	if (text == NULL)
		return 0;
	char *end;
	errno = 0;
	long value = strtol(text, &end, 10);
	if (errno == 0 && *skip_space(end) == '\0' && value >= 1 && value <= most)
		return (uint32_t)value;
	warn(name, text, allowed, fallback);
	return 0;
}

static void read_cores(const char *name)
{
	const char *text = given(name);
	if (text != NULL && !nvs_parse_cores(text, &environment.core_floor, &environment.core_limit))
		warn(name, text, "a whole number from 1 to 100, 30..60 or 30.. (30 guaranteed)", "100");
}

static uint32_t read_priority(const char *name)
{
	const char *text = given(name);
	if (text == NULL || strcasecmp(text, "normal") == 0)
		return 0;
	if (strcasecmp(text, "high") == 0)
		return 1;
	warn(name, text, "normal or high", "normal");
	return 0;
}

/* ---- the whole ---- */

static void find_socket(char *path, size_t size)
{
	const char *chosen = getenv("NVSHARE_SOCK");
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int length;
	if (chosen != NULL && *chosen != '\0')
		length = snprintf(path, size, "%s", chosen);
	else if (access(NVS_SYSTEM_SOCKET, F_OK) == 0)
		length = snprintf(path, size, "%s", NVS_SYSTEM_SOCKET);
	else if (runtime != NULL && *runtime != '\0')
		length = snprintf(path, size, "%s/nvshare/scheduler.sock", runtime);
	else
		length = snprintf(path, size, "/tmp/nvshare-%u/scheduler.sock", (unsigned)getuid());
	if ((size_t)length >= size)
		NVS_WARN("the socket's path is longer than %zu bytes: set NVSHARE_SOCK to a shorter one", size - 1);
}

static void read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, text, size - 1) : 0;
	text[length > 0 ? length : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (fd >= 0)
		close(fd);
}

static void find_pod(void)
{
	bool in_pod = getenv("KUBERNETES_SERVICE_HOST") != NULL;
	const char *name = given("NVSHARE_POD_NAME");
	if (name == NULL && in_pod)
		name = given("HOSTNAME");
	const char *namespace = given("NVSHARE_POD_NAMESPACE");
	if (name != NULL)
		snprintf(environment.pod_name, sizeof(environment.pod_name), "%s", name);
	if (namespace != NULL)
		snprintf(environment.pod_namespace, sizeof(environment.pod_namespace), "%s", namespace);
	else if (in_pod)
		read_file(NAMESPACE_FILE, environment.pod_namespace, sizeof(environment.pod_namespace));
}

static void read_environment(void)
{
	find_socket(environment.socket_path, sizeof(environment.socket_path));
	environment.mem_limit = read_size("NVSHARE_GPU_MEMORY_LIMIT");
	read_cores("NVSHARE_GPU_CORE_LIMIT");
	environment.idle_ms =
		read_number("NVSHARE_IDLE_MS", 60000, "a whole number of milliseconds from 1 to 60000", "auto");
	environment.priority = read_priority("NVSHARE_PRIORITY");
	environment.require = read_switch("NVSHARE_REQUIRE");
	environment.swap_off = read_switch("NVSHARE_DISABLE_SWAP");
	environment.single_oversub = read_switch("NVSHARE_ENABLE_SINGLE_OVERSUB");
	environment.simulated = given("NVSHARE_SIM_NODE") != NULL;
	environment.sim_host = read_size("NVSHARE_SIM_HOST_MEMORY");
	environment.debug = read_switch("NVSHARE_DEBUG");
	find_pod();
}

const struct nvs_env *nvs_env(void)
{
	pthread_once(&once, read_environment);
	return &environment;
}
