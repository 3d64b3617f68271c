"""What becomes of a task whose neighbour goes: it must be back at its solo speed within a second, or as soon as a slow
link can bring its memory back."""

from __future__ import annotations

from dataclasses import replace

from nvshare.bench.outcome import Outcome, RunPlan, TaskPlan, Timeline
from nvshare.bench.workloads.spec import WORKLOADS, Workload

WINDOW = 0.25  # seconds over which a speed is taken
FULL_SPEED = 0.98  # of solo
IN_TIME = 1.0  # seconds after the neighbour's end
_BEYOND_LINK = 1.1  # of what the link alone needs
QUANTUM = 2.0  # seconds; short turns, so that the neighbour goes in a turn of its own soon
_SURVIVOR_SECONDS = 7.0  # of work, alone
_NEIGHBOUR_SECONDS = 3.0
_KILLED_AFTER = 0.75  # of the neighbour's work

EXIT, KILL = "exit", "kill"
HOW = {EXIT: "exits", KILL: "is killed (SIGKILL)"}


def workload(its: float) -> Workload:
    """The survivor's, on a card that does so many adds per second."""
    return replace(WORKLOADS["add"], iterations=round(_SURVIVOR_SECONDS * its))


def plan(how: str, survivor: Workload) -> RunPlan:
    """Two tasks that do not fit together; the first goes in the middle of one of its turns, when the other's memory is
    on the host."""
    iterations = round(survivor.iterations * _NEIGHBOUR_SECONDS / _SURVIVOR_SECONDS)
    goes = TaskPlan("nvshare-goes", replace(survivor, iterations=iterations), marks=1)
    if how == KILL:
        goes = replace(goes, killed_at=round(iterations * _KILLED_AFTER), expected="KILLED")
    else:
        goes = replace(goes, leaves=True)
    return RunPlan((goes, TaskPlan("nvshare-stays", survivor, seed=2, marks=1)), quantum=QUANTUM)


def judge(outcome: Outcome, solo_its: float) -> float | None:
    """How long after its neighbour's end the survivor is at full speed again, and stays so; None: never."""
    goes, stays = (outcome.timelines[task.name] for task in outcome.tasks)
    return None if goes.ended is None else recovery(stays, goes.ended, solo_its)


def allowed(link_seconds: float | None) -> float:
    """Seconds that a survivor has, where the link alone needs so many: judged by what is possible."""
    return IN_TIME if link_seconds is None or link_seconds <= IN_TIME else _BEYOND_LINK * link_seconds


def recovery(timeline: Timeline, since: float, solo_its: float) -> float | None:
    """Seconds from ``since`` to the begin of the first window at full speed from which on the rest of the timeline is
    at full speed too, taken as a whole: a hiccup of the machine later on is no sign of a task that crawls.

    A window reaches from one mark to the first that is at least ``WINDOW`` later, so that no part of a kernel is
    guessed; it begins with its first kernel.
    """
    marks = [mark for mark in timeline.marks if mark[0] >= since]

    def is_full(first: tuple[float, int], last: tuple[float, int]) -> bool:
        return last[1] - first[1] >= FULL_SPEED * solo_its * (last[0] - first[0])

    for index, (began, done) in enumerate(marks):
        end = next((mark for mark in marks[index:] if mark[0] - began >= WINDOW), None)
        if end is None:
            return None
        if is_full((began, done), end) and is_full((began, done), marks[-1]):
            before = marks[index - 1][1] if index else done - 1
            return max(0.0, began - since - (done - before) / solo_its)
    return None
