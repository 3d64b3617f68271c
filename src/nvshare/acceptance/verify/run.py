"""All checks, one after the other; findings come as they are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nvshare.acceptance.verify import node, quotas, sharing
from nvshare.acceptance.verify.finding import Finding, Verdict
from nvshare.acceptance.verify.ground import Ground
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed
from nvshare.client.connection import SchedulerError
from nvshare.launch.errors import LaunchError

SECONDS = 3.0  # of a watched window
CARD_MEMORY = 4 << 30  # bytes of each card that are declared: enough to measure, and quick to move
SMALLEST_CARD = 1 << 30

_FAILURES = (WorkerFailed, SchedulerError, LaunchError, ValueError)


@dataclass(frozen=True)
class Check:
    title: str
    expected: str
    carry_out: Callable[[Ground], Verdict]


CHECKS: dict[str, Check] = {
    "parallel": Check(
        "parallel when it fits",
        "2 on at once, no DROP_LOCK, nothing moved, each moves on in every quarter of a second",
        sharing.parallel,
    ),
    "serial-memory": Check(
        "serial when it does not fit",
        "1 on at a time, both have turns, right results",
        sharing.serial_by_memory,
    ),
    "serial-mode": Check(
        "serial when forced",
        "the same with memory that fits, in serial mode",
        sharing.serial_by_mode,
    ),
    "survivor": Check(
        "survivor's speed",
        f"{sharing.FULL_SPEED:.0%} of its solo speed or more, {sharing.IN_TIME:g} s after its neighbour was killed",
        sharing.survivor,
    ),
    "memory-quota": Check(
        "memory quota",
        "the quota is shown as the card; beyond it, summed over a lease, out of memory; the others go on",
        quotas.memory,
    ),
    "compute-quota": Check(
        "compute quota",
        f"alone {quotas.LOW} %; together {quotas.LOW} and {quotas.HIGH} %; {quotas.POINTS:g} points off at most",
        quotas.compute,
    ),
    "change": Check(
        "change while running",
        f"compute {quotas.LOW} % to {quotas.RAISED} %, memory twice as much, within {quotas.IN_TIME:g} s",
        quotas.change,
    ),
    "spread": Check("spread over cards", f"{node.PER_CARD} tasks on each card", node.spread),
    "restart": Check(
        "restart of the scheduler",
        f"no pause over {node.LONGEST_PAUSE:g} s, and the task is known again with its memory",
        node.restart,
    ),
}


def verify(
    venue: Venue,
    card_memory: int = CARD_MEMORY,
    checks: Sequence[str] = tuple(CHECKS),
    seconds: float = SECONDS,
    begun: Callable[[Check], None] = lambda check: None,
    attempts: int = 2,
) -> Iterator[Finding]:
    """Carry the checks out, again where one fails: a burst of other work on the host is no finding about nvshare.
    ``begun`` hears of each. ``SchedulerError`` when there is no scheduler to check."""
    ground = Ground(venue, card_memory, seconds, venue.ensure_scheduler())
    for name in checks:
        check = CHECKS[name]
        begun(check)
        began = time.monotonic()
        verdict = _attempt(check, ground)
        for number in range(2, attempts + 1):
            if verdict.ok is False:
                verdict = _attempt(check, ground)
                verdict = replace(verdict, seen=f"{verdict.seen} (attempt {number})")
        yield Finding(name, check.title, check.expected, verdict, time.monotonic() - began)


def _attempt(check: Check, ground: Ground) -> Verdict:
    try:
        return check.carry_out(ground)
    except _FAILURES as error:
        return Verdict(str(error), ok=False)
