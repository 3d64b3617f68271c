/* Functions that exist and say that this card cannot do it: arrays, 3D copies, waits on memory, sharing between
 * processes, graphs built or changed node by node, textures, launches of the oldest kind. */
#include "sim.h"

#define UNSUPPORTED(name, params)                                                                                      \
	NVS_API name params                                                                                            \
	{                                                                                                              \
		return CUDA_ERROR_NOT_SUPPORTED;                                                                       \
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
UNSUPPORTED_PT(cuStreamWaitValue32, _ptsz, (CUstream stream, CUdeviceptr p, cuuint32_t v, unsigned flags))
UNSUPPORTED_PT(cuStreamWaitValue32_v2, _ptsz, (CUstream stream, CUdeviceptr p, cuuint32_t v, unsigned flags))
UNSUPPORTED_PT(cuStreamWaitValue64, _ptsz, (CUstream stream, CUdeviceptr p, cuuint64_t v, unsigned flags))
UNSUPPORTED_PT(cuStreamWaitValue64_v2, _ptsz, (CUstream stream, CUdeviceptr p, cuuint64_t v, unsigned flags))

UNSUPPORTED(cuIpcGetMemHandle, (void *handle, CUdeviceptr p))
UNSUPPORTED(cuMemExportToShareableHandle,
	(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))
UNSUPPORTED(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void *os_handle, int type))
UNSUPPORTED(
	cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr p, size_t size, int type, unsigned long long flags))
UNSUPPORTED(cuImportExternalMemory, (CUexternalMemory * memory, const void *desc))
UNSUPPORTED(cuMemPoolCreate, (CUmemoryPool * pool, const void *props))
UNSUPPORTED(cuMemPoolDestroy, (CUmemoryPool pool))

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
