"""Whether the host stood still: a thread on each core sleeps and notes when it was woken late.

What a virtual machine's host does to it shows in no counter of the guest. A task whose core stands still for some ten
milliseconds loses them, natively and under nvshare alike; rows tell how much of that there was beside them.
"""

from __future__ import annotations

import os
import threading
import time

_NAP = 0.01  # seconds
LATE = 0.01  # seconds beyond it: no scheduler of the guest lets a thread wait that long for a core that is not crowded


class HiccupWatch:
    """Use as a context; ``seconds`` tells what was seen."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._seen: list[tuple[float, float]] = []  # when a thread woke up, and how late that was
        cores = sorted(os.sched_getaffinity(0))
        self._threads = [threading.Thread(target=self._watch, args=(core,), daemon=True) for core in cores]

    def __enter__(self) -> HiccupWatch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, core: int) -> None:
        os.sched_setaffinity(0, {core})  # this thread
        while not self._end.is_set():
            due = time.monotonic() + _NAP
            time.sleep(_NAP)
            self.note(time.monotonic(), due)

    def note(self, woke: float, due: float) -> None:
        if woke - due > LATE:
            self._seen.append((woke, woke - due))

    def seconds(self, begin: float, end: float) -> float:
        """For how long cores stood still within a window, all of them together."""
        within = (min(woke, end) - max(woke - late, begin) for woke, late in list(self._seen))
        return sum(part for part in within if part > 0)
