/* Memsets, and values written in stream order. All return at once: only the card's memory is concerned. */
#include "sim.h"
#include "vspace.h"

static uint32_t repeat(uint32_t value, size_t unit)
{
	return unit == 1 ? value * 0x01010101u : unit == 2 ? value * 0x00010001u : value;
}

static CUresult set(CUdeviceptr dst, size_t pitch, uint32_t value, size_t unit, size_t w, size_t h, CUstream handle)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	size_t width = w * unit;
	if (width == 0 || h == 0)
		return nvs_end(CUDA_SUCCESS);
	if (dst % unit != 0 || (h > 1 && (pitch < width || pitch % unit != 0)) || nvs_mapping_at(dst) == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_work work = nvs_work_kernel((double)width * (double)h, 0);
	work.count = NVS_COUNT_MEMSET;
	work.bytes = width * h;
	work.gap += nvs_managed_fault(stream->ctx, dst, h > 1 ? pitch * h : width);
	work.effect = (struct nvs_effect){.kind = NVS_EFFECT_SET, .set = {dst, pitch, width, h, repeat(value, unit)}};
	return nvs_end(nvs_submit(stream, &work, NULL));
}

#define MEMSET(bits, type)                                                                                             \
	NVS_API cuMemsetD##bits##_v2(CUdeviceptr dst, type v, size_t n)                                                \
	{                                                                                                              \
		return set(dst, 0, v, sizeof(type), n, 1, NULL);                                                       \
	}                                                                                                              \
	NVS_PT(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr dst, type v, size_t n), (dst, v, n))                          \
	NVS_API cuMemsetD##bits##Async(CUdeviceptr dst, type v, size_t n, CUstream stream)                             \
	{                                                                                                              \
		return set(dst, 0, v, sizeof(type), n, 1, stream);                                                     \
	}                                                                                                              \
	NVS_PT(cuMemsetD##bits##Async, _ptsz, (CUdeviceptr dst, type v, size_t n, CUstream stream),                    \
		(dst, v, n, stream))                                                                                   \
	NVS_API cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type v, size_t w, size_t h)                      \
	{                                                                                                              \
		return set(dst, pitch, v, sizeof(type), w, h, NULL);                                                   \
	}                                                                                                              \
	NVS_PT(cuMemsetD2D##bits##_v2, _ptds, (CUdeviceptr dst, size_t pitch, type v, size_t w, size_t h),             \
		(dst, pitch, v, w, h))                                                                                 \
	NVS_API cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type v, size_t w, size_t h, CUstream stream)   \
	{                                                                                                              \
		return set(dst, pitch, v, sizeof(type), w, h, stream);                                                 \
	}                                                                                                              \
	NVS_PT(cuMemsetD2D##bits##Async, _ptsz,                                                                        \
		(CUdeviceptr dst, size_t pitch, type v, size_t w, size_t h, CUstream stream),                          \
		(dst, pitch, v, w, h, stream))

MEMSET(8, unsigned char)
MEMSET(16, unsigned short)
MEMSET(32, unsigned)

static CUresult write_word(CUstream handle, CUdeviceptr p, uint32_t value)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (p % 4 != 0 || nvs_mapping_at(p) == NULL)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_work work = nvs_work_marker();
	work.effect = (struct nvs_effect){.kind = NVS_EFFECT_SET, .set = {p, 4, 4, 1, value}};
	return nvs_end(nvs_submit(stream, &work, NULL));
}

NVS_API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr p, cuuint32_t v, unsigned flags)
{
	return write_word(stream, p, v);
}
NVS_PT(cuStreamWriteValue32_v2, _ptsz, (CUstream stream, CUdeviceptr p, cuuint32_t v, unsigned flags),
	(stream, p, v, flags))

NVS_API cuStreamWriteValue32(CUstream stream, CUdeviceptr p, cuuint32_t v, unsigned flags)
{
	return write_word(stream, p, v);
}
NVS_PT(cuStreamWriteValue32, _ptsz, (CUstream stream, CUdeviceptr p, cuuint32_t v, unsigned flags),
	(stream, p, v, flags))

NVS_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr p, cuuint64_t v, unsigned flags)
{
	CUresult result = write_word(stream, p, (uint32_t)v);
	return result == CUDA_SUCCESS ? write_word(stream, p + 4, (uint32_t)(v >> 32)) : result;
}
NVS_PT(cuStreamWriteValue64_v2, _ptsz, (CUstream stream, CUdeviceptr p, cuuint64_t v, unsigned flags),
	(stream, p, v, flags))

NVS_API cuStreamWriteValue64(CUstream stream, CUdeviceptr p, cuuint64_t v, unsigned flags)
{
	return cuStreamWriteValue64_v2(stream, p, v, flags);
}
NVS_PT(cuStreamWriteValue64, _ptsz, (CUstream stream, CUdeviceptr p, cuuint64_t v, unsigned flags),
	(stream, p, v, flags))
