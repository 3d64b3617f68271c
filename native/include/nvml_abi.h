/* The part of NVML's binary interface that nvshare touches, written from its public documentation. */
#ifndef NVSHARE_NVML_ABI_H
#define NVSHARE_NVML_ABI_H

#include <stdint.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef enum nvmlReturn_t {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlMemory_t {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_t {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

/* Of the process lists, version 2 and later. */
typedef struct nvmlProcessInfo_v2_t {
	unsigned pid;
	unsigned long long used; /* bytes; NVML_NOT_AVAILABLE where the driver does not tell */
	unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;

#define NVML_NOT_AVAILABLE (~0ull)

#endif
