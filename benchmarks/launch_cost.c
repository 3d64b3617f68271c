/* Launches a short kernel as many times as the argument says, as any program does that loads the driver at run time. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"

#define KERNEL_NS 5000ull
#define BURST 100 /* launches between two synchronisations */

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

int main(int argc, char **argv)
{
	long launches = argc > 1 ? atol(argv[1]) : 0;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		fprintf(stderr, "no CUDA driver: %s\n", dlerror());
		return 2;
	}
	DRIVER(cuInit, (unsigned));
	DRIVER(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice));
	DRIVER(cuCtxSetCurrent, (CUcontext));
	DRIVER(cuCtxSynchronize, (void));
	DRIVER(cuModuleLoadData, (CUmodule *, const void *));
	DRIVER(cuModuleGetFunction, (CUfunction *, CUmodule, const char *));
	DRIVER(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				       CUstream, void **, void **));
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	check("cuInit", cuInit(0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
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
	return 0;
}
