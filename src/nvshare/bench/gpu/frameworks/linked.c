/* A C program linked directly against libcuda, with the same commands as worker.py: a line each on standard input, one
 * line of JSON as the answer. Every piece of its memory is counted up by one in each step, so that what it must hold is
 * known at any time.
 *
 *   gcc -O2 -I native/include linked.c -o linked -l:libcuda.so.1      then: linked FILE.ptx */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr p);
CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned value, size_t count);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, CUstream stream, void **params, void **extra);

#define MIB ((size_t)1 << 20)
#define PIECE (64 * MIB)
#define ELEMENTS (PIECE / sizeof(float))
#define PIECES_MAX 1024
#define HELD_MAX 256
#define PTX_MAX (1 << 20)

static CUdevice device;
static CUfunction add;
static CUdeviceptr ones, pieces[PIECES_MAX];
static unsigned piece_count;
static unsigned long done; /* steps */

#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		CUresult code_ = (call);                                                                               \
		if (code_ != CUDA_SUCCESS) {                                                                           \
			fprintf(stderr, "%s -> %d\n", #call, (int)code_);                                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static unsigned bits(float value)
{
	unsigned raw;
	memcpy(&raw, &value, sizeof(raw));
	return raw;
}

static void begin(const char *ptx_path)
{
	static char ptx[PTX_MAX];
	CUcontext context;
	CUmodule module;
	if (add != NULL)
		return;
	FILE *file = fopen(ptx_path, "re");
	if (file == NULL || fread(ptx, 1, sizeof(ptx) - 1, file) == 0) {
		perror(ptx_path);
		exit(1);
	}
	fclose(file);
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&add, module, "nvs_add_f32"));
	CHECK(cuMemAlloc_v2(&ones, PIECE));
	CHECK(cuMemsetD32_v2(ones, bits(1.0f), ELEMENTS));
}

static void launch(CUdeviceptr piece, uint64_t elements)
{
	void *params[] = {&piece, &piece, &ones, &elements};
	CHECK(cuLaunchKernel(add, elements == 0 ? 1 : 512, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
}

/* Piece i begins at i + 1. */
static void prepare(double gib)
{
	unsigned wanted = (unsigned)(gib * 1024 * (double)MIB / (double)PIECE);
	for (; piece_count < wanted && piece_count < PIECES_MAX; piece_count++) {
		CHECK(cuMemAlloc_v2(&pieces[piece_count], PIECE));
		CHECK(cuMemsetD32_v2(pieces[piece_count], bits((float)(piece_count + 1 + done)), ELEMENTS));
	}
	CHECK(cuCtxSynchronize());
	printf("{\"pieces\": %u}\n", piece_count);
}

static void steps(unsigned long count)
{
	double began = now();
	for (unsigned long step = 0; step < count; step++, done++)
		for (unsigned i = 0; i < piece_count; i++)
			launch(pieces[i], ELEMENTS);
	CHECK(cuCtxSynchronize());
	printf("{\"seconds\": %.9f, \"began\": %.9f, \"ended\": %.9f}\n", now() - began, began, now());
}

static void check(void)
{
	static float piece[ELEMENTS];
	unsigned long wrong = 0;
	for (unsigned i = 0; i < piece_count; i++) {
		CHECK(cuMemcpyDtoH_v2(piece, pieces[i], PIECE));
		for (size_t k = 0; k < ELEMENTS; k++)
			wrong += piece[k] != (float)(i + 1 + done);
	}
	printf("{\"right\": %s, \"wrong\": %lu, \"steps\": %lu}\n", wrong == 0 ? "true" : "false", wrong, done);
}

/* On the last processor that we may use, so that processes which are compared run on the same. */
static void stay_on_one_processor(void)
{
	cpu_set_t allowed, one;
	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return;
	CPU_ZERO(&one);
	for (int i = CPU_SETSIZE - 1; i >= 0 && CPU_COUNT(&one) == 0; i--)
		if (CPU_ISSET(i, &allowed))
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Tiny kernels back to back; the time of one, as the host sees it. */
static void launches(unsigned long count)
{
	stay_on_one_processor();
	CHECK(cuCtxSynchronize());
	double began = now();
	for (unsigned long i = 0; i < count; i++)
		launch(ones, 0);
	double submitted = now();
	CHECK(cuCtxSynchronize());
	printf("{\"seconds\": %.9f, \"submitting\": %.9f, \"each_us\": %.6f}\n", now() - began, submitted - began,
		(now() - began) / (double)count * 1e6);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

/* Allocates and frees at random for so long; whatever it is refused, it frees half and goes on. */
static void churn(double seconds, uint64_t seed)
{
	static CUdeviceptr held[HELD_MAX];
	unsigned count = 0;
	unsigned long made = 0, refused = 0;
	uint64_t random = seed * 2654435761u + 1;
	for (double end = now() + seconds; now() < end;) {
		uint64_t dice = next_random(&random);
		size_t size = dice % 4 == 0 ? (dice >> 8) % MIB + 1 : (dice >> 8) % (192 * MIB) + 1;
		if (count == HELD_MAX || (count > 0 && dice % 5 < 2)) {
			unsigned victim = (unsigned)((dice >> 40) % count);
			CHECK(cuMemFree_v2(held[victim]));
			held[victim] = held[--count];
			continue;
		}
		CUresult result = cuMemAlloc_v2(&held[count], size);
		if (result == CUDA_ERROR_OUT_OF_MEMORY) {
			refused++;
			for (unsigned half = count / 2; count > half;)
				CHECK(cuMemFree_v2(held[--count]));
			continue;
		}
		CHECK(result);
		CHECK(cuMemsetD32_v2(held[count++], 1, (size + 3) / 4 > 0 ? size / 4 : 0));
		made++;
	}
	CHECK(cuCtxSynchronize());
	unsigned kept = count;
	printf("{\"made\": %lu, \"refused\": %lu, \"held\": %u}\n", made, refused, kept);
	fflush(stdout);
	char line[64];
	if (fgets(line, sizeof(line), stdin) == NULL) /* the parent looks at what is held now */
		exit(1);
	while (count > 0)
		CHECK(cuMemFree_v2(held[--count]));
	CHECK(cuCtxSynchronize());
	printf("{\"held\": 0}\n");
}

int main(int argc, char **argv)
{
	char line[256], word[32];
	while (argc == 2 && fgets(line, sizeof(line), stdin) != NULL) {
		double first = 0;
		unsigned long second = 0;
		int fields = sscanf(line, "%31s %lf %lu", word, &first, &second);
		if (fields < 1 || strcmp(word, "quit") == 0)
			break;
		if (strcmp(word, "info") == 0) {
			printf("{\"pid\": %d, \"version\": \"C, linked against libcuda\"}\n", (int)getpid());
			fflush(stdout);
			continue;
		}
		begin(argv[1]);
		if (strcmp(word, "prepare") == 0)
			prepare(first);
		else if (strcmp(word, "steps") == 0)
			steps((unsigned long)first);
		else if (strcmp(word, "check") == 0)
			check();
		else if (strcmp(word, "launches") == 0)
			launches((unsigned long)first);
		else if (strcmp(word, "churn") == 0)
			churn(first, second);
		else
			return 2;
		fflush(stdout);
	}
	return 0;
}
