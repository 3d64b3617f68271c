/* Functions that exist and say that this card cannot do it: arrays, 3D copies, waits on memory, the older way to
 * share it between processes, graphs built or changed node by node, textures, launches of the oldest kind, other
 * interfaces' objects, parts of a card. */
#include "sim.h"

#define UNSUPPORTED(name, params)                                                                                      \
	NVS_API name params                                                                                            \
	{                                                                                                              \
		return nvs_pass(CUDA_ERROR_NOT_SUPPORTED);                                                             \
	}
#define UNSUPPORTED_PT(name, suffix, params) UNSUPPORTED(name, params) UNSUPPORTED(name##suffix, params)

UNSUPPORTED(cuLaunchCooperativeKernelMultiDevice, (void *list, unsigned count, unsigned flags))
UNSUPPORTED(cuLaunch, (CUfunction f))
UNSUPPORTED(cuLaunchGrid, (CUfunction f, int w, int h))
UNSUPPORTED(cuLaunchGridAsync, (CUfunction f, int w, int h, CUstream stream))

UNSUPPORTED_PT(cuMemcpyDtoA_v2, _ptds, (CUarray dst, size_t offset, CUdeviceptr src, size_t n))
UNSUPPORTED_PT(cuMemcpyAtoD_v2, _ptds, (CUdeviceptr dst, CUarray src, size_t offset, size_t n))
UNSUPPORTED_PT(cuMemcpyHtoA_v2, _ptds, (CUarray dst, size_t offset, const void *src, size_t n))
UNSUPPORTED_PT(cuMemcpyAtoH_v2, _ptds, (void *dst, CUarray src, size_t offset, size_t n))
UNSUPPORTED_PT(cuMemcpyAtoA_v2, _ptds, (CUarray dst, size_t to, CUarray src, size_t from, size_t n))
UNSUPPORTED_PT(cuMemcpyHtoAAsync_v2, _ptsz, (CUarray dst, size_t offset, const void *src, size_t n, CUstream stream))
UNSUPPORTED_PT(cuMemcpyAtoHAsync_v2, _ptsz, (void *dst, CUarray src, size_t offset, size_t n, CUstream stream))
UNSUPPORTED_PT(cuMemcpy3D_v2, _ptds, (const void *copy))
UNSUPPORTED_PT(cuMemcpy3DAsync_v2, _ptsz, (const void *copy, CUstream stream))
UNSUPPORTED_PT(cuMemcpy3DPeer, _ptds, (const void *copy))
UNSUPPORTED_PT(cuMemcpy3DPeerAsync, _ptsz, (const void *copy, CUstream stream))
UNSUPPORTED(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc))
UNSUPPORTED(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc))
UNSUPPORTED(cuArrayDestroy, (CUarray array))
UNSUPPORTED(cuMipmappedArrayCreate, (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels))
UNSUPPORTED(cuMipmappedArrayDestroy, (CUmipmappedArray array))

UNSUPPORTED_PT(cuStreamBatchMemOp, _ptsz, (CUstream stream, unsigned count, void *ops, unsigned flags))
UNSUPPORTED_PT(cuStreamBatchMemOp_v2, _ptsz, (CUstream stream, unsigned count, void *ops, unsigned flags))

UNSUPPORTED(cuIpcGetMemHandle, (void *handle, CUdeviceptr p))
UNSUPPORTED(cuIpcOpenMemHandle, (CUdeviceptr * p, CUipcMemHandle handle, unsigned flags))
UNSUPPORTED(cuIpcOpenMemHandle_v2, (CUdeviceptr * p, CUipcMemHandle handle, unsigned flags))
UNSUPPORTED(cuIpcCloseMemHandle, (CUdeviceptr p))
UNSUPPORTED(
	cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr p, size_t size, int type, unsigned long long flags))
UNSUPPORTED(cuImportExternalMemory, (CUexternalMemory * memory, const void *desc))

UNSUPPORTED(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t n))
UNSUPPORTED_PT(cuGraphInstantiateWithParams, _ptsz, (CUgraphExec * exec, CUgraph graph, void *params))
UNSUPPORTED(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *how))
UNSUPPORTED(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, void *how))
UNSUPPORTED(cuGraphAddMemcpyNode,
	(CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n, const void *copy, CUcontext ctx))
UNSUPPORTED(cuGraphAddMemsetNode,
	(CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n, const void *set, CUcontext ctx))
UNSUPPORTED(cuGraphAddNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n, void *params))
UNSUPPORTED(cuGraphAddNode_v2,
	(CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t n, void *params))
UNSUPPORTED(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const void *copy))
UNSUPPORTED(cuGraphMemsetNodeSetParams, (CUgraphNode node, const void *set))
UNSUPPORTED(cuGraphExecMemcpyNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *copy, CUcontext ctx))
UNSUPPORTED(cuGraphExecMemsetNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *set, CUcontext ctx))
UNSUPPORTED(cuGraphNodeSetParams, (CUgraphNode node, void *params))
UNSUPPORTED(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, void *params))
UNSUPPORTED(cuTexObjectCreate, (void *texture, const void *resource, const void *sampling, const void *view))
UNSUPPORTED(cuGraphAddBatchMemOpNode,
	(CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n, const void *ops))
UNSUPPORTED(
	cuGraphAddChildGraphNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n, CUgraph child))
