/* Modules: PTX text whose entries stand for the kernels that are built in. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "sim.h"

#define LONGEST_PTX ((size_t)64 << 20)

static const struct CUfunc_st functions[NVS_FUNCTIONS] = {
	[NVS_ADD_F32] = {"nvs_add_f32", 4, {8, 8, 8, 8}},
	[NVS_SCALE_F32] = {"nvs_scale_f32", 4, {8, 8, 4, 8}},
	[NVS_SPIN] = {"nvs_spin", 1, {8}},
};

struct CUmod_st {
	uint32_t magic;
	char *ptx;
	CUcontext ctx;
	uint64_t bytes; /* of the card, once it is loaded */
	bool loaded;
	CUmodule next;
};

static CUmodule modules; /* loaded ones */

enum nvs_function nvs_function_number(CUfunction function)
{
	return (enum nvs_function)(function - functions);
}

bool nvs_is_function(CUfunction function)
{
	return function >= functions && function < functions + NVS_FUNCTIONS;
}

/* Does the text declare `.entry name(`? */
static bool has_entry(const char *ptx, const char *name)
{
	size_t length = strlen(name);
	for (const char *at = strstr(ptx, ".entry"); at != NULL; at = strstr(at, ".entry")) {
		at += strlen(".entry");
		while (isspace((unsigned char)*at))
			at++;
		if (strncmp(at, name, length) == 0 && !isalnum((unsigned char)at[length]) && at[length] != '_' &&
			at[length] != '$')
			return true;
	}
	return false;
}

/* Loading waits for the first use of a function, as in a program that asks for it. */
static bool is_lazy(void)
{
	const char *mode = getenv("CUDA_MODULE_LOADING");
	return mode != NULL && strcmp(mode, "LAZY") == 0;
}

/* As large as its text, and its variables: `.global .b8 name[SIZE];` */
static uint64_t size_of(const char *ptx)
{
	uint64_t size = strlen(ptx);
	for (const char *at = strstr(ptx, ".global"); at != NULL; at = strstr(at + 1, ".global")) {
		const char *array = strpbrk(at, "[;"), *bytes = strstr(at, ".b8");
		if (array != NULL && *array == '[' && bytes != NULL && bytes < array)
			size += strtoull(array + 1, NULL, 10);
	}
	return size;
}

static CUresult load(CUmodule module)
{
	if (module->loaded)
		return CUDA_SUCCESS;
	if (module->ctx->magic != NVS_CONTEXT)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	struct nvs_growth to = module->ctx->growth;
	to.code += module->bytes;
	CUresult result = nvs_context_grow(module->ctx, to);
	module->loaded = result == CUDA_SUCCESS;
	return result;
}

static void unload(CUmodule module)
{
	if (!module->loaded || module->ctx->magic != NVS_CONTEXT)
		return;
	struct nvs_growth to = module->ctx->growth;
	to.code -= module->bytes;
	nvs_context_grow(module->ctx, to);
}

