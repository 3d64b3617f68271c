"""A program that uses CUDA as any other does, run preloaded on a simulated node: ``memory_program.py CASE``.

It knows nothing of nvshare. Each case prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
from typing import Any

MIB = 1 << 20
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED = 0, 1, 2, 801
CONTEXT, MEMORY_TYPE, BUFFER_ID, RANGE_START, RANGE_SIZE = 1, 2, 7, 11, 12


class CudaError(Exception):
    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} answered {code}")
        self.code = code


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("security", ctypes.c_void_p),
        ("maximum", ctypes.c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    )


class Cuda:
    """The driver API by name, as a linked program reaches it; every call that fails raises."""

    def __init__(self, device: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", ctypes.c_uint(0))
        self.context = ctypes.c_void_p()
        self("cuCtxCreate_v2", ctypes.byref(self.context), ctypes.c_uint(0), ctypes.c_int(device))

    def __call__(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != SUCCESS:
            raise CudaError(function, code)

    def code(self, function: str, *arguments: Any) -> int:
        return int(getattr(self._library, function)(*arguments))

    def alloc(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer: int) -> None:
        self("cuMemFree_v2", ctypes.c_uint64(pointer))

    def info(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def write(self, pointer: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw

    def attribute(self, pointer: int, attribute: int) -> int:
        value = ctypes.c_uint64()
        self("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_uint64(pointer))
        return value.value

    def pool(self, handle_types: int = 0) -> ctypes.c_void_p:
        """A new pool of memory of device 0."""
        pool, properties = ctypes.c_void_p(), PoolProperties(1, handle_types, 1, 0)
        self("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
        return pool

    def destroy(self) -> None:
        self("cuCtxDestroy_v2", self.context)


def alloc_code(cuda: Cuda, size: int) -> int:
    try:
        cuda.alloc(size)
    except CudaError as error:
        return error.code
    return SUCCESS


def quota() -> dict[str, Any]:
    cuda = Cuda()
    total = ctypes.c_size_t()
    cuda("cuDeviceTotalMem_v2", ctypes.byref(total), ctypes.c_int(0))
    report: dict[str, Any] = {"device_total": total.value, "at_start": cuda.info()}
    pointer = cuda.alloc(748 * MIB)
    report["with_748"] = cuda.info()
    report["too_much"] = alloc_code(cuda, 277 * MIB)
    rest = cuda.alloc(276 * MIB)
    report["full"] = cuda.info()
    report["small_when_full"] = alloc_code(cuda, 1)
    cuda.free(pointer)
    report["after_free"] = alloc_code(cuda, 700 * MIB)
    cuda.free(rest)
    return report


class Held:
    """An allocation with a pattern at its beginning and its end."""

    def __init__(self, cuda: Cuda, size: int, seed: int) -> None:
        self.pointer, self.size = cuda.alloc(size), size
        self._edge = random.Random(seed).randbytes(min(size, 256))
        for at in (0, size - len(self._edge)):
            cuda.write(self.pointer + at, self._edge)

    def is_intact(self, cuda: Cuda) -> bool:
        # The later write wins where the two edges overlap.
        return cuda.read(self.pointer + self.size - len(self._edge), len(self._edge)) == self._edge and (
            self.size < 2 * len(self._edge) or cuda.read(self.pointer, len(self._edge)) == self._edge
        )


SIZES = [
    *((1, 600), (512, 513), (1, 64 << 10)),
    *((1, 2 * MIB + 2), (MIB, MIB + 1), (2 * MIB - 1, 2 * MIB + 1)),
    *((2 * MIB, 40 * MIB), (100 * MIB, 300 * MIB)),
]


def random_size(chooser: random.Random) -> int:
    return chooser.randint(*chooser.choice(SIZES))


def shuffled() -> dict[str, Any]:
    """Allocations of all sizes come and go; what is written stays until it is freed; in the end nothing is left."""
    cuda, chooser = Cuda(), random.Random(7)
    start = cuda.info()
    held: list[Held] = []
    wrong = overlaps = 0
    for step in range(600):
        if held and (chooser.random() < 0.45 or len(held) > 40):
            victim = held.pop(chooser.randrange(len(held)))
            wrong += not victim.is_intact(cuda)
            cuda.free(victim.pointer)
        else:
            new = Held(cuda, random_size(chooser), step)
            overlaps += any(
                new.pointer < other.pointer + other.size and other.pointer < new.pointer + new.size for other in held
            )
            held.append(new)
    in_use = start[0] - cuda.info()[0]
    for each in held:
        wrong += not each.is_intact(cuda)
        cuda.free(each.pointer)
    end = cuda.info()
    return {"wrong": wrong, "overlaps": overlaps, "in_use": in_use, "left": start[0] - end[0]}


def pointers() -> dict[str, Any]:
    cuda = Cuda()
    large, small = cuda.alloc(5 * MIB), cuda.alloc(1000)
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    cuda("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(small + 999))
    handle = ctypes.create_string_buffer(64)
    return {
        "context": cuda.attribute(large, CONTEXT) == cuda.context.value,
        "type": cuda.attribute(large, MEMORY_TYPE) & 0xFFFFFFFF,
        "start": cuda.attribute(large + MIB, RANGE_START) == large,
        "size": cuda.attribute(large + MIB, RANGE_SIZE),
        "ids_differ": cuda.attribute(large, BUFFER_ID) != cuda.attribute(small, BUFFER_ID),
        "range": (base.value == small, size.value),
        "ipc": cuda.code("cuIpcGetMemHandle", handle, ctypes.c_uint64(large)),
        "free_inside": cuda.code("cuMemFree_v2", ctypes.c_uint64(large + MIB)),
        "free": cuda.code("cuMemFree_v2", ctypes.c_uint64(large)),
        "free_again": cuda.code("cuMemFree_v2", ctypes.c_uint64(large)),
        "free_null": cuda.code("cuMemFree_v2", ctypes.c_uint64(0)),
    }


def capture() -> dict[str, Any]:
    """Memory freed while a stream captures; the capture survives, and the memory goes after it."""
    cuda = Cuda()
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    start = cuda.info()[0]
    pointer, target = cuda.alloc(64 * MIB), cuda.alloc(4 * MIB)
    cuda("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    cuda("cuStreamBeginCapture_v2", stream, ctypes.c_int(0))
    cuda("cuMemsetD8Async", ctypes.c_uint64(target), ctypes.c_ubyte(7), ctypes.c_size_t(4096), stream)
    cuda.free(pointer)
    while_capturing = start - cuda.info()[0]
    cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
    return {"while_capturing": while_capturing, "after": start - cuda.info()[0]}


def busy() -> dict[str, Any]:
    """Memory freed while a stream still works on it, large and small; small pieces are asked for again at once."""
    cuda = Cuda()
    stream = ctypes.c_void_p()
    cuda("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))

    def fill(pointer: int, value: int, size: int) -> None:
        cuda("cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(size), stream)

    large, small = cuda.alloc(512 * MIB), cuda.alloc(4096)
    for _ in range(50):
        fill(large, 1, 512 * MIB)
    fill(small, 1, 4096)
    cuda.free(small)
    again = cuda.alloc(4096)
    cuda.write(again, bytes([2]) * 4096)
    for _ in range(50):
        fill(large, 1, 512 * MIB)
    cuda.free(large)
    return {
        "synchronize": cuda.code("cuStreamSynchronize", stream),
        "intact": cuda.read(again, 4096) == bytes([2]) * 4096,
    }


def contexts() -> dict[str, Any]:
    """What a context owned is gone from the count when it is destroyed."""
    first, second = Cuda(), Cuda()
    second.alloc(50 * MIB)
    second.alloc(100)
    second("cuMemAllocManaged", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(MIB), ctypes.c_uint(1))
    free_before, total = second.info()
    second.destroy()
    first("cuCtxSetCurrent", first.context)
    free_after, _ = first.info()
    return {"before": total - free_before, "after": total - free_after}


def counted() -> dict[str, Any]:
    """The driver's own kinds of memory."""
    cuda = Cuda()
    start = cuda.info()[0]
    pointer = ctypes.c_uint64()
    report = {}
    cuda("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(3 * MIB), ctypes.c_uint(1))
    report["managed"] = start - cuda.info()[0]
    cuda.free(pointer.value)
    pool = cuda.pool(handle_types=1)
    cuda("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(5 * MIB), pool, None)
    report["exportable_pool"] = start - cuda.info()[0]
    cuda("cuMemFreeAsync", pointer, None)
    report["left"] = start - cuda.info()[0]
    return report


def nvml() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def see() -> list[int]:
        one = pynvml.nvmlDeviceGetMemoryInfo(handle)
        two = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert (one.total, one.free) == (two.total, two.free), "the two versions disagree"
        return [int(one.total), int(one.free), int(one.used)]

    report: dict[str, Any] = {"without_context": see()}
    cuda = Cuda()
    pointer = cuda.alloc(100 * MIB)
    report["with_100"] = see()
    cuda.free(pointer)
    return report


def forked() -> dict[str, Any]:
    """A child of a process that holds memory must end cleanly, and leaves the parent's memory alone."""
    cuda = Cuda()
    pointer = cuda.alloc(10 * MIB)
    cuda.write(pointer, b"parent")
    child = os.fork()
    if child == 0:
        os._exit(0 if cuda.code("cuMemFree_v2", ctypes.c_uint64(pointer)) != SUCCESS else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"child": status, "contents": cuda.read(pointer, 6).decode()}


if __name__ == "__main__":
    cases = [quota, shuffled, pointers, capture, busy, contexts, counted, nvml, forked]
    print(json.dumps(next(case for case in cases if case.__name__ == sys.argv[1])()))
