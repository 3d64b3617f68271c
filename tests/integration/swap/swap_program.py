"""A CUDA program with memory of all sizes, told by lines what to do. It knows nothing of nvshare.

A line is a JSON list of a command and its arguments; each is answered by one JSON value.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import random
import sys
import threading
from typing import Any

MIB = 1 << 20
CHUNK = 128 * MIB
SIZES = [(1, 600), (513, 64 << 10), (512 << 10, 3 * MIB), (2 * MIB, 24 * MIB), (CHUNK - MIB, CHUNK + 9 * MIB)]
SAMPLE = 64 << 10
CONTEXT, MEMORY_TYPE, DEVICE_POINTER, BUFFER_ID, MANAGED, ORDINAL, START, SIZE = 1, 2, 3, 7, 8, 9, 11, 12


class CudaError(Exception):
    pass


class Cuda:
    """The driver API by name; every call that fails raises."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self("cuInit", ctypes.c_uint(0))
        self("cuCtxCreate_v2", ctypes.byref(self.context), ctypes.c_uint(0), ctypes.c_int(0))

        self.ordered = "ORDERED" in os.environ  # memory in stream order, from three streams in turn
        self._streams = [ctypes.c_void_p() for _ in range(3 if self.ordered else 0)]
        for stream in self._streams:
            self("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
        self._next = 0

    def _stream(self) -> ctypes.c_void_p:
        self._next += 1
        return self._streams[self._next % len(self._streams)]

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        if self.ordered:
            self("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), self._stream())
        else:
            self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer: int) -> None:
        if self.ordered:
            self("cuMemFreeAsync", ctypes.c_uint64(pointer), self._stream())
        else:
            self("cuMemFree_v2", ctypes.c_uint64(pointer))

    def give_back(self) -> None:
        """What was freed leaves the count, wherever it is kept."""
        free, total, pool = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
        self("cuDeviceGetDefaultMemPool", ctypes.byref(pool), ctypes.c_int(0))
        self("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))

    def __call__(self, function: str, *arguments: Any) -> None:
        code = self.code(function, *arguments)
        if code != 0:
            raise CudaError(f"{function} answered {code}")

    def code(self, function: str, *arguments: Any) -> int:
        return int(getattr(self._library, function)(*arguments))

    def write(self, pointer: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw


class Piece:
    """An allocation: a word all over, and random bytes at places that matter (ends, chunk borders) and some others."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._begin(cuda.allocate(size), size, 0 if cuda.ordered else cuda.context.value)

    def _begin(self, pointer: int, size: int, context: int | None) -> None:
        self.pointer, self.size, self.context = pointer, size, context
        self.word = 0
        self.patches: dict[int, bytes] = {}
        self.identity: int | None = None

    def fill(self, cuda: Cuda, chooser: random.Random) -> None:
        self.word = chooser.getrandbits(8)
        cuda("cuMemsetD8_v2", ctypes.c_uint64(self.pointer), ctypes.c_ubyte(self.word), ctypes.c_size_t(self.size))
        borders = [0, self.size - 40, *(at - 20 for at in range(CHUNK, self.size, CHUNK))]
        self.patches = {}
        for at in sorted({max(0, place) for place in [*borders, chooser.randrange(self.size)]}):
            self.patch(cuda, at, chooser)

    def patch(self, cuda: Cuda, at: int, chooser: random.Random) -> None:
        data = chooser.randbytes(min(40, self.size - at))
        end = at + len(data)
        kept: dict[int, bytes] = {at: data}
        for start, old in self.patches.items():
            if start < at:
                kept[start] = old[: at - start]
            if start + len(old) > end:
                kept[max(start, end)] = old[max(0, end - start) :]
        self.patches = kept
        cuda.write(self.pointer + at, data)

    def wrong(self, cuda: Cuda) -> int:
        """How many of its places do not hold what was written there: the patches, and samples between them."""
        bad = sum(cuda.read(self.pointer + at, len(data)) != data for at, data in self.patches.items())
        places = sorted(self.patches)
        for place, after in zip(places, [*places, self.size][1:], strict=True):
            before = place + len(self.patches[place])
            span = min(SAMPLE, after - before)
            for at in {before, after - span} if span > 0 else ():
                bad += cuda.read(self.pointer + at, span) != bytes([self.word]) * span
        return bad


class MappedPiece(Piece):
    """The same at addresses of the program's own, which belong to no context."""

    def __init__(self, cuda: Cuda, size: int, handle_types: int) -> None:
        handle = ctypes.c_uint64()
        properties = (ctypes.c_int * 8)(1, handle_types, 1, 0)
        cuda("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), properties, ctypes.c_uint64(0))
        self.handle = handle
        self._begin(self.map(cuda, size), size, 0)

    def map(self, cuda: Cuda, size: int) -> int:
        """Its memory at one more address."""
        pointer, n = ctypes.c_uint64(), ctypes.c_size_t(size)
        nothing = ctypes.c_uint64(0)
        cuda("cuMemAddressReserve", ctypes.byref(pointer), n, nothing, nothing, nothing)
        cuda("cuMemMap", pointer, n, ctypes.c_size_t(0), self.handle, nothing)
        cuda("cuMemSetAccess", pointer, n, (ctypes.c_int * 3)(1, 0, 3), ctypes.c_size_t(1))
        return pointer.value

    def unmap(self, cuda: Cuda) -> None:
        for function in ("cuMemUnmap", "cuMemAddressFree"):
            cuda(function, ctypes.c_uint64(self.pointer), ctypes.c_size_t(self.size))

    def release(self, cuda: Cuda) -> None:
        cuda("cuMemRelease", self.handle)

    def alias(self, cuda: Cuda) -> MappedPiece:
        """What must be the same at another address."""
        other = copy.copy(self)
        other.pointer, other.identity = self.map(cuda, self.size), None
        return other


class Program:
    """What the test can ask for."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.wait_to_be_let_go = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: self.let_go.wait() and None)
        self.cuda = Cuda()
        self.pieces: list[Piece] = []
        self.chooser = random.Random(1)

    def allocate(self, count: int, seed: int) -> int:
        """So many more pieces, filled; the bytes asked for."""
        self.chooser = random.Random(seed)
        total = 0
        for _ in range(count):
            piece = Piece(self.cuda, self.chooser.randint(*self.chooser.choice(SIZES)))
            piece.fill(self.cuda, self.chooser)
            self.pieces.append(piece)
            total += piece.size
        return total

    def reserve(self, size: int) -> int:
        """One piece that is not touched; the driver's answer."""
        try:
            self.pieces.append(Piece(self.cuda, size))
        except CudaError as error:
            return int(str(error).rpartition(" ")[2])
        return 0

    def map(self, count: int, size: int, handle_types: int = 0) -> bool:
        """So many pieces of memory that the program maps itself, not touched."""
        self.pieces += [MappedPiece(self.cuda, size, handle_types) for _ in range(count)]
        return True

    def fill(self) -> bool:
        for piece in self.pieces:
            piece.fill(self.cuda, self.chooser)
        return True

    def last(self) -> MappedPiece:
        piece = self.pieces[-1]
        assert isinstance(piece, MappedPiece)
        return piece

    def alias_last(self) -> bool:
        """The last piece can be seen at two addresses."""
        self.pieces.append(self.last().alias(self.cuda))
        return True

    def map_last_elsewhere(self) -> bool:
        piece = self.last()
        self.pieces[-1] = piece.alias(self.cuda)
        piece.unmap(self.cuda)
        return True

    def release_last(self) -> bool:
        self.last().release(self.cuda)
        return True

    def unmap_last(self) -> bool:
        self.last().unmap(self.cuda)
        del self.pieces[-1]
        return True

    def fill_last(self) -> bool:
        self.pieces[-1].fill(self.cuda, self.chooser)
        return True

    def churn(self) -> int:
        """Free some, take some new ones, change some of the rest; how many there are."""
        for _ in range(len(self.pieces) // 4):
            piece = self.pieces.pop(self.chooser.randrange(len(self.pieces)))
            self.cuda.free(piece.pointer)
        for piece in self.chooser.sample(self.pieces, len(self.pieces) // 3):
            piece.patch(self.cuda, self.chooser.randrange(piece.size), self.chooser)
        return len(self.pieces)

    def free(self, count: int) -> bool:
        for piece in [self.pieces.pop() for _ in range(min(count, len(self.pieces)))]:
            self.cuda.free(piece.pointer)
        self.cuda.give_back()
        return True

    def verify(self) -> int:
        return sum(piece.wrong(self.cuda) for piece in self.pieces)

    def touch(self) -> bool:
        """One small submission."""
        self.cuda.write(self.pieces[0].pointer, self.cuda.read(self.pieces[0].pointer, 1))
        return True

    def attribute(self, pointer: int, attribute: int) -> int:
        value = ctypes.c_uint64()
        self.cuda("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_uint64(pointer))
        return value.value

    def names(self) -> list[str]:
        """What does not answer about the pieces as it should."""
        bad = []
        for piece in self.pieces:
            inside = piece.pointer + piece.size - 1
            base, size = ctypes.c_uint64(), ctypes.c_size_t()
            self.cuda("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(inside))
            identity = self.attribute(inside, BUFFER_ID)
            expected = {
                "context": (self.attribute(inside, CONTEXT), piece.context),
                "type": (self.attribute(inside, MEMORY_TYPE), 2),
                "pointer": (self.attribute(inside, DEVICE_POINTER), inside),
                "managed": (self.attribute(inside, MANAGED), 0),
                "ordinal": (self.attribute(inside, ORDINAL), 0),
                "start": (self.attribute(inside, START), piece.pointer),
                "size": (self.attribute(inside, SIZE), piece.size),
                "range": ((base.value, size.value), (piece.pointer, piece.size)),
                "identity": (identity, piece.identity or identity),
                "several": (self._several(inside), [2, 0, 0, piece.pointer]),
            }
            piece.identity = identity
            bad += [f"{what}: {got} is not {want}" for what, (got, want) in expected.items() if got != want]
        return bad

    def _several(self, pointer: int) -> list[int]:
        kinds = (ctypes.c_int * 4)(MEMORY_TYPE, MANAGED, ORDINAL, START)
        values = [ctypes.c_uint64() for _ in kinds]
        places = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        self.cuda("cuPointerGetAttributes", ctypes.c_uint(4), kinds, places, ctypes.c_uint64(pointer))
        return [value.value for value in values]

    def managed(self, size: int) -> int:
        """Memory that belongs to the driver and cannot be moved."""
        return self.cuda.code(
            "cuMemAllocManaged", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size), ctypes.c_uint(1)
        )

    def capture(self) -> int:
        """A graph with a memset, captured, instantiated, launched; the first error."""
        stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        piece = self.pieces[0]
        return (
            self.cuda.code("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
            or self.cuda.code("cuStreamBeginCapture_v2", stream, ctypes.c_int(0))
            or self.cuda.code(
                "cuMemsetD8Async",
                ctypes.c_uint64(piece.pointer),
                ctypes.c_ubyte(piece.patches[0][0]),
                ctypes.c_size_t(1),
                stream,
            )
            or self.cuda.code("cuStreamEndCapture", stream, ctypes.byref(graph))
            or self.cuda.code("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
            or self.cuda.code("cuGraphLaunch", executable, stream)
            or self.cuda.code("cuStreamSynchronize", stream)
        )

    def hang(self) -> bool:
        """Work on the card that does not end."""
        self.cuda("cuLaunchHostFunc", None, self.wait_to_be_let_go, None)
        return True

    def unhang(self) -> bool:
        self.let_go.set()
        return True

    def destroy(self) -> bool:
        self.cuda("cuCtxDestroy_v2", self.cuda.context)
        self.pieces = []
        return True

    def fork(self) -> int:
        """A child that ends at once, its memory being no memory of its own; how it ended."""
        child = os.fork()
        if child == 0:
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    program = Program()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(program, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
