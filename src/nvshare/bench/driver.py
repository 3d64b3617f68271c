"""A small wrapper of the CUDA driver API by ctypes: enough for the workloads, and cheap per launch.

Nothing here knows of nvshare: the programs are what any user's program is, with or without ``libnvshare.so`` preloaded,
on a real or a simulated card.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

OUT_OF_MEMORY = 2
_EVENT_BLOCKING_SYNC = 1
_EVENT_DISABLE_TIMING = 2
_CONTEXT_BLOCKING_SYNC = 4
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_CAPTURE_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_BLOCK_THREADS = 256
_GRID_BLOCKS = 8192  # enough to fill any card; the kernels stride over what is left

NO_DRIVER = (
    "no CUDA driver: libcuda.so.1 cannot be loaded. On a machine without a GPU use a simulated one:\n"
    "  nvshare run --sim 2xT4 -- {command}"
)


class DriverMissing(Exception):
    """There is no ``libcuda.so.1``."""


class CudaError(Exception):
    """A driver call failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name

    @property
    def out_of_memory(self) -> bool:
        return self.code == OUT_OF_MEMORY


_Pointer = ctypes.c_uint64
_Handle = ctypes.c_void_p
_Int = ctypes.c_int
_Unsigned = ctypes.c_uint
_Size = ctypes.c_size_t
_Out = ctypes.c_void_p

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_Unsigned,),
    "cuDeviceGet": (_Out, _Int),
    "cuDeviceGetCount": (_Out,),
    "cuDeviceGetUuid": (_Out, _Int),
    "cuDevicePrimaryCtxRetain": (_Out, _Int),
    "cuDevicePrimaryCtxRelease_v2": (_Int,),
    "cuCtxSetCurrent": (_Handle,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (_Out, ctypes.c_char_p),
    "cuModuleGetFunction": (_Out, _Handle, ctypes.c_char_p),
    "cuMemAlloc_v2": (_Out, _Size),
    "cuMemFree_v2": (_Pointer,),
    "cuMemGetInfo_v2": (_Out, _Out),
    "cuMemsetD32_v2": (_Pointer, _Unsigned, _Size),
    "cuMemcpyHtoD_v2": (_Pointer, ctypes.c_void_p, _Size),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, _Pointer, _Size),
    "cuMemHostAlloc": (_Out, _Size, _Unsigned),
    "cuMemFreeHost": (ctypes.c_void_p,),
    "cuMemcpyHtoDAsync_v2": (_Pointer, ctypes.c_void_p, _Size, _Handle),
    "cuMemcpyDtoHAsync_v2": (ctypes.c_void_p, _Pointer, _Size, _Handle),
    "cuEventCreate": (_Out, _Unsigned),
    "cuEventRecord": (_Handle, _Handle),
    "cuEventSynchronize": (_Handle,),
    "cuLaunchKernel": (_Handle, *(_Unsigned,) * 7, _Handle, ctypes.c_void_p, ctypes.c_void_p),
}
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "cuDeviceGetAttribute": (_Out, _Int, _Int),
    "cuStreamCreate": (_Out, _Unsigned),
    "cuStreamDestroy_v2": (_Handle,),
    "cuStreamBeginCapture_v2": (_Handle, _Int),
    "cuStreamEndCapture": (_Handle, _Out),
    "cuGraphInstantiateWithFlags": (_Out, _Handle, ctypes.c_ulonglong),
    "cuGraphLaunch": (_Handle, _Handle),
    "cuDevicePrimaryCtxSetFlags_v2": (_Int, _Unsigned),
    "cuMemAllocAsync": (_Out, _Size, _Handle),
    "cuMemFreeAsync": (_Pointer, _Handle),
    "cuMemAddressReserve": (_Out, _Size, _Size, _Pointer, ctypes.c_ulonglong),
    "cuMemAddressFree": (_Pointer, _Size),
    "cuMemCreate": (_Out, _Size, ctypes.c_void_p, ctypes.c_ulonglong),
    "cuMemMap": (_Pointer, _Size, _Size, ctypes.c_ulonglong, ctypes.c_ulonglong),
    "cuMemSetAccess": (_Pointer, _Size, ctypes.c_void_p, _Size),
    "cuMemUnmap": (_Pointer, _Size),
    "cuMemRelease": (ctypes.c_ulonglong,),
}
_PINNED_ON_DEVICE = (1, 0, 1)  # CUmemAllocationProp: type, handle types, kind of location; then the device
_READ_WRITE = 3


