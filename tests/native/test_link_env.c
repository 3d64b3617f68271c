/* What the library reads from the environment: sizes as in config.py, and where the scheduler's socket is. */
#include "fake_gpu.h"

#include <string.h>
#include <sys/wait.h>

#include "base/log.h"
#include "base/env.h"

static void sizes_parse_as_in_python(void)
{
	static const struct {
		const char *text;
		uint64_t bytes; /* 0: refused */
	} cases[] = {
		{"4Gi", 4ull << 30},
		{"4GiB", 4ull << 30},
		{"4gib", 4ull << 30},
		{"4G", 4000000000ull},
		{"4GB", 4000000000ull},
		{" 512 Mi ", 512ull << 20},
		{"1.5Gi", 1536ull << 20},
		{"0.5K", 500},
		{"123", 123},
		{"7B", 7},
		{"1Pi", 1ull << 50},
		{"72057594037927936", 1ull << 56},
		{"72057594037927937", 0},
		{"99999999999999999999Pi", 0},
		{"", 0},
		{"Gi", 0},
		{"0", 0},
		{"0.0001", 0},
		{"-1", 0},
		{"4.", 0},
		{".5Gi", 0},
		{"4Gib4", 0},
		{"4Xi", 0},
		{"4 G i", 0},
		{"1.0123456789Gi", 0},
		{"999999999999999999999", 0},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t bytes = 0;
		bool parsed = nvs_parse_size(cases[i].text, &bytes);
		if (parsed != (cases[i].bytes != 0) || bytes != cases[i].bytes)
			fprintf(stderr, "\"%s\" gives %llu\n", cases[i].text, (unsigned long long)bytes);
		CHECK(parsed == (cases[i].bytes != 0) && bytes == cases[i].bytes);
	}
}

static void quotas_of_compute_parse_as_in_python(void)
{
	static const struct {
		const char *text;
		uint32_t floor, cap; /* 0 and 0: refused */
	} cases[] = {
		{"60", 0, 60},
		{"60%", 0, 60},
		{"060", 0, 60},
		{" 60 ", 0, 60},
		{"100", 0, 100},
		{"1", 0, 1},
		{"30..60", 30, 60},
		{"30%..60%", 30, 60},
		{"30..60%", 30, 60},
		{"60..60", 60, 60},
		{"30..", 30, 100},
		{"100..", 100, 100},
		{"..60", 0, 60},
		{"00000000000000000000007", 0, 7},
		{"60..30", 0, 0},
		{"", 0, 0},
		{"..", 0, 0},
		{"%", 0, 0},
		{"0", 0, 0},
		{"0..60", 0, 0},
		{"0..", 0, 0},
		{"30..0", 0, 0},
		{"101", 0, 0},
		{"30..101", 0, 0},
		{"101..", 0, 0},
		{"4294967297", 0, 0},
		{"99999999999999999999", 0, 0},
		{"-5", 0, 0},
		{"+5", 0, 0},
		{"30.60", 0, 0},
		{"30...60", 0, 0},
		{"30..60..", 0, 0},
		{"30 .. 60", 0, 0},
		{"half", 0, 0},
		{"30%%", 0, 0},
		{"..%", 0, 0},
		{"3 0", 0, 0},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint32_t floor = 0, cap = 0;
		bool parsed = nvs_parse_cores(cases[i].text, &floor, &cap);
		if (parsed != (cases[i].cap != 0) || floor != cases[i].floor || cap != cases[i].cap)
			fprintf(stderr, "\"%s\" gives %u..%u\n", cases[i].text, floor, cap);
		CHECK(parsed == (cases[i].cap != 0) && floor == cases[i].floor && cap == cases[i].cap);
	}
}

static void a_floor_is_taken(void)
{
	setenv("NVSHARE_GPU_CORE_LIMIT", "30..60", 1);
	CHECK(nvs_env()->core_floor == 30 && nvs_env()->core_limit == 60);
}

static void good_values_are_taken(void)
{
	setenv("NVSHARE_SOCK", "/run/here.sock", 1);
	setenv("NVSHARE_GPU_MEMORY_LIMIT", "1Gi", 1);
	setenv("NVSHARE_GPU_CORE_LIMIT", "40", 1);
	setenv("NVSHARE_IDLE_MS", "250", 1);
	setenv("NVSHARE_PRIORITY", "high", 1);
	setenv("NVSHARE_DISABLE_SWAP", "1", 1);
	setenv("NVSHARE_DEBUG", "on", 1);
	const struct nvs_env *env = nvs_env();
	CHECK(strcmp(env->socket_path, "/run/here.sock") == 0);
	CHECK(env->mem_limit == 1ull << 30 && env->core_limit == 40 && env->core_floor == 0 && env->idle_ms == 250 &&
		env->priority == 1 && env->debug && env->swap_off && !env->require);
	CHECK(env->pod_name[0] == '\0');
}

static void bad_values_give_the_defaults(void)
{
	unsetenv("NVSHARE_SOCK");
	setenv("XDG_RUNTIME_DIR", "/nowhere", 1);
	setenv("NVSHARE_GPU_MEMORY_LIMIT", "lots", 1);
	setenv("NVSHARE_GPU_CORE_LIMIT", "140", 1);
	setenv("NVSHARE_IDLE_MS", "0", 1);
	setenv("NVSHARE_PRIORITY", "urgent", 1);
	setenv("NVSHARE_REQUIRE", "perhaps", 1);
	setenv("NVSHARE_DISABLE_SWAP", "perhaps", 1);
	const struct nvs_env *env = nvs_env();
	CHECK(access(NVS_SYSTEM_SOCKET, F_OK) == 0 || strcmp(env->socket_path, "/nowhere/nvshare/scheduler.sock") == 0);
	CHECK(env->mem_limit == 0 && env->core_limit == 0 && env->core_floor == 0 && env->idle_ms == 0 &&
		env->priority == 0 && !env->require && !env->swap_off);
}

/* Each in a process of its own, for the environment is read once. */
static void run(void (*test)(void))
{
	int status = -1;
	pid_t child = fork();
	if (child == 0) {
		unsetenv("KUBERNETES_SERVICE_HOST");
		test();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	sizes_parse_as_in_python();
	quotas_of_compute_parse_as_in_python();
	run(a_floor_is_taken);
	run(good_values_are_taken);
	run(bad_values_give_the_defaults);
	return 0;
}
