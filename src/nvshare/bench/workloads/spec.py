"""What each workload is: sizes, work and pauses, without a word about how it runs.

The program (``program.py``) and the model (``nvshare.model``) both read it here, so they cannot disagree.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

FLOAT_BYTES = 4
MATRICES_PER_ADD = 3  # reads x and y, writes z
SLEEP_SPREAD = 0.2  # a pause is its nominal length give or take this part of it


def seeded(seed: int | str) -> random.Random:
    """Numbers that look random and are the same everywhere for the same seed."""
    return random.Random(seed)  # noqa: S311 (nothing secret)


@dataclass(frozen=True)
class Workload:
    """``z = x + y`` over n x n float32 matrices, again and again, ``z`` alternating between two buffers.

    ``cached`` buffers are allocated and filled but never computed with, as a framework's caching allocator keeps them.
    """

    name: str
    n: int
    iterations: int
    sleep: float = 0.0  # seconds after each add; 0: the next one follows at once
    cached: int = 0

    @property
    def elements(self) -> int:
        return self.n * self.n

    @property
    def buffer_bytes(self) -> int:
        return self.elements * FLOAT_BYTES

    @property
    def buffers(self) -> int:
        """x, y, two z, and the cached ones."""
        return 4 + self.cached

    @property
    def bytes(self) -> int:
        """Device memory it allocates."""
        return self.buffers * self.buffer_bytes

    @property
    def kernel_bytes(self) -> int:
        """Device memory that one add reads and writes."""
        return MATRICES_PER_ADD * self.buffer_bytes

    @property
    def busy(self) -> bool:
        """It wants the whole GPU all the time."""
        return self.sleep == 0.0

    def shortened(self, factor: float) -> Workload:
        """The same with a part of the iterations, at least one."""
        return replace(self, iterations=max(1, round(self.iterations * factor)))

    def sleeps(self, seed: int) -> Iterator[float]:
        """The pause after each add."""
        return pauses(self.sleep, seed)


def pauses(sleep: float, seed: int) -> Iterator[float]:
    """Pauses in seconds: about ``sleep`` each, the same sequence for the same seed.

    They vary because real pauses do. With equal ones, tasks that start together collide for ever: processor sharing
    ends equal bursts at the same moment. The spread matters: in the model of three idle-small per T4 begun together,
    the ratio is 1.20 with none, 1.08 with 0.1 %, 1.05 with 1 % and 1.02 from 10 % on. Each two pauses add up to twice
    ``sleep``, so that all seeds sleep equally long.
    """
    source = seeded(seed)
    while True:
        difference = SLEEP_SPREAD * (2.0 * source.random() - 1.0)
        yield sleep * (1.0 + difference)
        yield sleep * (1.0 - difference)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("add", n=28000, iterations=4000),
        Workload("add-small", n=14000, iterations=40000, cached=1),
        Workload("add-idle-small", n=14000, iterations=4000, sleep=0.1, cached=1),
    )
}

BATCH = 32  # launches between two marks in the stream
BATCHES_IN_FLIGHT = 2  # the program runs at most this many batches ahead of the GPU, as a framework's queue bounds it