def _format_uuid(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Driver:
    """The loaded driver. Calls go by their driver names: ``driver.call("cuInit", 0)``."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverMissing(str(error)) from error
        self._functions: dict[str, Any] = {}
        for name, arguments in {**_SIGNATURES, **_OPTIONAL}.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                if name in _OPTIONAL:
                    continue
                raise DriverMissing(f"{library} has no {name}") from None
            function.argtypes = arguments
            function.restype = _Int
            self._functions[name] = function

    def function(self, name: str) -> Any:
        return self._functions[name]

    def has(self, name: str) -> bool:
        return name in self._functions

    def call(self, name: str, *arguments: Any) -> None:
        self.check(name, self._functions[name](*arguments))

    def check(self, call: str, code: int) -> None:
        """Raise ``CudaError`` unless the code says success."""
        if code != 0:
            raise CudaError(call, code, self._error_name(code))

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0
        except AttributeError:
            known = False
        if known and text.value:
            return text.value.decode()
        return "CUDA_ERROR_OUT_OF_MEMORY" if code == OUT_OF_MEMORY else "CUDA_ERROR"


class Context:
    """The primary context of one device, current in this thread, with what it allocated and copied."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self.driver = driver
        self.copied_h2d = 0
        self.copied_d2h = 0
        driver.call("cuInit", 0)
        device = _Int()
        driver.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device.value
        uuid = (ctypes.c_char * 16)()
        driver.call("cuDeviceGetUuid", uuid, self._device)
        self.uuid = _format_uuid(bytes(uuid))
        if driver.has("cuDevicePrimaryCtxSetFlags_v2"):
            # Waiting for the card must sleep: eight tasks that spin would fight for the cores.
            driver.function("cuDevicePrimaryCtxSetFlags_v2")(self._device, _CONTEXT_BLOCKING_SYNC)
        context = _Handle()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        driver.call("cuCtxSetCurrent", context)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: object) -> None:
        self.driver.function("cuDevicePrimaryCtxRelease_v2")(self._device)

    def multiprocessors(self) -> int:
        """Of the card. ``KeyError`` where the driver does not tell."""
        count = _Int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSORS, self._device)
        return count.value

    def load(self, ptx: str) -> Module:
        handle = _Handle()
        self.driver.call("cuModuleLoadData", ctypes.byref(handle), ptx.encode())
        return Module(self.driver, handle)

    def allocate(self, size: int) -> int:
        pointer = _Pointer()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(pointer), size)
        return pointer.value

    def free(self, pointer: int) -> None:
        self.driver.call("cuMemFree_v2", pointer)

    def allocate_pinned(self, size: int) -> int:
        """Host memory that the card copies to and from at the speed of the link; goes with the context."""
        pointer = ctypes.c_void_p()
        self.driver.call("cuMemHostAlloc", ctypes.byref(pointer), size, 0)
        assert pointer.value is not None
        return pointer.value

    @contextlib.contextmanager
    def address_range(self, size: int) -> Iterator[int]:
        """Addresses with nothing behind them. ``KeyError`` where the driver has no virtual-memory functions."""
        pointer = _Pointer()
        self.driver.call("cuMemAddressReserve", ctypes.byref(pointer), size, 0, 0, 0)
        try:
            yield pointer.value
        finally:
            self.driver.call("cuMemAddressFree", pointer, size)

    def map_memory(self, pointer: int, size: int) -> int:
        """Put new memory behind an address; the handle of it."""
        handle = ctypes.c_ulonglong()
        properties = (_Int * 8)(*_PINNED_ON_DEVICE, self._device)
        self.driver.call("cuMemCreate", ctypes.byref(handle), size, properties, 0)
        self.driver.call("cuMemMap", pointer, size, 0, handle, 0)
        self.driver.call("cuMemSetAccess", pointer, size, (_Int * 3)(1, self._device, _READ_WRITE), 1)
        return handle.value

    def unmap_memory(self, pointer: int, size: int, handle: int) -> None:
        self.driver.call("cuMemUnmap", pointer, size)
        self.driver.call("cuMemRelease", handle)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes, as the driver tells this process."""
        free, total = _Size(), _Size()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def fill(self, pointer: int, bits: int, elements: int) -> None:
        self.driver.call("cuMemsetD32_v2", pointer, bits, elements)

    def write(self, pointer: int, data: Any) -> None:
        """Copy a buffer (an ``array``) to the card."""
        view = memoryview(data).cast("B")
        source = (ctypes.c_char * view.nbytes).from_buffer(data)
        self.driver.call("cuMemcpyHtoD_v2", pointer, ctypes.addressof(source), view.nbytes)
        self.copied_h2d += view.nbytes

    def read(self, pointer: int, data: Any) -> None:
        """Fill a buffer (an ``array``) from the card."""
        view = memoryview(data).cast("B")
        target = (ctypes.c_char * view.nbytes).from_buffer(data)
        self.driver.call("cuMemcpyDtoH_v2", ctypes.addressof(target), pointer, view.nbytes)
        self.copied_d2h += view.nbytes

    def synchronize(self) -> None:
        self.driver.call("cuCtxSynchronize")

    def capture(self, submit: Callable[[ctypes.c_void_p], None]) -> Callable[[], int]:
        """What ``submit`` puts into the stream that it is given, as a graph: calling the result launches it on the
        default stream and returns the driver's code. ``KeyError`` where the driver has no graphs."""
        stream, graph, executable = _Handle(), _Handle(), _Handle()
        self.driver.call("cuStreamCreate", ctypes.byref(stream), 0)
        self.driver.call("cuStreamBeginCapture_v2", stream, _CAPTURE_THREAD)
        submit(stream)
        self.driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.driver.call("cuStreamDestroy_v2", stream)
        self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        return functools.partial(self.driver.function("cuGraphLaunch"), executable, None)

    def mark(self) -> Mark:
        handle = _Handle()
        self.driver.call("cuEventCreate", ctypes.byref(handle), _EVENT_BLOCKING_SYNC | _EVENT_DISABLE_TIMING)
        return Mark(self.driver, handle)


