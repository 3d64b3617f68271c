"""Tasks that do not fit on a card declared small take turns, and their memory moves at the speed of the link.

    python -m nvshare.bench.gpu.swap [--only pair,wake,many,whole,three,unified] [--budget 215] [--json FILE]

Takes 40 GiB of free memory on the card and 48 GiB on the host. Measures the link first, by plain driver calls. The card
is never filled: it is only declared small.

All processes are started at the beginning, because importing PyTorch takes longer than most of the measurements; tests
of the same tasks on the same card share them. The tests come in the order of their weight. A test for which the budget
has no time left is skipped and says so; after one that fails, the others get new processes.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nvshare.bench.compute.kinds import ADD
from nvshare.bench.compute.track import Track
from nvshare.bench.gpu.report import Report, Row, options
from nvshare.bench.gpu.scheduler import GIB, OwnScheduler, build_native, plain_environment
from nvshare.bench.gpu.tasks import Task
from nvshare.bench.linkspeed import LinkSpeed
from nvshare.bench.linkspeed import measure as measure_link
from nvshare.bench.switches import Switch, SwitchWatch
from nvshare.bench.worker import ending

LARGE, SMALL = 11.9, 6.9  # GiB of the tasks' buffers: what people call 12 and 7 GiB, with room for the allocator
PAIR_SECONDS = 22.0  # of work for each of two tasks, alone
WHOLE_SECONDS = 6.0
UNIFIED_SECONDS = 4.0
THREE_SECONDS = 12.0  # of the clock
WAKES = 8
MANY_SWITCHES = 100
WARM_UP = 200  # adds
SOLO_SECONDS = 2.0
BATCH_SECONDS = 0.01  # the part of a turn that may go uncounted
PATIENCE = 2.0  # times what a test should take, until it is given up
TURNS_PATIENCE = 600.0  # seconds for tasks in turns: a watch gives them up before
GRACE = 10.0  # seconds beyond the budget that the last test may take


@dataclass(frozen=True)
class Bench:
    """What is measured once and used by all tests; ``solo`` holds adds per second of a native process, by GiB."""

    link: LinkSpeed
    solo: Mapping[float, float]


@dataclass(frozen=True)
class Stage:
    """One test's own scheduler and tasks. Each task has computed once, so that all its memory exists."""

    scheduler: OwnScheduler
    members: list[Task]
    gib: float
    declared: float


@dataclass(frozen=True)
class Test:
    """So many tasks of so many GiB on a card declared at so many; ``seconds`` is what it takes in all, ``least`` what
    it can be cut down to."""

    measure: Callable[[Bench, Stage, float], Iterator[Row]]  # the last: when its time is over, on the monotonic clock
    seconds: float
    least: float | None = None
    tasks: int = 2
    gib: float = LARGE
    declared: float = 16.0
    variables: Mapping[str, str] = field(default_factory=dict)

    def same_tasks(self, other: Test) -> bool:
        """Whether both can be made with the same processes on the same card."""
        mine, theirs = (replace(test, measure=self.measure, seconds=0.0, least=None) for test in (self, other))
        return mine == theirs


def together(members: list[Task], steps: int) -> list[dict[str, Any]]:
    for member in members:
        member.send(do="run", steps=steps)
    return [member.receive(TURNS_PATIENCE) for member in members]


def account(switches: list[Switch], link: LinkSpeed) -> Row:
    """What the switches of a run moved and took, against the link. The first two count what came before the run too,
    and page-lock host memory where that was not done ahead; they are shown, but left out of the means."""
    counted = switches[2:] or switches
    if not counted:
        return {"switches": 0, "largest_gib": 0.0, "of_limit": 0.0, "stall_ratio": float("inf")}
    limit = statistics.fmean(link.seconds(switch.out_bytes, switch.in_bytes) for switch in counted)
    stall = statistics.fmean(switch.stall for switch in counted)
    return {
        "switches": len(switches),
        "out_gib": round(statistics.fmean(switch.out_bytes for switch in counted) / GIB, 3),
        "in_gib": round(statistics.fmean(switch.in_bytes for switch in counted) / GIB, 3),
        "largest_gib": round(max(max(switch.out_bytes, switch.in_bytes) for switch in counted) / GIB, 3),
        "drain_s": round(statistics.fmean(max(0.0, switch.seconds - switch.stall) for switch in counted), 4),
        "stall_s": round(stall, 4),
        "copy_limit_s": round(limit, 4),
        "of_limit": round(limit / stall, 3) if stall else 1.0,
        "stall_ratio": round(stall / limit, 3) if limit else 0.0,
        "first_stalls_s": [round(switch.stall, 3) for switch in switches[:2]],
    }


def in_turns(bench: Bench, stage: Stage, seconds: float) -> tuple[Row, bool]:
    """The tasks do so many seconds of work each; what their turns cost, and whether all sums are right."""
    its = bench.solo[stage.gib]
    steps = int(seconds * its)
    with SwitchWatch(stage.scheduler.status) as watch:
        answers = together(stage.members, steps)
    right = all(answer["right"] for answer in answers)
    ratio = max(answer["seconds"] for answer in answers) * its / steps
    return {"ratio": round(ratio, 4), "right": right, **account(watch.switches, bench.link)}, right


