"""What is measured: the plan of one run, and what came of it. Every backend takes the one and gives the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from nvshare.bench.columns import VERDICT, Column, Compared
from nvshare.bench.history import CardHistory
from nvshare.bench.workloads.spec import Workload
from nvshare.cores import Cores

PLAIN = "plain"  # the mode of a run without nvshare


@dataclass(frozen=True)
class TaskPlan:
    """One process: what it runs, on which GPU of the node, with which seed and under which quotas.

    Tasks stay until all are done, unless one ``leaves`` after its own loop or is killed (SIGKILL) once it has done
    ``killed_at`` iterations. ``marks`` launches at a time the task notes how far it is.
    """

    name: str
    workload: Workload
    gpu: int = 0
    seed: int = 1
    mem_limit: int | None = None
    core_limit: int | Cores | None = None  # percent: a number caps
    urgent: bool = False  # high priority
    expected: str = "PASS"
    marks: int | None = None
    leaves: bool = False
    killed_at: int | None = None


@dataclass(frozen=True)
class RunPlan:
    """Tasks that begin their loops at the same moment, under nvshare in this mode, or plain.

    ``quantum``: seconds of a turn; None: what the scheduler makes of its switches.
    """

    tasks: tuple[TaskPlan, ...]
    mode: str = "auto"
    quantum: float | None = None

    @property
    def shared(self) -> bool:
        return self.mode != PLAIN


_SPEED = Compared("it/s", 1, "{:.2f}", value=lambda task: task["its"] if task["its"] > 0 else None)


@dataclass(frozen=True)
class TaskResult:
    """``seconds`` covers set-up and loop, ``loop_seconds`` the loop alone; both are the card's time."""

    name: Annotated[str, Column("task")]
    client: str  # 16 hex digits; empty when it ran plain
    gpu: Annotated[str, Column("GPU")]
    status: Annotated[str, Column("status", place=VERDICT)]  # PASS, FAIL, OOM or KILLED
    expected: str
    seconds: float
    loop_seconds: Annotated[float, Column("seconds", "{:.1f}")]
    its: Annotated[float, Column("it/s", "{:.2f}", compared=_SPEED)]
    window: int | None = None
    occupied: float | None = None  # seconds with unfinished work on the GPU, as the scheduler saw it


@dataclass(frozen=True)
class Timeline:
    """How far a task was when, in the card's seconds since the loops began, and when its process ended."""

    marks: tuple[tuple[float, int], ...] = ()
    ended: float | None = None


@dataclass(frozen=True)
class Outcome:
    tasks: tuple[TaskResult, ...]
    swapped_bytes: int = 0  # copied between host and card beyond what the workloads copied themselves
    switches: int = 0  # turns that went from one task to another
    messages: tuple[str, ...] = field(default=())  # what failed tasks said
    timelines: Mapping[str, Timeline] = field(default_factory=dict)  # by the tasks' names, where asked for
    turns: Turns | None = None
    cards: tuple[CardHistory, ...] = ()  # who had which card when, of runs under nvshare


@dataclass(frozen=True)
class Turns:
    """What taking turns cost on all cards together, between the begin of the loops and the end of the last.

    ``out_bytes`` and ``in_bytes`` were moved to the host and back. ``stall_s``: no task could compute, from the end of
    one turn to the begin of the next, all switches together; None where nobody measured it.
    """

    switches: int
    out_bytes: int
    in_bytes: int
    stall_s: float | None = None
    drain_s: float | None = None
    map_s: float | None = None
    largest_bytes: int | None = None  # the most that one switch moved one way, where each was watched


Progress = Callable[[float], None]  # part of the run that is done, 0 to 1


class Backend(Protocol):
    """Where runs happen."""

    source: str  # "model", "simulated" or "gpu"
    title: str  # for people: "2 x T4 (simulated)"
    gpus: int

    def room(self, tasks: int) -> int | None:
        """Bytes of a card that so many processes leave for their allocations; None: not known."""

    def run(self, plan: RunPlan, progress: Progress) -> Outcome: ...


def ignore_progress(_: float) -> None:
    """For callers that show none."""
