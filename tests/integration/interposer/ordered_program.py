"""A program that allocates in stream order, run preloaded on a simulated node: ``ordered_program.py CASE``.

It knows nothing of nvshare. Each case prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from typing import Any

from memory_program import MIB, SUCCESS, Cuda

RELEASE_THRESHOLD, RESERVED, USED, USED_HIGH = 4, 5, 7, 8
MEMPOOL_HANDLE = 17
LONG = 512 * MIB  # to write so much takes a stream some time


class Ordered(Cuda):
    """With streams of its own, all of which do not wait for the legacy one."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.streams = [ctypes.c_void_p() for _ in range(streams)]
        for stream in self.streams:
            self("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
        self.pool_handle = ctypes.c_void_p()
        self("cuDeviceGetDefaultMemPool", ctypes.byref(self.pool_handle), ctypes.c_int(0))

    def take(self, size: int, stream: int) -> int:
        pointer = ctypes.c_uint64()
        self("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), self.streams[stream])
        return pointer.value

    def give(self, pointer: int, stream: int) -> None:
        self("cuMemFreeAsync", ctypes.c_uint64(pointer), self.streams[stream])

    def fill(self, pointer: int, value: int, size: int, stream: int) -> None:
        self(
            "cuMemsetD8Async",
            ctypes.c_uint64(pointer),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(size),
            self.streams[stream],
        )

    def wait(self, stream: int) -> None:
        self("cuStreamSynchronize", self.streams[stream])

    def figure(self, attribute: int) -> int:
        value = ctypes.c_uint64()
        self("cuMemPoolGetAttribute", self.pool_handle, ctypes.c_int(attribute), ctypes.byref(value))
        return value.value

    def trim(self) -> None:
        self("cuMemPoolTrimTo", self.pool_handle, ctypes.c_size_t(0))


def quota() -> dict[str, Any]:
    cuda = Ordered(2)
    pointer, other = ctypes.c_uint64(), cuda.take(600 * MIB, 0)
    too_much = cuda.code("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(500 * MIB), cuda.streams[0])
    cuda.fill(other, 1, 600 * MIB, 0)
    cuda.give(other, 0)
    return {
        "too_much": too_much,
        "after_a_free_in_another_stream": cuda.take(900 * MIB, 1) != 0,
        "used": cuda.figure(USED),
        "free": cuda.info()[0],
    }


def handed_over() -> dict[str, Any]:
    """Two streams hand memory over while the one that gives it up still writes to it."""
    cuda = Ordered(2)
    wrong = early = 0
    for turn in range(30):
        giver, taker = turn % 2, 1 - turn % 2
        large, piece = cuda.take(LONG, giver), cuda.take(4 * MIB, giver)
        cuda.fill(large, 1, LONG, giver)
        cuda.fill(piece, 1, 4 * MIB, giver)  # not before the large one is written
        cuda.give(large, giver)
        cuda.give(piece, giver)
        again = cuda.take(4 * MIB, taker)
        early += again == piece and cuda.code("cuStreamQuery", cuda.streams[giver]) != SUCCESS
        cuda.fill(again, 2, 4 * MIB, taker)
        cuda.wait(taker)
        cuda.wait(giver)
        wrong += cuda.read(again, 4 * MIB) != bytes([2]) * (4 * MIB)
        cuda.give(again, taker)
    return {"wrong": wrong, "early": early}


def shuffled() -> dict[str, Any]:
    """Blocks of all sizes come and go in four streams; what is written stays until it is freed."""
    cuda, chooser = Ordered(4), random.Random(3)
    held: list[tuple[int, int, int, int]] = []
    wrong = 0
    for step in range(1500):
        stream = chooser.randrange(4)
        if held and (chooser.random() < 0.48 or len(held) > 60):
            pointer, size, value, wrote = held.pop(chooser.randrange(len(held)))
            cuda.wait(wrote)
            for at in (0, size - 1, chooser.randrange(size)):
                wrong += cuda.read(pointer + at, 1)[0] != value
            cuda.give(pointer, stream)
        else:
            size = chooser.randint(*chooser.choice(((1, 600), (513, 64 << 10), (1, 3 * MIB), (2 * MIB, 90 * MIB))))
            pointer, value = cuda.take(size, stream), step % 251
            cuda.fill(pointer, value, size, stream)
            held.append((pointer, size, value, stream))
    used = sum((size + 511) // 512 * 512 for _, size, _, _ in held)
    agrees = cuda.figure(USED) == used
    for pointer, *_ in held:
        cuda.give(pointer, 0)
    for stream in range(4):
        cuda.wait(stream)
    cuda.trim()
    free, total = cuda.info()
    return {"wrong": wrong, "agrees": agrees, "left": total - free}


def given_back() -> dict[str, Any]:
    """What the pool keeps, and for how long."""
    cuda = Ordered(1)
    pool = ctypes.c_uint64()
    pointer = cuda.take(100 * MIB, 0)
    cuda("cuPointerGetAttribute", ctypes.byref(pool), ctypes.c_int(MEMPOOL_HANDLE), ctypes.c_uint64(pointer + 5))
    cuda.give(pointer, 0)
    kept = cuda.figure(RESERVED)
    cuda.wait(0)
    cuda.trim()
    return {
        "is_its_pool": pool.value == cuda.pool_handle.value,
        "kept": kept,
        "after_trim": cuda.figure(RESERVED),
        "used_high": cuda.figure(USED_HIGH),
    }


def plain_free() -> dict[str, Any]:
    """cuMemFree of a block waits for the work that may use it."""
    cuda = Ordered(2)
    large, block = cuda.take(LONG, 0), cuda.take(4 * MIB, 0)
    for _ in range(20):
        cuda.fill(large, 1, LONG, 0)
    cuda.fill(block, 1, 4 * MIB, 0)
    cuda.free(block)
    again = cuda.take(4 * MIB, 1)
    cuda.fill(again, 2, 4 * MIB, 1)
    cuda.wait(1)
    cuda.wait(0)
    return {
        "intact": cuda.read(again, 4 * MIB) == bytes([2]) * (4 * MIB),
        "again": cuda.code("cuMemFree_v2", ctypes.c_uint64(block)) if again != block else 1,
    }


def destroyed_stream() -> dict[str, Any]:
    """A stream ends with work under way; what it freed is not handed out before that is over."""
    cuda = Ordered(2)
    large, block = cuda.take(LONG, 0), cuda.take(4 * MIB, 0)
    for _ in range(20):
        cuda.fill(large, 1, LONG, 0)
    cuda.fill(block, 1, 4 * MIB, 0)
    cuda.give(block, 0)
    cuda("cuStreamDestroy_v2", cuda.streams[0])
    again = cuda.take(4 * MIB, 1)
    cuda.fill(again, 2, 4 * MIB, 1)
    cuda("cuCtxSynchronize")
    return {"intact": cuda.read(again, 4 * MIB) == bytes([2]) * (4 * MIB)}


if __name__ == "__main__":
    cases = [quota, handed_over, shuffled, given_back, plain_free, destroyed_stream]
    print(json.dumps(next(case for case in cases if case.__name__ == sys.argv[1])()))