/* Compiled code starts with the magic of an ELF file or a fat binary; PTX is text with a version and a target. */
static CUresult module_new(CUcontext ctx, CUmodule *module, const char *image)
{
	static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fat[] = {0x50, 0xed, 0x55, 0xba};
	if (module == NULL || image == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (memcmp(image, elf, sizeof(elf)) == 0 || memcmp(image, fat, sizeof(fat)) == 0) {
		nvs_say_limits("it cannot run compiled GPU code");
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	if (strnlen(image, LONGEST_PTX) == LONGEST_PTX || strstr(image, ".version") == NULL)
		return CUDA_ERROR_INVALID_IMAGE;
	CUmodule made = malloc(sizeof(*made));
	char *ptx = strdup(image);
	if (made == NULL || ptx == NULL) {
		free(made);
		free(ptx);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*made = (struct CUmod_st){.magic = NVS_MODULE, .ptx = ptx, .ctx = ctx, .bytes = size_of(ptx), .next = modules};
	CUresult result = is_lazy() ? CUDA_SUCCESS : load(made);
	if (result != CUDA_SUCCESS) {
		free(made);
		free(ptx);
		return result;
	}
	modules = made;
	*module = made;
	return CUDA_SUCCESS;
}

NVS_API cuModuleLoadData(CUmodule *module, const void *image)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	return result == CUDA_SUCCESS ? nvs_end(module_new(ctx, module, image)) : result;
}

NVS_API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
	return cuModuleLoadData(module, image);
}

NVS_API cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	nvs_say_limits("it cannot run compiled GPU code");
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

NVS_API cuModuleLoad(CUmodule *module, const char *path)
{
	FILE *file = path == NULL ? NULL : fopen(path, "re");
	if (file == NULL)
		return CUDA_ERROR_NOT_FOUND;
	char *image = calloc(1, LONGEST_PTX);
	size_t length = image == NULL ? 0 : fread(image, 1, LONGEST_PTX - 1, file);
	fclose(file);
	CUresult result = length < 4 ? CUDA_ERROR_INVALID_IMAGE : cuModuleLoadData(module, image);
	free(image);
	return result;
}

NVS_API cuModuleUnload(CUmodule module)
{
	CUresult result = nvs_begin();
	if (result != CUDA_SUCCESS)
		return result;
	CUmodule *link = &modules;
	while (*link != NULL && *link != module)
		link = &(*link)->next;
	if (*link == NULL)
		return nvs_end(CUDA_ERROR_INVALID_HANDLE);
	unload(module);
	*link = module->next;
	module->magic = NVS_DEAD;
	free(module->ptx);
	free(module);
	return nvs_end(CUDA_SUCCESS);
}

NVS_API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUcontext ctx;
	CUresult result = nvs_begin_context(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (function == NULL || name == NULL || module == NULL || module->magic != NVS_MODULE)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	if (!has_entry(module->ptx, name))
		return nvs_end(CUDA_ERROR_NOT_FOUND);
	result = load(module);
	if (result != CUDA_SUCCESS)
		return nvs_end(result);
	for (int i = 0; i < NVS_FUNCTIONS; i++) {
		if (strcmp(functions[i].name, name) != 0)
			continue;
		*function = (CUfunction)(uintptr_t)&functions[i];
		return nvs_end(CUDA_SUCCESS);
	}
	char what[160];
	snprintf(what, sizeof(what), "it has no kernel '%.100s'", name);
	nvs_say_limits(what);
	return nvs_end(CUDA_ERROR_NOT_FOUND);
}

NVS_API cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *n, CUmodule module, const char *name)
{
	return nvs_pass(CUDA_ERROR_NOT_FOUND);
}

NVS_API cuModuleGetLoadingMode(int *mode)
{
	*mode = is_lazy() ? 2 : 1;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	if (value == NULL || !nvs_is_function(function))
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute == 0 ? 1024 : attribute == 4 ? 16 : attribute == 5 || attribute == 6 ? 75 : 0;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	return nvs_pass(nvs_is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

NVS_API cuFuncSetCacheConfig(CUfunction function, int config)
{
	return nvs_pass(nvs_is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

NVS_API cuFuncGetName(const char **name, CUfunction function)
{
	if (name == NULL || !nvs_is_function(function))
		return CUDA_ERROR_INVALID_VALUE;
	*name = function->name;
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	if (!nvs_is_function(function) || index >= function->parameters)
		return CUDA_ERROR_INVALID_VALUE;
	size_t at = 0;
	for (size_t i = 0; i <= index; i++)
		at = nvs_round_up(at, function->sizes[i]) + (i < index ? function->sizes[i] : 0);
	*offset = at;
	if (size != NULL)
		*size = function->sizes[index];
	return nvs_pass(CUDA_SUCCESS);
}

NVS_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
	if (!nvs_is_function(function) || threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = threads > 1024 ? 0 : 1024 / threads;
	return nvs_pass(CUDA_SUCCESS);
}

/* ---- what the CUDA runtime asks for ---- */

NVS_API cuLibraryLoadData(CUlibrary *library, const void *code, void *jit, void **jit_values, unsigned jit_count,
	void *options, void **values, unsigned count)
{
	nvs_say_limits("it cannot run compiled GPU code");
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

NVS_API cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *jit, void **jit_values, unsigned jit_count,
	void *options, void **values, unsigned count)
{
	nvs_say_limits("it cannot run compiled GPU code");
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

NVS_API cuGetExportTable(const void **table, const CUuuid *id)
{
	nvs_say_limits("it does not run the CUDA runtime");
	return CUDA_ERROR_NOT_SUPPORTED;
}
