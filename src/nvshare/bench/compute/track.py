"""How far a task was when: speeds over any window, pauses, latencies. Pure functions over what a worker noted."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median


@dataclass(frozen=True)
class Track:
    """``times``: when steps were found finished, on the clock that all processes share; ``counts``: how many were by
    then, since the beginning. ``bursts``: when each burst of work was wanted, and how long it took from then.
    ``right``: the results were looked at and are what they should be. ``cpu``: seconds that the submitting thread had
    run by the same times."""

    times: Sequence[float]
    counts: Sequence[float]
    bursts: Sequence[tuple[float, float]] = ()
    right: bool = True
    cpu: Sequence[float] = ()

    def done(self, at: float) -> float:
        """Steps done by a moment."""
        return self._by(at, self.counts)

    def _by(self, at: float, values: Sequence[float]) -> float:
        """What it was at a moment; between two marks the work is taken as even."""
        after = bisect.bisect_right(self.times, at)
        if after == 0:
            return 0.0
        if after == len(self.times):
            return values[-1]
        before = after - 1
        part = (at - self.times[before]) / (self.times[after] - self.times[before])
        return values[before] + part * (values[after] - values[before])

    def speed(self, begin: float, end: float) -> float:
        """Steps per second over a window."""
        return (self.done(end) - self.done(begin)) / (end - begin)

    def speed_on_cpu(self, begin: float, end: float) -> float:
        """Steps per second of the core that it had; 0 where it had none of it."""
        begin = max(begin, self.times[0]) if self.times else begin
        had = self._by(end, self.cpu) - self._by(begin, self.cpu)
        return (self.done(end) - self.done(begin)) / had if had > 0 else 0.0

    def step_seconds(self, begin: float, end: float) -> float | None:
        """What a step takes while the task computes: the median over the marks of a window, so that waiting for a turn
        does not count. None with fewer than two marks."""
        marks = [mark for mark in zip(self.times, self.counts, strict=True) if begin <= mark[0] <= end]
        if len(marks) < 2:
            return None
        return median((later[0] - early[0]) / (later[1] - early[1]) for early, later in itertools.pairwise(marks))

    def longest_pause(self, begin: float, end: float) -> float:
        """The longest time within a window in which no step was seen to end."""
        inside = [time for time in self.times if begin < time < end]
        edges = [begin, *inside, end]
        return max(later - earlier for earlier, later in itertools.pairwise(edges))

    def latencies(self, begin: float, end: float) -> list[float]:
        """Of the bursts that were wanted within a window."""
        return [took for wanted, took in self.bursts if begin <= wanted < end]


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half: as steady as a mean, and no more moved by a few that went wrong than a median."""
    outside = len(values) // 4
    return fmean(sorted(values)[outside : len(values) - outside])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    if not values:
        raise ValueError("a percentile of nothing")
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]
