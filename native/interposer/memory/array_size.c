#include "memory/array_size.h"

/* Made without memory; the application maps its own, which is counted by cuMemCreate. */
#define ARRAY3D_SPARSE 0x40u
#define ARRAY3D_DEFERRED_MAPPING 0x80u

/* Bytes of one channel. Formats that are not here (block-compressed, packed) take at most one byte per element and
 * channel or carry their channels in the format; one byte is the estimate that never refuses what would have fitted. */
static uint64_t channel_bytes(int format)
{
	switch (format) {
	case 0x02: /* unsigned 16 */
	case 0x09: /* signed 16 */
	case 0x10: /* half */
		return 2;
	case 0x03: /* unsigned 32 */
	case 0x0a: /* signed 32 */
	case 0x20: /* float */
		return 4;
	default:
		return 1;
	}
}

static uint64_t at_least_one(size_t extent)
{
	return extent > 0 ? extent : 1;
}

/* Saturates: an absurd size is refused by the quota, or by the driver where there is none. */
static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;
	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 2 : product;
}

uint64_t nvs_array3d_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	if (desc->Flags & (ARRAY3D_SPARSE | ARRAY3D_DEFERRED_MAPPING))
		return 0;
	uint64_t texel = channel_bytes(desc->Format) * at_least_one(desc->NumChannels);
	uint64_t plane = times(at_least_one(desc->Width), at_least_one(desc->Height));
	return times(times(plane, at_least_one(desc->Depth)), texel);
}

uint64_t nvs_array_bytes(const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR flat = {
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
	return nvs_array3d_bytes(&flat);
}

uint64_t nvs_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	CUDA_ARRAY3D_DESCRIPTOR level = *desc;
	uint64_t total = 0;
	for (unsigned i = 0; i < levels && i < 32 && total < UINT64_MAX / 2; i++) {
		total += nvs_array3d_bytes(&level);
		level.Width /= 2;
		level.Height /= 2;
		level.Depth /= 2;
	}
	return total < UINT64_MAX / 2 ? total : UINT64_MAX / 2;
}
