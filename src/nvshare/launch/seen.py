"""What this process really sees of GPUs, asked of the driver itself. ``python -m nvshare.launch.seen`` prints UUIDs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class SeenGpu:
    uuid: str
    total: int  # bytes that the driver says the card has


def seen_gpus() -> list[SeenGpu]:
    """The GPUs that CUDA shows to this process; none where there is no driver. Makes no context."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []  # also what the driver says where CUDA_VISIBLE_DEVICES is empty
    return [_gpu(cuda, ordinal) for ordinal in range(count.value)]


def _gpu(cuda: ctypes.CDLL, ordinal: int) -> SeenGpu:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    raw = (ctypes.c_char * 16)()
    # The later form tells a MIG instance's own UUID.
    if getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)(raw, device):
        cuda.cuDeviceGetUuid(raw, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    text = bytes(raw).hex()
    uuid = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return SeenGpu(uuid, total.value)


if __name__ == "__main__":
    for gpu in seen_gpus():
        print(gpu.uuid)
