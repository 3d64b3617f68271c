"""Keeps device memory of random sizes and contents, changes it now and then, and knows what every byte must be.

    python scribbler.py --seed N --bytes MIB [--pause MS] [--memory plain|segments|arena|ordered]

One line per round ("round N"); when standard input ends every byte is read back. On the first difference: exit 1, and a
line that says where.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import random
import sys
import threading
from dataclasses import dataclass, field
from typing import Protocol

from nvshare.bench.driver import Context, Driver
from nvshare.bench.workloads.ptx import PTX

MIB = 1 << 20
BLOCK = 4096  # bytes written one by one; the rest of an allocation is one repeated word
PIECE = 16 * MIB  # bytes read at a time
SEGMENT = 20 * MIB
ARENA = 3072 * MIB
EXPORTABLE = 1


class Memory(Protocol):
    """Where allocations come from."""

    def allocate(self, size: int) -> int: ...

    def free(self, pointer: int) -> None: ...


class Mapped:
    """A range of addresses of this program's own, in slots of one size, with memory behind some of them."""

    def __init__(self, driver: Driver, slots: int, slot: int, handle_types: int = 0) -> None:
        self.driver = driver
        self.slot = slot
        self.used: dict[int, int] = {}  # first slot -> how many
        self.slots = slots
        self.properties = (ctypes.c_int * 8)(1, handle_types, 1, 0)
        start = ctypes.c_ulonglong()
        driver.call("cuMemAddressReserve", ctypes.byref(start), slots * slot, 0, 0, 0)
        self.start = start.value

    def find(self, count: int) -> int:
        """The first of so many slots in a row that are free."""
        first = 0
        for at, taken in sorted(self.used.items()):
            if first + count <= at:
                break
            first = at + taken
        assert first + count <= self.slots
        self.used[first] = count
        return first

    def create(self, size: int) -> int:
        handle = ctypes.c_ulonglong()
        self.driver.call("cuMemCreate", ctypes.byref(handle), size, self.properties, 0)
        return handle.value

    def map(self, pointer: int, size: int, handle: int) -> None:
        self.driver.call("cuMemMap", pointer, size, 0, handle, 0)

    def open(self, pointer: int, size: int) -> None:
        self.driver.call("cuMemSetAccess", pointer, size, (ctypes.c_int * 3)(1, 0, 3), 1)


