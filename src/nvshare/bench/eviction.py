"""Least eviction: a switch moves what does not fit, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from nvshare import config
from nvshare.bench.columns import GIB, JUDGED, SOURCE, Column, Compared, gib
from nvshare.bench.history import CardHistory
from nvshare.bench.outcome import PLAIN, Backend, Progress, RunPlan, TaskPlan, TaskResult, ignore_progress
from nvshare.bench.workloads.spec import FLOAT_BYTES, WORKLOADS, Workload

CASES: tuple[tuple[int, ...], ...] = ((9, 9), (12, 12), (5, 7, 9))  # GiB
DECLARED = 16 * GIB
ALLOWANCE = GIB // 2  # chunks do not fit to the byte
QUANTUM = 1.0  # seconds: the shortest turn there is
_WORK = 3.0  # seconds of the scheduler's clock that each task computes
_CALIBRATION = 400  # adds that tell how fast a card is


def problem(declared: int) -> str | None:
    """Why the cases cannot take turns on a card of which so much is declared; None when they can."""
    largest, least = max(max(sizes) for sizes in CASES), min(sum(sizes) for sizes in CASES)
    if largest * GIB <= declared < least * GIB:
        return None
    return (
        f"tasks of up to {largest} GiB do not take turns on {config.format_size(declared)}: --card-memory is "
        f"{largest}GiB or more, and less than {least}GiB, which all of them would fit in"
    )


def sized(size: int, iterations: int) -> Workload:
    """``add`` with allocations of together at most so many bytes."""
    workload = WORKLOADS["add"]
    elements = size / workload.buffers / FLOAT_BYTES
    return replace(workload, n=int(math.sqrt(elements)), iterations=iterations)


def kernel_bytes(size: int) -> int:
    """What one add moves through the card's memory when allocations are so many bytes."""
    workload = WORKLOADS["add"]
    return size * workload.kernel_bytes // workload.bytes


def calibrate(backend: Backend) -> float:
    """Adds per second, plain, with 1 GiB of allocations."""
    task = TaskPlan("calibration", sized(4 * GIB, _CALIBRATION))
    return 4 * backend.run(RunPlan((task,), PLAIN), ignore_progress).tasks[0].its


_OUT = Compared("out per switch, GiB", -1, unit=GIB)
_IN = Compared("in per switch, GiB", -1, unit=GIB)


@dataclass(frozen=True)
class EvictionRow:
    """Bytes that went each way per switch: the mean, and the most that one switch moved."""

    case: Annotated[str, Column("case")]
    declared: int
    allocated: int
    switches: Annotated[int, Column("switches")]
    out_per_switch: Annotated[float, Column("out per switch", gib, compared=_OUT)]
    in_per_switch: Annotated[float, Column("in per switch", gib, compared=_IN)]
    largest: Annotated[int | None, Column("largest", gib)]
    bound: Annotated[int, Column("at most", gib)]
    source: Annotated[str, SOURCE]
    details: tuple[TaskResult, ...] = ()
    messages: tuple[str, ...] = ()
    timeline: tuple[CardHistory, ...] = ()

    @property
    def passed(self) -> Annotated[bool, JUDGED]:
        tasks = all(task.status == task.expected for task in self.details)
        moved = max(self.out_per_switch, self.in_per_switch, self.largest or 0)
        return tasks and self.switches > 0 and moved <= self.bound

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def measure(
    backend: Backend, sizes: Sequence[int], declared: int, its: float, speed: float, progress: Progress
) -> EvictionRow:
    """Tasks of so many GiB take turns on a declared card; ``its`` is how many adds of 1 GiB of allocations the card
    does in a second of its own, ``speed`` how many such seconds pass in one of the scheduler's."""
    seconds = _WORK * speed
    tasks = tuple(
        TaskPlan(f"nvshare-{size}g-{index + 1}", sized(size * GIB, max(1, round(seconds * its / size))), seed=index + 1)
        for index, size in enumerate(sizes)
    )
    outcome = backend.run(RunPlan(tasks, quantum=QUANTUM), progress)
    turns = outcome.turns
    assert turns is not None  # the run was shared
    allocated = sum(task.workload.bytes for task in tasks)
    switches = turns.switches
    return EvictionRow(
        case=" + ".join(map(str, sizes)) + f" GiB on {declared / GIB:g}",
        declared=declared,
        allocated=allocated,
        switches=switches,
        out_per_switch=turns.out_bytes / switches if switches else 0.0,
        in_per_switch=turns.in_bytes / switches if switches else 0.0,
        largest=turns.largest_bytes,
        bound=allocated - declared + ALLOWANCE,
        source=backend.source,
        details=outcome.tasks,
        messages=outcome.messages,
        timeline=outcome.cards,
    )
