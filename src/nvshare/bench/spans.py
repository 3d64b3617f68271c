"""Stretches of time: merged, cut, and how long several of them lasted at once. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin


def of_marks(times: Iterable[float], gap: float) -> list[Span]:
    """Where marks follow each other with no larger gap than this."""
    spans: list[Span] = []
    for time in sorted(times):
        if spans and time - spans[-1].end <= gap:
            spans[-1] = Span(spans[-1].begin, time)
        else:
            spans.append(Span(time, time))
    return spans


def within(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The parts inside a window, counted from its begin."""
    cut = (Span(max(span.begin, begin) - begin, min(span.end, end) - begin) for span in spans)
    return [span for span in cut if span.length > 0]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time, each moment once."""
    whole: list[Span] = []
    for span in sorted(spans):
        if whole and span.begin <= whole[-1].end:
            whole[-1] = Span(whole[-1].begin, max(whole[-1].end, span.end))
        else:
            whole.append(span)
    return whole


def length(spans: Iterable[Span]) -> float:
    return sum(span.length for span in spans)


def covered(spans: Iterable[Span], begin: float, end: float) -> float:
    """How much of a window they take."""
    return sum(max(0.0, min(span.end, end) - max(span.begin, begin)) for span in spans)


def at_once(tasks: Iterable[Sequence[Span]], count: int = 2) -> list[Span]:
    """When at least so many tasks were at it; each one's own spans do not overlap."""
    edges = sorted((time, step) for spans in tasks for span in spans for time, step in ((span[0], 1), (span[1], -1)))
    found: list[Span] = []
    busy, since = 0, 0.0
    for time, step in edges:
        if busy < count <= busy + step:
            since = time
        elif busy + step < count <= busy and time > since:
            found.append(Span(since, time))
        busy += step
    return merged(found)