UNSUPPORTED(cuGraphAddNode_v3,
	(CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t n, void *params))
UNSUPPORTED(cuGraphBatchMemOpNodeSetParams, (CUgraphNode node, const void *ops))
UNSUPPORTED(cuGraphClone, (CUgraph * clone, CUgraph graph))
UNSUPPORTED(cuGraphExecBatchMemOpNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *ops))
UNSUPPORTED(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraph child))
UNSUPPORTED(cuGraphNodeSetParams_v2, (CUgraphNode node, void *params))
UNSUPPORTED(cuTexRefSetAddress2D_v2, (void *texture, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr p, size_t pitch))
UNSUPPORTED(cuTexRefSetAddress2D_v3, (void *texture, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr p, size_t pitch))
UNSUPPORTED(cuTexRefSetAddress_v2, (size_t *offset, void *texture, CUdeviceptr p, size_t n))

UNSUPPORTED_PT(cuGraphicsMapResources, _ptsz, (unsigned count, void *resources, CUstream stream))
UNSUPPORTED_PT(cuGraphicsUnmapResources, _ptsz, (unsigned count, void *resources, CUstream stream))
UNSUPPORTED_PT(
	cuMemBatchDecompressAsync, _ptsz, (void *params, size_t count, unsigned flags, size_t *fail, CUstream stream))
UNSUPPORTED_PT(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
	(CUdeviceptr * ps, size_t *sizes, size_t count, CUmemLocation *to, size_t *indices, size_t to_count,
		unsigned long long flags, CUstream stream))
UNSUPPORTED_PT(cuMemDiscardBatchAsync, _ptsz,
	(CUdeviceptr * ps, size_t *sizes, size_t count, unsigned long long flags, CUstream stream))
UNSUPPORTED_PT(cuMemMapArrayAsync, _ptsz, (CUarrayMapInfo * list, unsigned count, CUstream stream))
UNSUPPORTED_PT(cuMemPrefetchBatchAsync, _ptsz,
	(CUdeviceptr * ps, size_t *sizes, size_t count, CUmemLocation *to, size_t *indices, size_t to_count,
		unsigned long long flags, CUstream stream))
UNSUPPORTED_PT(
	cuMemcpy3DBatchAsync, _ptsz, (size_t count, void *ops, size_t *fail, unsigned long long flags, CUstream stream))
UNSUPPORTED_PT(cuMemcpy3DBatchAsync_v2, _ptsz, (size_t count, void *ops, unsigned long long flags, CUstream stream))
UNSUPPORTED_PT(cuMemcpy3DWithAttributesAsync, _ptsz, (void *op, unsigned long long flags, CUstream stream))
UNSUPPORTED_PT(cuSignalExternalSemaphoresAsync, _ptsz,
	(const void *semaphores, const void *params, unsigned count, CUstream stream))
UNSUPPORTED_PT(cuWaitExternalSemaphoresAsync, _ptsz,
	(const void *semaphores, const void *params, unsigned count, CUstream stream))

UNSUPPORTED(cuGLCtxCreate, (CUcontext * ctx, unsigned flags, CUdevice device))
UNSUPPORTED(cuGLCtxCreate_v2, (CUcontext * ctx, unsigned flags, CUdevice device))
UNSUPPORTED(cuGreenCtxCreate, (CUgreenCtx * green, void *resources, CUdevice device, unsigned flags))
UNSUPPORTED(cuGreenCtxStreamCreate, (CUstream * stream, CUgreenCtx green, unsigned flags, int priority))
UNSUPPORTED(cuLogicalEndpointBindAddr,
	(cuuint32_t endpoint, CUdevice device, cuuint64_t offset, void *p, cuuint64_t size, unsigned long long flags))
UNSUPPORTED(cuLogicalEndpointBindMem,
	(cuuint32_t endpoint, CUdevice device, cuuint64_t at, CUmemGenericAllocationHandle handle, cuuint64_t offset,
		cuuint64_t size, unsigned long long flags))
UNSUPPORTED(cuMulticastBindMem, (CUmemGenericAllocationHandle group, size_t at, CUmemGenericAllocationHandle handle,
					size_t offset, size_t size, unsigned long long flags))
UNSUPPORTED(cuMulticastBindMem_v2,
	(CUmemGenericAllocationHandle group, CUdevice device, size_t at, CUmemGenericAllocationHandle handle,
		size_t offset, size_t size, unsigned long long flags))
UNSUPPORTED(cuMulticastBindAddr,
	(CUmemGenericAllocationHandle group, size_t offset, CUdeviceptr p, size_t size, unsigned long long flags))
UNSUPPORTED(cuMulticastBindAddr_v2, (CUmemGenericAllocationHandle group, CUdevice device, size_t offset, CUdeviceptr p,
					    size_t size, unsigned long long flags))
UNSUPPORTED_PT(cuStreamBeginRecaptureToGraph, _ptsz,
	(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *differs, void *data))
UNSUPPORTED(cuVDPAUCtxCreate, (CUcontext * ctx, unsigned flags, CUdevice device, cuuint32_t display, void *get))
UNSUPPORTED(cuVDPAUCtxCreate_v2, (CUcontext * ctx, unsigned flags, CUdevice device, cuuint32_t display, void *get))
