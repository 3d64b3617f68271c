/* Copies. Those that touch pageable memory return when done, because the program may then reuse it. */
#include "sim.h"
#include "vspace.h"

/* True when all of [p, p + n) is memory that the driver knows (pageable host memory is not). */
static bool is_known(uint64_t p, size_t n)
{
	for (uint64_t at = p; at < p + n;) {
		struct nvs_mapping *mapping = nvs_mapping_at(at);
		if (mapping == NULL)
			return false;
		at = mapping->start + mapping->size;
	}
	return true;
}

enum wait { RETURN_AT_ONCE, WAIT_IF_PAGEABLE, WAIT_IF_HOST };

static CUresult submit_copy(CUstream handle, const struct nvs_effect *effect, enum wait wait)
{
	CUstream stream;
	CUresult result = nvs_begin_stream(handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	size_t bytes = effect->copy.width * effect->copy.height;
	if (bytes == 0)
		return nvs_end(CUDA_SUCCESS);
	if ((nvs_is_device_address(effect->copy.dst) && !is_known(effect->copy.dst, effect->copy.width)) ||
		(nvs_is_device_address(effect->copy.src) && !is_known(effect->copy.src, effect->copy.width)) ||
		effect->copy.dst == 0 || effect->copy.src == 0)
		return nvs_end(CUDA_ERROR_INVALID_VALUE);
	struct nvs_work work = nvs_work_copy(stream->ctx, effect->copy.dst, effect->copy.src, bytes);
	work.effect = *effect;
	bool device_only = work.engine == NVS_COMPUTE || work.count == NVS_COUNT_D2D;
	bool waits = wait == WAIT_IF_HOST ? !device_only : wait == WAIT_IF_PAGEABLE && work.path == NVS_PATH_PAGEABLE;
	if (waits && stream->capture == NULL)
		return nvs_end(nvs_submit_and_wait(stream, &work));
	return nvs_end(nvs_submit(stream, &work, NULL));
}

static CUresult copy(uint64_t dst, uint64_t src, size_t n, CUstream stream, enum wait wait)
{
	struct nvs_effect effect = {.kind = NVS_EFFECT_COPY, .copy = {dst, src, n, n, n, 1}};
	return submit_copy(stream, &effect, wait);
}

/* Device pointers are given where the driver must know the memory. */
static CUresult check_device(CUdeviceptr p, size_t n)
{
	CUresult result = nvs_begin();
	return result != CUDA_SUCCESS ? result
				      : nvs_end(n == 0 || is_known(p, n) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult copy_in(CUdeviceptr dst, const void *src, size_t n, CUstream stream, enum wait wait)
{
	CUresult result = check_device(dst, n);
	return result == CUDA_SUCCESS ? copy(dst, (uint64_t)(uintptr_t)src, n, stream, wait) : result;
}

static CUresult copy_out(void *dst, CUdeviceptr src, size_t n, CUstream stream, enum wait wait)
{
	CUresult result = check_device(src, n);
	return result == CUDA_SUCCESS ? copy((uint64_t)(uintptr_t)dst, src, n, stream, wait) : result;
}

static CUresult copy_within(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	CUresult result = check_device(src, n);
	if (result == CUDA_SUCCESS)
		result = check_device(dst, n);
	return result == CUDA_SUCCESS ? copy(dst, src, n, stream, RETURN_AT_ONCE) : result;
}

NVS_API cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
	return copy_in(dst, src, n, NULL, WAIT_IF_HOST);
}
NVS_PT(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dst, const void *src, size_t n), (dst, src, n))

NVS_API cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
	return copy_out(dst, src, n, NULL, WAIT_IF_HOST);
}
NVS_PT(cuMemcpyDtoH_v2, _ptds, (void *dst, CUdeviceptr src, size_t n), (dst, src, n))

NVS_API cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	return copy_within(dst, src, n, NULL);
}
NVS_PT(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n), (dst, src, n))

NVS_API cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
{
	return copy_in(dst, src, n, stream, WAIT_IF_PAGEABLE);
}
NVS_PT(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr dst, const void *src, size_t n, CUstream stream),
	(dst, src, n, stream))

