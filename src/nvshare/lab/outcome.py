"""What is measured: the plan of one run, and what came of it. Every backend takes the one and gives the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nvshare.lab.workloads.spec import Workload


@dataclass(frozen=True)
class TaskPlan:
    """One process: what it runs, on which GPU of the node, with which seed and under which memory quota."""

    name: str
    workload: Workload
    gpu: int = 0
    seed: int = 1
    mem_limit: int | None = None
    expected: str = "PASS"


@dataclass(frozen=True)
class RunPlan:
    """Tasks that begin their loops at the same moment. ``shared``: under nvshare; otherwise plain."""

    tasks: tuple[TaskPlan, ...]
    shared: bool = True


@dataclass(frozen=True)
class TaskResult:
    """``seconds`` covers set-up and loop, ``loop_seconds`` the loop alone; both are the card's time."""

    name: str
    client: str  # 16 hex digits; empty when it ran plain
    gpu: str
    status: str  # PASS, FAIL or OOM
    expected: str
    seconds: float
    loop_seconds: float
    its: float
    window: int | None = None
    occupied: float | None = None  # seconds with unfinished work on the GPU, as the scheduler saw it


@dataclass(frozen=True)
class Outcome:
    tasks: tuple[TaskResult, ...]
    swapped_bytes: int = 0  # copied between host and card beyond what the workloads copied themselves
    switches: int = 0  # turns that went from one task to another
    messages: tuple[str, ...] = field(default=())  # what failed tasks said


Progress = Callable[[float], None]  # part of the run that is done, 0 to 1


class Backend(Protocol):
    """Where runs happen."""

    source: str  # "model", "simulated" or "gpu"
    title: str  # for people: "2 x T4 (simulated)"
    gpus: int

    def run(self, plan: RunPlan, progress: Progress) -> Outcome: ...


def ignore_progress(_: float) -> None:
    """For callers that show none."""
