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
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlMemory_t {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_t {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

/* The process lists: of the unversioned functions, */
typedef struct nvmlProcessInfo_v1_t {
	unsigned pid;
	unsigned long long used;
} nvmlProcessInfo_v1_t;

/* of version 2 and later, */
typedef struct nvmlProcessInfo_v2_t {
	unsigned pid;
	unsigned long long used; /* bytes; NVML_NOT_AVAILABLE where the driver does not tell */
	unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;

/* and with details. */
typedef struct nvmlProcessDetail_v1_t {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
	unsigned long long used_protected;
} nvmlProcessDetail_v1_t;

typedef struct nvmlProcessDetailList_v1_t {
	unsigned version, mode, count;
	nvmlProcessDetail_v1_t *processes;
} nvmlProcessDetailList_v1_t;

typedef struct nvmlProcessUtilizationSample_t {
	unsigned pid;
	unsigned long long time;
	unsigned sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;

typedef struct nvmlProcessUtilizationInfo_v1_t {
	unsigned long long time;
	unsigned pid, sm, memory, encoder, decoder, jpeg, flow;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct nvmlProcessesUtilizationInfo_v1_t {
	unsigned version, count;
	unsigned long long last_seen;
	nvmlProcessUtilizationInfo_v1_t *samples;
} nvmlProcessesUtilizationInfo_v1_t;

#define NVML_NOT_AVAILABLE (~0ull)

#endif
