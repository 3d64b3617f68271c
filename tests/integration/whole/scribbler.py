"""Keeps device memory of random sizes and contents, changes it now and then, and knows what every byte must be.

    python scribbler.py --seed N --bytes MIB [--pause MS] [--ordered]

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

from nvshare.lab.driver import Context, Driver
from nvshare.lab.workloads.ptx import PTX

MIB = 1 << 20
BLOCK = 4096  # bytes written one by one; the rest of an allocation is one repeated word
PIECE = 16 * MIB  # bytes read at a time


@dataclass
class Kept:
    """An allocation and what must be in it."""

    pointer: int
    size: int
    word: int
    blocks: dict[int, bytes] = field(default_factory=dict)  # by offset

    def expected(self, offset: int, size: int) -> bytearray:
        content = bytearray(self.word.to_bytes(4, "little") * (size // 4))
        for at, block in self.blocks.items():
            if offset <= at < offset + size:
                content[at - offset : at - offset + len(block)] = block
        return content


class Scribbler:
    def __init__(self, context: Context, seed: int, limit: int, ordered: bool) -> None:
        self.context = context
        self.ordered = ordered
        self.random = random.Random(seed)
        self.limit = limit
        self.kept: list[Kept] = []

    @property
    def held(self) -> int:
        return sum(one.size for one in self.kept)

    def allocate(self) -> None:
        size = self.random.choice((64 * 1024, MIB, 3 * MIB, 40 * MIB, 130 * MIB, 300 * MIB))
        if self.held + size > self.limit:
            return
        word = self.random.getrandbits(32)
        one = Kept(self._take(size), size, word)
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
            self._give(self.kept.pop(self.random.randrange(len(self.kept))).pointer)

    def _take(self, size: int) -> int:
        if not self.ordered:
            return self.context.allocate(size)
        pointer = ctypes.c_uint64()
        self.context.driver.call("cuMemAllocAsync", ctypes.byref(pointer), size, None)
        return pointer.value

    def _give(self, pointer: int) -> None:
        if self.ordered:
            self.context.driver.call("cuMemFreeAsync", pointer, None)
        else:
            self.context.free(pointer)

    def check(self, one: Kept, offset: int, size: int) -> None:
        buffer = array.array("B", bytes(size))
        self.context.read(one.pointer + offset, buffer)
        if buffer.tobytes() != bytes(one.expected(offset, size)):
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
    parser.add_argument("--ordered", action="store_true", help="allocate and free in stream order")
    arguments = parser.parse_args()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with Context(Driver()) as context:
        launch = context.load(PTX).launcher("nvs_spin", 100_000, elements=1)
        scribbler = Scribbler(context, arguments.seed, arguments.bytes * MIB, arguments.ordered)
        while scribbler.held < arguments.bytes * MIB * 3 // 4:
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
