"""Who had the GPU when, from a scheduler's log. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from nvshare.acceptance.concurrency.story import Task
from nvshare.acceptance.kube_test.logs import SchedulerLog
from nvshare.bench.spans import Span

AT_ONCE = 0.05  # seconds by which the lines of a log may be late


@dataclass(frozen=True)
class Holding:
    """A client's ``life``, from when it first had or wanted the GPU to its end, and the ``spans`` in which it could
    work."""

    client: str
    life: Span
    spans: tuple[Span, ...]

    @property
    def waited(self) -> tuple[Span, ...]:
        """The rest of its life."""
        edges = [self.life.begin, *(edge for span in self.spans for edge in (span.begin, span.end)), self.life.end]
        return tuple(Span(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if end > begin)


def holdings(log: SchedulerLog) -> dict[str, Holding]:
    """By client. What has no end in the log ends with it."""
    return {client: _holding(task) for client, task in log.tasks.items() if task.on}


def _holding(task: Task) -> Holding:
    known = [*task.on, *task.waited]
    life = Span(min(span.begin for span in known), max(span.end for span in known))
    return Holding(task.id, life, tuple(task.on))


def common(lives: Iterable[Span]) -> float:
    """Seconds that all of them have in common."""
    spans = list(lives)
    return max(0.0, min(span.end for span in spans) - max(span.begin for span in spans))


def overlap(one: Holding, other: Holding) -> float:
    """Seconds in which both could work."""
    return sum(common((mine, theirs)) for mine in one.spans for theirs in other.spans)


@dataclass(frozen=True)
class Meeting:
    """Two clients of one GPU that lived at the same time: for how many seconds, and how long both could work."""

    seconds: float
    together: float


def meetings(present: Sequence[Holding]) -> list[Meeting]:
    """One for each two clients that met."""
    found = (Meeting(common((one.life, other.life)), overlap(one, other)) for one, other in combinations(present, 2))
    return [meeting for meeting in found if meeting.seconds > 0]


def switches(present: Sequence[Holding]) -> int:
    """How often a GPU went from one client that had it alone to another."""
    turns = sorted((*span, holding.client) for holding in present for span in holding.spans)
    found, until, holder = 0, 0.0, ""
    for begin, end, client in turns:
        found += holder not in ("", client) and begin >= until - AT_ONCE
        if end >= until:
            until, holder = end, client
    return found
