"""The CUDA driver API for test programs: call any function by name, an error raises. A real driver does as well."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

KERNELS = ("nvs_add_f32", "nvs_scale_f32", "nvs_spin")
PTX = ".version 7.0\n.target sm_70\n.address_size 64\n" + "".join(
    f".visible .entry {k}()\n{{ ret; }}\n" for k in KERNELS
)


class CudaError(Exception):
    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {code}")
        self.code = code


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDesc(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", c_int))


def on_device(device: int = 0) -> AllocationProp:
    return AllocationProp(type=1, location=Location(1, device))


def access(device: int = 0, flags: int = 3) -> AccessDesc:
    return AccessDesc(Location(1, device), flags)


class LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", c_uint), ("reserved", c_uint), ("more", c_uint64 * 7))


RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, ctypes.c_long]


def map_memory(size: int, at: int | None = None, fd: int = -1) -> int:
    """Memory of the host: private and anonymous, or (with a descriptor) shared with a file."""
    flags = (0x10 if at else 0) | (0x1 if fd >= 0 else 0x22 | 0x4000)
    pointer = _libc.mmap(at, size, 3, flags, fd, 0)
    if pointer in (None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(pointer)


def unmap_memory(pointer: int, size: int) -> None:
    if _libc.munmap(c_void_p(pointer), c_size_t(size)) != 0:
        raise OSError(ctypes.get_errno(), "munmap")


def resident() -> int:
    """Bytes of memory that this process really has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Driver:
    """``Driver().cuMemFree_v2(p)`` calls and checks; ints are passed as 64-bit values."""

    def __init__(self, init: bool = True, context: bool = True, device: int = 0) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self._functions: dict[str, c_void_p] = {}
        if init:
            self.cuInit(0)
        if init and context:
            self.context = c_void_p()
            self.cuDevicePrimaryCtxRetain(byref(self.context), device)
            self.cuCtxSetCurrent(self.context)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)

        def call(*args: Any) -> None:
            code = function(*(c_uint64(arg) if isinstance(arg, int) else arg for arg in args))
            if code != 0:
                raise CudaError(name, code)

        return call

    def code(self, name: str, *args: Any) -> int:
        """The result instead of an exception."""
        try:
            getattr(self, name)(*args)
        except CudaError as error:
            return error.code
        return 0

    def alloc(self, size: int) -> int:
        pointer = c_uint64()
        self.cuMemAlloc_v2(byref(pointer), size)
        return pointer.value

    def upload(self, pointer: int, data: bytes) -> None:
        self.cuMemcpyHtoD_v2(pointer, c_char_p(data), len(data))

    def download(self, pointer: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.cuMemcpyDtoH_v2(buffer, pointer, size)
        return buffer.raw

    def memory(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        self.cuMemGetInfo_v2(byref(free), byref(total))
        return free.value, total.value

    def function(self, name: str) -> c_void_p:
        if name not in self._functions:
            module, function = c_void_p(), c_void_p()
            self.cuModuleLoadData(byref(module), c_char_p(PTX.encode()))
            self.cuModuleGetFunction(byref(function), module, c_char_p(name.encode()))
            self._functions[name] = function
        return self._functions[name]

    def launch(self, name: str, *args: int | float, stream: Any = None) -> None:
        values = [c_float(arg) if isinstance(arg, float) else c_uint64(arg) for arg in args]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.library.cuLaunchKernel.argtypes = [c_void_p] + [c_uint] * 7 + [c_void_p] * 3
        code = self.library.cuLaunchKernel(self.function(name), 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)
        if code != 0:
            raise CudaError("cuLaunchKernel", code)

    def add(self, z: int, x: int, y: int, n: int, stream: Any = None) -> None:
        self.launch("nvs_add_f32", z, x, y, n, stream=stream)

    def spin(self, seconds: float, stream: Any = None) -> None:
        self.launch("nvs_spin", int(seconds * 1e9), stream=stream)

    def host_alloc(self, size: int) -> int:
        """Page-locked memory of the driver."""
        pointer = c_void_p()
        self.cuMemHostAlloc(byref(pointer), size, c_uint(0))
        return pointer.value or 0

    def managed(self, size: int) -> int:
        pointer = c_uint64()
        self.cuMemAllocManaged(byref(pointer), size, c_uint(1))
        return pointer.value

    def create(self, size: int) -> int:
        handle = c_uint64()
        self.cuMemCreate(byref(handle), size, byref(on_device()), 0)
        return handle.value

    def reserve(self, size: int) -> int:
        pointer = c_uint64()
        self.cuMemAddressReserve(byref(pointer), size, 0, 0, 0)
        return pointer.value

    def map(self, pointer: int, size: int) -> None:
        """New physical memory, mapped at a reserved address and open to the device."""
        handle = self.create(size)
        self.cuMemMap(pointer, size, 0, handle, 0)
        self.cuMemSetAccess(pointer, size, byref(access()), 1)
        self.cuMemRelease(handle)

    def fill(self, pointer: int, word: int, size: int) -> None:
        self.cuMemsetD32_v2(pointer, c_uint(word), size // 4)

    def stream(self, flags: int = 1) -> c_void_p:
        stream = c_void_p()
        self.cuStreamCreate(byref(stream), flags)
        return stream

    def event(self, flags: int = 0) -> c_void_p:
        event = c_void_p()
        self.cuEventCreate(byref(event), flags)
        return event

    def record(self, stream: Any = None) -> c_void_p:
        event = self.event()
        self.cuEventRecord(event, stream)
        return event

    def elapsed(self, start: c_void_p, end: c_void_p) -> float:
        """Simulated seconds between two events, once the second is reached."""
        ms = c_float()
        self.cuEventSynchronize(end)
        self.cuEventElapsedTime(byref(ms), start, end)
        return ms.value / 1e3

    def sync(self) -> None:
        self.cuCtxSynchronize()

    def checkpoint(self, operation: str, pid: int, timeout_ms: int = 0) -> int:
        """The result of Lock, Checkpoint, Restore or Unlock of a process."""
        arguments = LockArgs(timeout_ms)  # those of the others have the same size, and are zero
        return self.code(f"cuCheckpointProcess{operation}", c_int(pid), byref(arguments))

    def leave(self, pid: int) -> None:
        """Take a process off its cards."""
        assert [self.checkpoint(operation, pid) for operation in ("Lock", "Checkpoint")] == [0, 0]

    def come_back(self, pid: int) -> None:
        assert [self.checkpoint(operation, pid) for operation in ("Restore", "Unlock")] == [0, 0]

    def state(self, pid: int) -> int:
        state = c_int(-1)
        self.cuCheckpointProcessGetState(c_int(pid), byref(state))
        return state.value