NVS_API cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream)
{
	return copy_out(dst, src, n, stream, WAIT_IF_PAGEABLE);
}
NVS_PT(cuMemcpyDtoHAsync_v2, _ptsz, (void *dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream))

NVS_API cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	return copy_within(dst, src, n, stream);
}
NVS_PT(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream),
	(dst, src, n, stream))

NVS_API cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	return copy(dst, src, n, NULL, WAIT_IF_HOST);
}
NVS_PT(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n), (dst, src, n))

NVS_API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	return copy(dst, src, n, stream, WAIT_IF_PAGEABLE);
}
NVS_PT(cuMemcpyAsync, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream))

NVS_API cuMemcpyPeer(CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t n)
{
	return copy_within(dst, src, n, NULL);
}
NVS_PT(cuMemcpyPeer, _ptds, (CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t n),
	(dst, dc, src, sc, n))

NVS_API cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t n, CUstream stream)
{
	return copy_within(dst, src, n, stream);
}
NVS_PT(cuMemcpyPeerAsync, _ptsz,
	(CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t n, CUstream stream),
	(dst, dc, src, sc, n, stream))

/* Where the first byte of one side is; 0: in an array. */
static uint64_t start_of(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch)
{
	if (type == CU_MEMORYTYPE_ARRAY)
		return 0;
	uint64_t base = type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device;
	return base + y * pitch + x;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *from, CUstream stream, enum wait wait)
{
	if (from == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (from->srcMemoryType == CU_MEMORYTYPE_ARRAY || from->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct nvs_effect effect = {.kind = NVS_EFFECT_COPY};
	effect.copy.width = from->WidthInBytes;
	effect.copy.height = from->Height;
	effect.copy.src_pitch = from->srcPitch != 0 ? from->srcPitch : from->WidthInBytes;
	effect.copy.dst_pitch = from->dstPitch != 0 ? from->dstPitch : from->WidthInBytes;
	if (effect.copy.src_pitch < from->WidthInBytes || effect.copy.dst_pitch < from->WidthInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	effect.copy.src = start_of(from->srcMemoryType, from->srcHost, from->srcDevice, from->srcXInBytes, from->srcY,
		effect.copy.src_pitch);
	effect.copy.dst = start_of(from->dstMemoryType, from->dstHost, from->dstDevice, from->dstXInBytes, from->dstY,
		effect.copy.dst_pitch);
	return submit_copy(stream, &effect, wait);
}

NVS_API cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(copy, NULL, WAIT_IF_HOST);
}
NVS_PT(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *copy), (copy))

NVS_API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(copy, NULL, WAIT_IF_HOST);
}
NVS_PT(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *copy), (copy))

NVS_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	return copy_2d(copy, stream, WAIT_IF_PAGEABLE);
}
NVS_PT(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))

NVS_API cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, void *attrs, CUstream stream)
{
	return cuMemcpyAsync(dst, src, n, stream);
}
NVS_PT(cuMemcpyWithAttributesAsync, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, void *attrs, CUstream stream),
	(dst, src, n, attrs, stream))

NVS_API cuMemcpyBatchAsync_v2(void *dsts, void *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices,
	size_t attr_count, CUstream stream)
{
	CUresult result = CUDA_SUCCESS;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = cuMemcpyAsync(((CUdeviceptr *)dsts)[i], ((CUdeviceptr *)srcs)[i], sizes[i], stream);
	return result;
}
NVS_PT(cuMemcpyBatchAsync_v2, _ptsz,
	(void *dsts, void *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attr_count,
		CUstream stream),
	(dsts, srcs, sizes, count, attrs, indices, attr_count, stream))

NVS_API cuMemcpyBatchAsync(void *dsts, void *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices,
	size_t attr_count, size_t *fail, CUstream stream)
{
	if (fail != NULL)
		*fail = SIZE_MAX;
	return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, indices, attr_count, stream);
}
NVS_PT(cuMemcpyBatchAsync, _ptsz,
	(void *dsts, void *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attr_count,
		size_t *fail, CUstream stream),
	(dsts, srcs, sizes, count, attrs, indices, attr_count, fail, stream))
