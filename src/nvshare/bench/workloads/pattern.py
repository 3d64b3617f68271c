"""The numbers in x and y, and what x + y must be: exact float32 arithmetic in plain Python.

Each matrix is filled with one value; seeded blocks of random numbers lie on top, at the same places in x and y. Samples
of z are taken in those blocks and between them, so that data lost, moved or mixed up on the way are seen.
"""

from __future__ import annotations

import random
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nvshare.bench.workloads.spec import FLOAT_BYTES, seeded

BLOCK = 4096  # elements
RANDOM_BLOCKS = 8
PLAIN_SAMPLES = 4
FILL_X = 1.25
FILL_Y = 2.5


def float_bits(value: float) -> int:
    """The 32 bits of a float32, for a memset."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def add_f32(x: Iterable[float], y: Iterable[float]) -> array[float]:
    """The float32 sums. A double has more than twice a float32's digits, so rounding its sum is what a card does."""
    return array("f", (a + b for a, b in zip(x, y, strict=True)))


@dataclass(frozen=True)
class Block:
    """A run of elements and what x and y hold there."""

    start: int
    x: array[float]
    y: array[float]

    def expected(self) -> array[float]:
        return add_f32(self.x, self.y)


def _random_floats(source: random.Random, count: int) -> array[float]:
    return array("f", (source.uniform(-1000.0, 1000.0) for _ in range(count)))


def _block_starts(elements: int, source: random.Random) -> tuple[list[int], int]:
    """Where random blocks begin, and their size: the first and last elements and some in between, not overlapping."""
    size = max(1, min(BLOCK, elements // (2 * RANDOM_BLOCKS)))
    slots = elements // size
    inner = min(RANDOM_BLOCKS - 2, max(0, slots - 2))
    chosen = sorted({0, slots - 1} | set(source.sample(range(1, slots - 1), inner) if inner else ()))
    starts = [slot * size for slot in chosen]
    starts[-1] = elements - size
    return starts, size


def _plain_starts(elements: int, starts: list[int], size: int, seed: int) -> list[int]:
    """Further places to look at that touch no random block."""
    source = seeded(f"plain {seed}")
    places = (source.randrange(max(1, elements - size)) for _ in range(PLAIN_SAMPLES))
    return [place for place in places if all(abs(place - start) >= size for start in starts)]


def random_blocks(elements: int, seed: int) -> list[Block]:
    """Blocks to copy into x and y."""
    source = seeded(seed)
    starts, size = _block_starts(elements, source)
    return [Block(start, _random_floats(source, size), _random_floats(source, size)) for start in starts]


def samples(elements: int, blocks: list[Block], seed: int) -> Iterator[Block]:
    """Where z is looked at: every random block, and some places that only hold the fill values."""
    yield from blocks
    size = len(blocks[0].x)
    for start in _plain_starts(elements, [block.start for block in blocks], size, seed):
        yield Block(start, array("f", [FILL_X]) * size, array("f", [FILL_Y]) * size)


def copied_bytes(elements: int, seed: int, results: int) -> tuple[int, int]:
    """What a run copies to the card (blocks of x and y) and back (samples of so many results)."""
    starts, size = _block_starts(elements, seeded(seed))
    looked_at = len(starts) + len(_plain_starts(elements, starts, size, seed))
    return 2 * len(starts) * size * FLOAT_BYTES, results * looked_at * size * FLOAT_BYTES


class Checksum:
    """A running CRC-32 over samples, to compare runs with each other at a glance."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: array[float]) -> None:
        self._value = zlib.crc32(data.tobytes(), self._value)

    @property
    def text(self) -> str:
        return f"{self._value:08x}"
