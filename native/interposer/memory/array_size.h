/* How many bytes an array takes, from its descriptor. The driver pads to its own tiles; this is the part that can be
 * known. */
#ifndef NVS_ARRAY_SIZE_H
#define NVS_ARRAY_SIZE_H

#include <stdint.h>

#include "cuda_abi.h"

uint64_t nvs_array_bytes(const CUDA_ARRAY_DESCRIPTOR *desc);
uint64_t nvs_array3d_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc);
/* All levels; each one is half as wide, high and deep as the one before. */
uint64_t nvs_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels);

#endif