class Segments(Mapped):
    """Grows and shrinks by handles of 20 MiB each. Every other one is known by its mapping alone."""

    def __init__(self, driver: Driver, limit: int) -> None:
        super().__init__(driver, 4 * limit // SEGMENT + 16, SEGMENT)
        self.handles: dict[int, int] = {}  # slot -> handle

    def allocate(self, size: int) -> int:
        count = -(-size // SEGMENT)
        first = self.find(count)
        for slot in range(first, first + count):
            handle = self.create(SEGMENT)
            self.map(self.start + slot * SEGMENT, SEGMENT, handle)
            if slot % 2:
                self.driver.call("cuMemRelease", handle)
            else:
                self.handles[slot] = handle
        self.open(self.start + first * SEGMENT, count * SEGMENT)
        return self.start + first * SEGMENT

    def free(self, pointer: int) -> None:
        first = (pointer - self.start) // SEGMENT
        for slot in range(first, first + self.used.pop(first)):
            self.driver.call("cuMemUnmap", self.start + slot * SEGMENT, SEGMENT)
            if slot in self.handles:
                self.driver.call("cuMemRelease", self.handles.pop(slot))


class Arena(Mapped):
    """One exportable handle, mapped once; all allocations are parts of it."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, ARENA // MIB, MIB, EXPORTABLE)
        self.map(self.start, ARENA, self.create(ARENA))
        self.open(self.start, ARENA)

    def allocate(self, size: int) -> int:
        return self.start + self.find(-(-size // MIB)) * MIB

    def free(self, pointer: int) -> None:
        del self.used[(pointer - self.start) // MIB]


class Ordered:
    """Allocated and freed in stream order."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.driver.call("cuMemAllocAsync", ctypes.byref(pointer), size, None)
        return pointer.value

    def free(self, pointer: int) -> None:
        self.driver.call("cuMemFreeAsync", pointer, None)


@dataclass
class Kept:
    """An allocation and what must be in it."""

    pointer: int
    size: int
    word: int
    blocks: dict[int, bytes] = field(default_factory=dict)  # by offset

    def expected(self, offset: int, size: int) -> bytearray:
        content = bytearray(self.word.to_bytes(4, "little")) * (size // 4)
        for at, block in self.blocks.items():
            if offset <= at < offset + size:
                content[at - offset : at - offset + len(block)] = block
        return content


class Scribbler:
    def __init__(self, context: Context, memory: Memory, unit: int, seed: int, limit: int) -> None:
        self.context = context
        self.memory = memory
        self.unit = unit
        self.random = random.Random(seed)
        self.limit = limit
        self.kept: list[Kept] = []

    @property
    def held(self) -> int:
        return sum(one.size for one in self.kept)

    def allocate(self) -> None:
        size = self.random.choice((64 * 1024, MIB, 3 * MIB, 40 * MIB, 130 * MIB, 300 * MIB))
        size = -(-size // self.unit) * self.unit
        if self.held + size > self.limit:
            return
        word = self.random.getrandbits(32)
        one = Kept(self.memory.allocate(size), size, word)
        self.context.fill(one.pointer, word, size // 4)
        self.kept.append(one)
        self.scribble(one)

    def scribble(self, one: Kept) -> None:
        offset = self.random.randrange(one.size // BLOCK) * BLOCK
        block = self.random.randbytes(BLOCK)
        self.context.write(one.pointer + offset, array.array("B", block))
        one.blocks[offset] = block

    def free(self) -> None:
        if len(self.kept) > 2:
            self.memory.free(self.kept.pop(self.random.randrange(len(self.kept))).pointer)

    def check(self, one: Kept, offset: int, size: int) -> None:
        buffer = bytearray(size)
        self.context.read(one.pointer + offset, buffer)
        if buffer != one.expected(offset, size):
            print(f"WRONG: {size} bytes at {offset} of an allocation of {one.size}", flush=True)
            sys.exit(1)

    def glance(self, one: Kept) -> None:
        """Look at some block that was written and at one that may not have been."""
        offsets = [self.random.randrange(one.size // BLOCK) * BLOCK]
        if one.blocks:
            offsets.append(self.random.choice(list(one.blocks)))
        for offset in offsets:
            self.check(one, offset, BLOCK)

    def check_all(self) -> None:
        for one in self.kept:
            for offset in range(0, one.size, PIECE):
                self.check(one, offset, min(PIECE, one.size - offset))

    def round(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            action = self.random.choice((self.allocate, self.allocate, self.free, self._rewrite))
            action()
        for one in self.random.sample(self.kept, min(3, len(self.kept))):
            self.glance(one)

    def _rewrite(self) -> None:
        if self.kept:
            self.scribble(self.random.choice(self.kept))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="MiB to keep at most")
    parser.add_argument(
        "--pause", type=float, default=36.0, help="ms of idleness after each round, so that turns change"
    )
    parser.add_argument("--memory", choices=("plain", "segments", "arena", "ordered"), default="plain")
    arguments = parser.parse_args()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with Context(Driver()) as context:
        launch = context.load(PTX).launcher("nvs_spin", 100_000, elements=1)
        limit = arguments.bytes * MIB
        memory: Memory = context
        if arguments.memory == "segments":
            memory = Segments(context.driver, limit)
        elif arguments.memory == "arena":
            memory = Arena(context.driver)
        elif arguments.memory == "ordered":
            memory = Ordered(context.driver)
        scribbler = Scribbler(context, memory, SEGMENT if arguments.memory == "segments" else 1, arguments.seed, limit)
        while scribbler.held < limit * 3 // 4:
            scribbler.allocate()
        print("filled", flush=True)
        number = 0
        while not ended.wait(arguments.pause / 1000):
            context.driver.check("cuLaunchKernel", launch())
            scribbler.round()
            print(f"round {number}", flush=True)
            number += 1
        scribbler.check_all()
        print("PASS", flush=True)


if __name__ == "__main__":
    main()