class Mark:
    """A place in the default stream that can be waited for."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p) -> None:
        self._driver = driver
        self._handle = handle

    def record(self) -> None:
        self._driver.call("cuEventRecord", self._handle, None)

    def wait(self) -> None:
        self._driver.call("cuEventSynchronize", self._handle)


class Module:
    """Loaded kernels."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p) -> None:
        self._driver = driver
        self._handle = handle

    def launcher(
        self, kernel: str, *arguments: int, elements: int, stream: ctypes.c_void_p | None = None
    ) -> Callable[[], int]:
        """A prepared launch of a grid-stride kernel whose parameters are all u64, on the default stream or this one.

        Everything is converted once here; calling it is one call into the driver that returns the driver's code.
        """
        handle = _Handle()
        self._driver.call("cuModuleGetFunction", ctypes.byref(handle), self._handle, kernel.encode())
        values = [ctypes.c_uint64(value) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = max(1, min(_GRID_BLOCKS, -(-elements // _BLOCK_THREADS)))
        function = self._driver.function("cuLaunchKernel")
        prepared = functools.partial(function, handle, blocks, 1, 1, _BLOCK_THREADS, 1, 1, 0, stream, pointers, None)
        prepared.keep_alive = values  # type: ignore[attr-defined]  # the pointers point into them
        return prepared
