"""What a switch takes against what the link alone would need: two tasks that do not fit take turns on one card."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from nvshare import config
from nvshare.bench.columns import GIB, JUDGED, SOURCE, Column, Compared, gib, percent
from nvshare.bench.eviction import sized
from nvshare.bench.history import CardHistory
from nvshare.bench.linkspeed import LinkSpeed
from nvshare.bench.outcome import Backend, Progress, RunPlan, TaskPlan, TaskResult

QUANTUM = 2.0  # seconds: short turns make many switches
_WORK = 10.0  # seconds of the scheduler's clock that each task computes


def problem(declared: int, size: int) -> str | None:
    """Why two tasks of this size cannot take turns on a card of which so much is declared; None when they can."""
    if declared // 2 < size <= declared:
        return None
    return (
        f"two tasks of {config.format_size(size)} do not take turns on {config.format_size(declared)}: --size "
        "is more than half of --card-memory and at most all of it"
    )


def _part(title: str, says: str, compared: Compared | None = None) -> Column:
    """A part of a switch."""
    return Column(title, _SECONDS, says=says, compared=compared)


_SECONDS = "{:.4f} s"
_OUT = Compared("out per switch, GiB", -1, "{:.4f}", unit=GIB)
_DRAIN = Compared("drain, s", -1, "{:.4f}")
_STALL = Compared("stall, s", -1, "{:.4f}")
_OF_LIMIT = Compared("part of the link's limit", 1, "{:.4f}")


@dataclass(frozen=True)
class SwapRow:
    """Means over the switches of one run, in seconds of the card.

    A switch is ``drain_s`` (the leaving task finishes what it has submitted: the card still works) and ``stall_s``
    (nobody computes). Of the stall, ``copy_s`` is what the calibrated link needs at least, ``map_s`` what giving memory
    addresses and taking it away costs where nothing is copied meanwhile, ``wait_s`` the rest: messages, waking up,
    uneven ends. Most of the mapping happens while something is copied, so that all of them can be more than the stall.
    """

    title: Annotated[str, Column("title")]
    declared: int
    allocated: int
    switches: Annotated[int, Column("switches")]
    out_per_switch: Annotated[float, Column("out per switch", gib, compared=_OUT)]
    in_per_switch: Annotated[float, Column("in per switch", gib)]
    drain_s: Annotated[float, _part("drain", "the leaving task finishes what it submitted; the card works", _DRAIN)]
    stall_s: Annotated[float, Column("stall", _SECONDS, compared=_STALL)]
    copy_s: Annotated[float, _part("copy", "at the speed of the link, both ways at once")]
    map_s: Annotated[float | None, _part("map", "addresses given and taken away; most of it while something is copied")]
    wait_s: Annotated[float, _part("wait", "messages, waking up, uneven ends")]
    link: LinkSpeed
    source: Annotated[str, SOURCE]
    details: tuple[TaskResult, ...] = ()
    messages: tuple[str, ...] = ()
    timeline: tuple[CardHistory, ...] = ()

    @property
    def of_limit(self) -> Annotated[float, Column("of limit", percent, compared=_OF_LIMIT)]:
        """The link's own time as a part of the stall: 1 is what cannot be beaten."""
        return self.copy_s / self.stall_s if self.stall_s else 0.0

    @property
    def passed(self) -> Annotated[bool, JUDGED]:
        return self.switches > 0 and all(task.status == task.expected for task in self.details)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "of_limit": self.of_limit, "passed": self.passed}


def measure(
    backend: Backend, link: LinkSpeed, size: int, declared: int, its: float, speed: float, progress: Progress
) -> SwapRow:
    """``its``: adds of 1 GiB of allocations that the card does in a second of its own; ``speed``: how many such seconds
    pass in one of the scheduler's."""
    workload = sized(size, max(1, round(_WORK * speed * its * GIB / size)))
    tasks = tuple(TaskPlan(f"nvshare-swap-{index}", workload, seed=index) for index in (1, 2))
    outcome = backend.run(RunPlan(tasks, quantum=QUANTUM), progress)
    turns = outcome.turns
    assert turns is not None  # the run was shared
    switches = max(1, turns.switches)
    out_bytes, in_bytes = turns.out_bytes / switches, turns.in_bytes / switches
    stall = (turns.stall_s or 0.0) / switches
    copy = link.seconds(out_bytes, in_bytes)
    mapping = None if turns.map_s is None else turns.map_s / switches
    if mapping is None and link.mapping is not None:
        mapping = link.mapping * (out_bytes + in_bytes) / 2
    return SwapRow(
        title=f"2 x {size / GIB:g} GiB on {declared / GIB:g} GiB",
        declared=declared,
        allocated=2 * workload.bytes,
        switches=turns.switches,
        out_per_switch=out_bytes,
        in_per_switch=in_bytes,
        drain_s=(turns.drain_s or 0.0) / switches,
        stall_s=stall,
        copy_s=copy,
        map_s=mapping,
        wait_s=max(0.0, stall - copy - (mapping or 0.0)),
        link=link,
        source=backend.source,
        details=outcome.tasks,
        messages=outcome.messages,
        timeline=outcome.cards,
    )