def pair(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """Two tasks of 12 GiB on a declared 16 GiB, all settings as they come."""
    allocated = sum(client["gpus"][0]["allocated"] for client in stage.scheduler.status()["clients"])
    most = round(allocated / GIB - stage.declared + 0.5, 3)
    row, right = in_turns(bench, stage, PAIR_SECONDS)
    few_bytes = row["switches"] > 0 and row["largest_gib"] <= most
    yield {
        "test": "two 12 GiB tasks on 16 GiB",
        **row,
        "most_gib": most,
        "quantum_s": stage.scheduler.status()["gpus"][0]["quantum_s"],
        "ok": right and few_bytes and row["ratio"] <= 2.06 and row["of_limit"] >= 0.8,
    }


def whole(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """Two tasks that each take the whole declared card: all of it changes places."""
    stage.scheduler.set_quantum(2)
    row, right = in_turns(bench, stage, WHOLE_SECONDS)
    ok = right and row["switches"] > 0 and row["stall_ratio"] <= 1.3
    yield {"test": "whole 12 GiB sets change places", **row, "ok": ok}


def three(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """Three tasks of 7 GiB on 16 GiB: what all do together while all want the card, against one alone."""
    its = bench.solo[stage.gib]
    batch = max(1, int(BATCH_SECONDS * its))
    with SwitchWatch(stage.scheduler.status) as watch:
        began = time.monotonic()
        for member in stage.members:
            member.send(do="work", until=began + THREE_SECONDS, batch=batch)
        answers = [member.receive(TURNS_PATIENCE) for member in stage.members]
    speeds = [
        Track(answer["times"], answer["counts"]).done(began + THREE_SECONDS) / THREE_SECONDS / its for answer in answers
    ]
    right = all(answer["right"] for answer in answers)
    yield {
        "test": "three 7 GiB tasks on 16 GiB",
        "sum_of_speeds": round(sum(speeds), 4),
        "speeds": [round(speed, 3) for speed in speeds],
        "right": right,
        **account(watch.switches, bench.link),
        "ok": right and sum(speeds) >= 0.96,
    }


def _missing(stage: Stage, task: Task) -> int:
    gpu = stage.scheduler.attachment(task.pid)
    return int(gpu["allocated"] - gpu["resident"])


def wake(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """A task whose memory is on the host is asked to compute. Each has left the card once before it counts: what leaves
    for the first time may page-lock host memory."""
    for member in [*stage.members, *stage.members]:
        member.ask(do="run", steps=1)
    kernel = 1 / bench.solo[stage.gib]
    seconds, over, right, missing = [], [], True, 0
    for turn in range(WAKES):
        sleeper = stage.members[turn % 2]
        missing = _missing(stage, sleeper)
        answer = sleeper.ask(do="run", steps=1)
        right = right and answer["right"] and missing > 0
        seconds.append(answer["seconds"] - kernel)
        over.append(seconds[-1] - 1.2 * bench.link.seconds(missing, missing))
    worst = max(over)
    yield {
        "test": "an idle task computes again",
        "seconds": [round(value, 4) for value in seconds],
        "missing_gib": round(missing / GIB, 3),
        "beyond_1.2_of_link_ms": round(1000 * worst, 1),
        "right": right,
        "ok": right and worst <= 0.03,
    }


def many(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """A hundred switches, or as many as there is time for. The tasks are asked in turn, so that each question is a
    switch; what has moved is summed up before anything is computed, then computed anew and summed up again: so every
    byte of all buffers is looked at after each switch."""
    before = stage.scheduler.status()["counters"]["switches"]
    checks = wrong = switches = 0
    with SwitchWatch(stage.scheduler.status) as watch:
        while switches < MANY_SWITCHES and time.monotonic() < ends_at:
            for member in stage.members:
                wrong += not member.ask(do="check")["right"]
                wrong += not member.ask(do="run", steps=1)["right"]
                checks += 2
            switches = stage.scheduler.status()["counters"]["switches"] - before
    yield {
        "test": f"{switches} switches with checksums",
        **account(watch.switches, bench.link),
        "switches": switches,
        "checks": checks,
        "wrong": wrong,
        "ok": wrong == 0 and switches >= MANY_SWITCHES,
    }


def unified(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """The pair again with the unified-memory backend, in short turns: for comparison, it has no limit to keep."""
    stage.scheduler.set_quantum(2)
    row, right = in_turns(bench, stage, UNIFIED_SECONDS)
    yield {"test": "two 12 GiB tasks on 16 GiB, unified memory", **row, "ok": right and row["switches"] > 0}


TESTS: dict[str, Test] = {
    "pair": Test(pair, PAIR_SECONDS * 2.06 + 6),
    "wake": Test(wake, 8),
    "many": Test(many, 45, least=12),
    "whole": Test(whole, WHOLE_SECONDS * 2 + 8, declared=12.0),
    "three": Test(three, THREE_SECONDS + 7, tasks=3, gib=SMALL),
    "unified": Test(unified, UNIFIED_SECONDS * 2 + 10, variables={"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}),
}


@dataclass
class Group:
    """Tests that need the same tasks on the same card, with these tasks."""

    names: list[str]
    scheduler: OwnScheduler
    members: list[Task] = field(default_factory=list)

    @property
    def test(self) -> Test:
        """Any of them: they differ in what is measured only."""
        return TESTS[self.names[0]]

    def begin(self) -> None:
        """Start the tasks. They touch the card when they are told to, and the scheduler is there by then."""
        self.members = [Task(self.scheduler, self.test.variables) for _ in range(self.test.tasks)]

    def end(self) -> None:
        with ending(self.members):
            self.members = []

    @contextlib.contextmanager
    def stage(self) -> Iterator[Stage]:
        test = self.test
        with self.scheduler:
            try:
                if not self.members:
                    self.begin()
                for member in self.members:
                    member.ask(do="prepare", steps=ADD, bytes=int(test.gib * GIB))
                    if not member.ask(do="run", steps=3)["right"]:
                        raise RuntimeError("the first sums are wrong")
                clients = len(self.scheduler.status()["clients"])
                if clients != test.tasks:
                    raise RuntimeError(f"{clients} of {test.tasks} tasks are known to the scheduler")
                yield Stage(self.scheduler, self.members, test.gib, test.declared)
            finally:
                self.end()


def grouped(names: list[str], directory: Path) -> list[Group]:
    """In the order of the first test of each."""
    groups: list[Group] = []
    for name in names:
        for group in groups:
            if group.test.same_tasks(TESTS[name]):
                group.names.append(name)
                break
        else:
            groups.append(Group([name], OwnScheduler(directory / name, TESTS[name].declared)))
    return groups


class Watch:
    """Kills the tasks of a test that hangs, so that the others get their time; ``story`` is what the scheduler said of
    them then."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._timer: threading.Timer | None = None
        self.story: list[str] = []

    def until(self, seconds: float) -> None:
        """From now on; what was said before does not count any more."""
        self.end()
        self._timer = threading.Timer(seconds, self._give_up, [seconds])
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self, seconds: float) -> None:
        self.story.append(f"given up after {seconds:.0f} s")
        with contextlib.suppress(Exception):
            self.story.append(json.dumps(self._group.scheduler.status()))
        for member in self._group.members:
            member.kill()


def solo_speeds(alone: Task) -> dict[float, float]:
    """Adds per second of a native process, alone."""
    speeds = {}
    for gib in (LARGE, SMALL):
        alone.ask(do="prepare", steps=ADD, bytes=int(gib * GIB))
        speeds[gib] = alone.speed(int(SOLO_SECONDS * alone.speed(WARM_UP)))
    return speeds


def run(group: Group, bench: Bench, budget: float, report: Report) -> None:
    """Its tests, as far as the time goes; whatever happens in one, the next one can be run."""
    todo = list(group.names)
    while todo:
        watch = Watch(group)
        try:
            watch.until(budget - report.elapsed + GRACE)
            with group.stage() as stage:
                while todo:
                    left = budget - report.elapsed
                    test, name = TESTS[todo[0]], todo[0]
                    if left >= (test.seconds if test.least is None else test.least):
                        takes = min(left, test.seconds)
                        watch.until(min(left + GRACE, PATIENCE * takes))
                        for row in test.measure(bench, stage, time.monotonic() + takes):
                            report.add(row)
                    else:
                        report.add({"test": name, "error": f"skipped: {left:.0f} s are left", "ok": False})
                    todo.pop(0)
        except Exception as error:  # of one test; those after it are worth as much
            name = todo.pop(0) if todo else f"the end of {group.names[-1]}"
            report.add({"test": name, "error": "\n".join([*watch.story, f"{error!r}"])[-6000:], "ok": False})
        finally:
            watch.end()


def main() -> int:
    parser = options(__doc__, TESTS)
    parser.add_argument("--budget", type=float, default=215.0, help="seconds for everything (default: 215)")
    arguments = parser.parse_args()
    build_native()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        report = Report(arguments.json, Path(directory))
        groups = grouped(arguments.only, Path(directory))
        with Task(None) as alone:
            for group in groups:
                stack.callback(group.end)
                group.begin()
            for task in [alone, *(member for group in groups for member in group.members)]:
                task.ask(do="info")  # it has imported all it needs, and will not disturb what is measured
            solo = solo_speeds(alone)
        report.tell(solo_its={f"{gib} GiB": round(its, 1) for gib, its in solo.items()})
        link = measure_link(plain_environment())
        ways = ("h2d", "d2h", "duplex_h2d", "duplex_d2h")
        report.tell(link_gb_per_s={way: round(getattr(link, way) / 1e9, 1) for way in ways})
        for group in groups:
            run(group, Bench(link, solo), arguments.budget, report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
