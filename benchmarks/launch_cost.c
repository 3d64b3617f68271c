/* Launches a short kernel, or allocates and frees in stream order, as many times as the arguments say, as any program does
 * that loads the driver at run time: launch_cost launches|pairs N */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

#define KERNEL_NS 5000ull
#define BURST 100 /* launches between two synchronisations */
#define HELD 64   /* blocks that live on beside the pairs */

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .entry nvs_spin(.param .u64 ns)\n{ ret; }\n";

static void *library;

static void *function(const char *name)
{
	void *found = dlsym(library, name);
	if (found == NULL) {
		fprintf(stderr, "the driver has no %s\n", name);
		exit(2);
	}
	return found;
}

#define DRIVER(name, parameters) CUresult(*name) parameters = function(#name)

static void check(const char *what, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "%s failed: %d\n", what, result);
	exit(1);
}

static void launch(long launches)
{
	DRIVER(cuCtxSynchronize, (void));
	DRIVER(cuModuleLoadData, (CUmodule *, const void *));
	DRIVER(cuModuleGetFunction, (CUfunction *, CUmodule, const char *));
	DRIVER(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				       CUstream, void **, void **));
	CUmodule module;
	CUfunction kernel;
	check("cuModuleLoadData", cuModuleLoadData(&module, ptx));
	check("cuModuleGetFunction", cuModuleGetFunction(&kernel, module, "nvs_spin"));
	uint64_t ns = KERNEL_NS;
	void *parameters[] = {&ns};
	for (long i = 0; i < launches; i++) {
		check("cuLaunchKernel", cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
		if (i % BURST == BURST - 1)
			check("cuCtxSynchronize", cuCtxSynchronize());
	}
	check("cuCtxSynchronize", cuCtxSynchronize());
}

static void allocate(long pairs)
{
	DRIVER(cuStreamCreate, (CUstream *, unsigned));
	DRIVER(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
	DRIVER(cuMemFreeAsync, (CUdeviceptr, CUstream));
	CUstream stream;
	CUdeviceptr p;
	check("cuStreamCreate", cuStreamCreate(&stream, 1));
	for (int i = 0; i < HELD; i++) {
		CUdeviceptr gap;
		check("cuMemAllocAsync", cuMemAllocAsync(&gap, 3000 * (size_t)(i + 1), stream));
		check("cuMemAllocAsync", cuMemAllocAsync(&p, 5000, stream));
		check("cuMemFreeAsync", cuMemFreeAsync(gap, stream));
	}
	for (long i = 0; i < pairs; i++) {
		check("cuMemAllocAsync", cuMemAllocAsync(&p, 2000 * (size_t)(i % HELD + 1), stream));
		check("cuMemFreeAsync", cuMemFreeAsync(p, stream));
	}
}

int main(int argc, char **argv)
{
	long count = argc > 2 ? atol(argv[2]) : 0;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		fprintf(stderr, "no CUDA driver: %s\n", dlerror());
		return 2;
	}
	DRIVER(cuInit, (unsigned));
	DRIVER(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice));
	DRIVER(cuCtxSetCurrent, (CUcontext));
	CUcontext context;
	check("cuInit", cuInit(0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	if (argc > 1 && strcmp(argv[1], "pairs") == 0)
		allocate(count);
	else
		launch(count);
	return 0;
}
