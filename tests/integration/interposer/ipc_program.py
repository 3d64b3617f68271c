"""A CUDA program that shares device memory with others like it, told by lines what to do. It knows nothing of nvshare.

A line is a JSON list of a command and its arguments; each is answered by one JSON value. Memory has numbers.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

MIB = 1 << 20
PIECE = 16 * MIB  # read at a time
LAZY_PEER_ACCESS = 1


class CudaError(Exception):
    pass


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class Program:
    """What the test can ask for."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuCtxCreate_v2", ctypes.byref(self._context), ctypes.c_uint(0), ctypes.c_int(0))
        self._memory: list[tuple[int, int]] = []  # address, size

    def _code(self, function: str, *arguments: Any) -> int:
        return int(getattr(self._library, function)(*arguments))

    def _call(self, function: str, *arguments: Any) -> None:
        code = self._code(function, *arguments)
        if code != 0:
            raise CudaError(f"{function} answered {code}")

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self._memory.append((pointer.value, size))
        return len(self._memory) - 1

    def free(self, number: int) -> int:
        return self._code("cuMemFree_v2", ctypes.c_uint64(self._memory[number][0]))

    def address(self, number: int) -> int:
        return self._memory[number][0]

    def available(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def fill(self, number: int, byte: int) -> bool:
        """And wait until others see it."""
        pointer, size = self._memory[number]
        self._call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")
        return True

    def write(self, number: int, at: int, text: str) -> bool:
        data = text.encode()
        pointer = ctypes.c_uint64(self._memory[number][0] + at)
        self._call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
        return True

    def _read(self, number: int, at: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        pointer = ctypes.c_uint64(self._memory[number][0] + at)
        self._call("cuMemcpyDtoH_v2", data, pointer, ctypes.c_size_t(size))
        return data.raw

    def read(self, number: int, at: int, size: int) -> str:
        return self._read(number, at, size).decode()

    def wrong(self, number: int, byte: int) -> int:
        """How many bytes of it are not this one; every byte is looked at."""
        size, bad = self._memory[number][1], 0
        for at in range(0, size, PIECE):
            piece = self._read(number, at, min(PIECE, size - at))
            bad += len(piece) - piece.count(byte)
        return bad

    def share(self, number: int, at: int = 0) -> Any:
        """The handle in hexadecimal digits, or the driver's error."""
        handle = Handle()
        pointer = ctypes.c_uint64(self._memory[number][0] + at)
        code = self._code("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        return code or bytes(handle).hex()

    def open(self, handle: str, size: int, function: str = "cuIpcOpenMemHandle_v2") -> Any:
        """[its number], or the driver's error."""
        pointer = ctypes.c_uint64()
        known = Handle.from_buffer_copy(bytes.fromhex(handle))
        code = self._code(function, ctypes.byref(pointer), known, ctypes.c_uint(LAZY_PEER_ACCESS))
        if code != 0:
            return code
        self._memory.append((pointer.value, size))
        return [len(self._memory) - 1]

    def close(self, number: int) -> int:
        return self._code("cuIpcCloseMemHandle", ctypes.c_uint64(self._memory[number][0]))

    def attribute(self, number: int, attribute: int, at: int = 0) -> int:
        value, pointer = ctypes.c_uint64(), ctypes.c_uint64(self._memory[number][0] + at)
        self._call("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), pointer)
        return value.value

    def busy(self, number: int, times: int) -> bool:
        """Work on it that is still under way when this returns."""
        pointer, size = self._memory[number]
        for _ in range(times):
            self._call(
                "cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(1), ctypes.c_size_t(size), ctypes.c_void_p()
            )
        return True

    def synchronize(self) -> int:
        return self._code("cuCtxSynchronize")

    def sockets(self) -> int:
        """How many sockets this process has open."""
        count = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
            except FileNotFoundError:  # that of the listing itself
                continue
        return count

    def fork(self) -> int:
        """A child that lives as long as standard input; how many sockets it has."""
        ready, told = os.pipe()
        if os.fork() == 0:
            os.write(told, bytes([self.sockets()]))
            os.read(0, 1)
            os._exit(0)
        return os.read(ready, 1)[0]

    def become(self, user: int) -> bool:
        os.seteuid(user)
        return True

    def destroy(self) -> int:
        return self._code("cuCtxDestroy_v2", self._context)


if __name__ == "__main__":
    program = Program()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            print(json.dumps(getattr(program, command)(*arguments)), flush=True)
        except CudaError as error:
            print(json.dumps(str(error)), flush=True)
