"""A short selection for people who see nvshare for the first time: four scenes, one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from nvshare import config
from nvshare.bench.mission import BaselineFailed, make_row
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import PLAIN, Backend, Progress, RunPlan, TaskPlan, ignore_progress
from nvshare.bench.workloads.spec import WORKLOADS, Workload

QUOTA = 1 << 30
_IDLE_TASKS = 3
_SPARE = 0.1  # of the processors' time, idle on a machine that simulates in time
_CALIBRATION = 200  # adds that tell how fast a card is


@dataclass(frozen=True)
class Scene:
    """One run, the plain run it is compared with, and the sentence its row makes."""

    title: str
    tasks: tuple[TaskPlan, ...]
    sentence: Callable[[Row], str]

    @property
    def solo(self) -> Workload:
        return self.tasks[-1].workload


def calibrate(backend: Backend) -> float:
    """Adds per second of ``add-small``, alone and plain on this card."""
    workload = replace(WORKLOADS["add-small"], iterations=_CALIBRATION)
    outcome = backend.run(RunPlan((TaskPlan("calibration", workload),), PLAIN), ignore_progress)
    return outcome.tasks[0].its


def scenes(its: float, seconds: float) -> list[Scene]:
    """The selection, each task about so many of the card's seconds long when alone."""
    busy = replace(WORKLOADS["add-small"], iterations=max(1, round(its * seconds)))
    idle = WORKLOADS["add-idle-small"]
    idle = replace(idle, iterations=max(1, round(seconds / (idle.sleep + 1 / its))))
    greedy = TaskPlan("greedy", busy, seed=9, mem_limit=QUOTA, expected="OOM")
    return [
        Scene("one task alone", (TaskPlan("alone", busy),), _alone),
        Scene("two busy tasks on one GPU", _numbered("busy", busy, 2), _busy),
        Scene(f"{_IDLE_TASKS} mostly idle tasks on one GPU", _numbered("idle", idle, _IDLE_TASKS), _idle),
        Scene("a memory quota", (greedy, TaskPlan("neighbour", busy, seed=2)), _quota),
    ]


def _numbered(name: str, workload: Workload, count: int) -> tuple[TaskPlan, ...]:
    return tuple(TaskPlan(f"{name}-{index}", workload, seed=index) for index in range(1, count + 1))


def _alone(row: Row) -> str:
    return f"One task alone under nvshare runs at {100 / row.ratio:.1f} % of its plain speed ({row.source})."


def _busy(row: Row) -> str:
    share = " and ".join(f"{100 * row.baseline_s / task.loop_seconds:.0f} %" for task in row.details)
    return (
        f"Two busy tasks run on one GPU at the same time, at {share} of their solo speed; "
        f"{row.swapped_bytes} bytes were moved to the host ({row.source})."
    )


def _idle(row: Row) -> str:
    return (
        f"{row.tasks} mostly idle tasks share one GPU, each at {100 / row.ratio:.0f} % of its solo speed: "
        f"the GPU does {row.tasks / row.ratio:.1f} times the work ({row.source})."
    )


def _quota(row: Row) -> str:
    greedy, neighbour = row.details
    return (
        f"A quota of {config.format_size(QUOTA)} stops a greedy task with the CUDA out-of-memory error "
        f"({greedy.status}), its neighbour goes on at {100 / row.ratio:.0f} % of its solo speed "
        f"({neighbour.status}, {row.source})."
    )


def busy_note(before: tuple[int, int], after: tuple[int, int]) -> str | None:
    """Of a demonstration on simulated cards, whose time is the host's: what to know where other work took it.
    Both are processor times as ``procfs`` tells them."""
    whole, idle = (later - earlier for earlier, later in zip(before, after, strict=True))
    if not whole or idle > _SPARE * whole:
        return None
    return (
        f"This machine's processors were {100 - 100 * idle / whole:.0f} % busy meanwhile: simulated tasks then wait "
        "for the host, and take longer than sharing costs. Look again when it is quiet."
    )


def play(backend: Backend, scenes: list[Scene], started: Callable[[str], Progress]) -> Iterator[tuple[Scene, Row]]:
    """Run the scenes one by one; each plain run is made once."""
    plain: dict[Workload, float] = {}
    for number, scene in enumerate(scenes, start=1):
        if scene.solo not in plain:
            alone = RunPlan((replace(scene.tasks[-1], name="plain"),), PLAIN)
            outcome = backend.run(alone, started(f"{scene.solo.name} without nvshare, to compare"))
            if outcome.tasks[0].status != "PASS":
                raise BaselineFailed(f"{scene.solo.name} fails without nvshare too: {'; '.join(outcome.messages)}")
            plain[scene.solo] = outcome.tasks[0].loop_seconds
        outcome = backend.run(RunPlan(scene.tasks), started(scene.title))
        row = make_row(number, scene.title, scene.solo.name, "auto", outcome, backend.source, plain[scene.solo])
        yield scene, row
