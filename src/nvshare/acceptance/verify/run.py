"""The checks of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nvshare.acceptance.finding import Finding
from nvshare.acceptance.runner import Check, run
from nvshare.acceptance.verify import node, quotas, sharing
from nvshare.acceptance.verify.ground import Ground
from nvshare.bench.processes import Venue

SECONDS = 3.0  # of a watched window
CARD_MEMORY = 4 << 30  # bytes of each card that are declared: enough to measure, and quick to move
SMALLEST_CARD = 1 << 30

CHECKS: dict[str, Check[Ground]] = {
    check.name: check
    for check in (
        Check(
            "parallel",
            sharing.parallel,
            "2 on at once, no DROP_LOCK, nothing moved, each moves on in every quarter of a second",
            "parallel when it fits",
        ),
        Check(
            "serial-memory",
            sharing.serial_by_memory,
            "1 on at a time, both have turns, right results",
            "serial when it does not fit",
        ),
        Check(
            "serial-mode",
            sharing.serial_by_mode,
            "the same with memory that fits, in serial mode",
            "serial when forced",
        ),
        Check(
            "survivor",
            sharing.survivor,
            f"{sharing.FULL_SPEED:.0%} of its solo speed or more, {sharing.IN_TIME:g} s after its neighbour was killed",
            "survivor's speed",
        ),
        Check(
            "memory-quota",
            quotas.memory,
            "the quota is shown as the card; beyond it, summed over a lease, out of memory; the others go on",
            "memory quota",
        ),
        Check(
            "compute-quota",
            quotas.compute,
            f"alone {quotas.LOW} %; together {quotas.LOW} and {quotas.HIGH} %; {quotas.POINTS:g} points off at most",
            "compute quota",
        ),
        Check(
            "change",
            quotas.change,
            f"compute {quotas.LOW} % to {quotas.RAISED} %, memory twice as much, within {quotas.IN_TIME:g} s",
            "change while running",
        ),
        Check("spread", node.spread, f"{node.PER_CARD} tasks on each card", "spread over cards"),
        Check(
            "restart",
            node.restart,
            f"no pause over {node.LONGEST_PAUSE:g} s, and the task is known again with its memory",
            "restart of the scheduler",
        ),
    )
}


def verify(
    venue: Venue,
    card_memory: int = CARD_MEMORY,
    checks: Sequence[str] = tuple(CHECKS),
    seconds: float = SECONDS,
    begun: Callable[[Check[Ground]], None] = lambda check: None,
    attempts: int = 2,
) -> Iterator[Finding]:
    """Carry the named checks out; see ``runner.run``. ``SchedulerError`` when there is no scheduler to check."""
    ground = Ground(venue, card_memory, seconds, venue.ensure_scheduler())
    return run([CHECKS[name] for name in checks], ground, begun, attempts)
