/* Errors that end a context. */
#ifndef NVS_FATAL_H
#define NVS_FATAL_H

#include <stdbool.h>

#include "cuda_abi.h"

/* After these a context never works again: nothing runs in it, and what is in its memory can be read by nobody any
 * more.
 */
static inline bool nvs_is_fatal(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return true;
	default:
		return false;
	}
}

#endif
