"""On a real NVIDIA GPU: tasks that do not fit on a card declared small take turns, their memory moves at link speed.

    python benchmarks/gpu/swap.py [--only pair,wake,many,whole,three,unified] [--budget 215] [--json FILE]

Needs PyTorch, 40 GiB of free memory on the card and 48 GiB on the host. Measures the link first, by plain driver calls.
Builds the native part, starts schedulers of its own, ends everything it started. The card is never filled: it is only
declared small.

All processes are started at the beginning, because importing PyTorch takes longer than most of the measurements; tests
of the same tasks on the same card share them. The tests come in the order of their weight, and each row is printed and
written as soon as it is measured: a run that is cut short keeps what it found. A test for which the budget has no time
left is skipped and says so; after one that fails, the others get new processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spine import ROOT, Scheduler, Worker

from nvshare import native
from nvshare.bench.linkspeed import LinkSpeed
from nvshare.bench.linkspeed import measure as measure_link
from nvshare.bench.machine import conditions, source_of_cards
from nvshare.bench.switches import Switch, SwitchWatch
from nvshare.client.connection import Connection

GIB = 1 << 30
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
GRACE = 10.0  # seconds beyond the budget that the last test may take

Row = dict[str, Any]


class DeclaredScheduler(Scheduler):
    """A scheduler that takes the card for smaller than it is."""

    def __init__(self, directory: Path, gib: float) -> None:
        self._card_memory = str(int(gib * GIB))
        super().__init__(directory)

    def start(self) -> None:
        self.env["NVSHARE_CARD_MEMORY"] = self._card_memory
        super().start()

    def status(self) -> dict[str, Any]:
        """Without a process of its own: it is asked for often."""
        with Connection(self.socket) as connection:
            status: dict[str, Any] = connection.request("status")["status"]
            return status


@dataclass(frozen=True)
class Bench:
    """What is measured once and used by all tests; ``solo`` holds adds per second of a native process, by GiB."""

    link: LinkSpeed
    solo: Mapping[float, float]


@dataclass(frozen=True)
class Stage:
    """One test's own scheduler and tasks. Each task has computed once, so that all its memory exists."""

    scheduler: DeclaredScheduler
    members: list[Worker]
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


def together(members: list[Worker], iterations: int) -> list[dict[str, Any]]:
    for member in members:
        member.send(do="run", iterations=iterations)
    return [member.receive() for member in members]


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
    iterations = int(seconds * its)
    with SwitchWatch(stage.scheduler.status) as watch:
        answers = together(stage.members, iterations)
    right = all(answer["right"] for answer in answers)
    ratio = max(answer["seconds"] for answer in answers) * its / iterations
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
    stage.scheduler.ctl("-T", "2")
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
        answers = [member.receive() for member in stage.members]
    speeds = [answer["done"] / THREE_SECONDS / its for answer in answers]
    right = all(answer["right"] for answer in answers)
    yield {
        "test": "three 7 GiB tasks on 16 GiB",
        "sum_of_speeds": round(sum(speeds), 4),
        "speeds": [round(speed, 3) for speed in speeds],
        "right": right,
        **account(watch.switches, bench.link),
        "ok": right and sum(speeds) >= 0.96,
    }


def _missing(scheduler: DeclaredScheduler, pid: int) -> int:
    (client,) = [client for client in scheduler.status()["clients"] if client["pid"] == pid]
    gpu = client["gpus"][0]
    return int(gpu["allocated"] - gpu["resident"])


def wake(bench: Bench, stage: Stage, ends_at: float) -> Iterator[Row]:
    """A task whose memory is on the host is asked to compute. Each has left the card once before it counts: what leaves
    for the first time may page-lock host memory."""
    for member in [*stage.members, *stage.members]:
        member.ask(do="run", iterations=1)
    pids = [member.ask(do="info")["pid"] for member in stage.members]
    kernel = 1 / bench.solo[stage.gib]
    seconds, over, right, missing = [], [], True, 0
    for turn in range(WAKES):
        sleeper = turn % 2
        missing = _missing(stage.scheduler, pids[sleeper])
        answer = stage.members[sleeper].ask(do="run", iterations=1)
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
                wrong += not member.ask(do="run", iterations=1)["right"]
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
    stage.scheduler.ctl("-T", "2")
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
class Cast:
    """The processes of tests that need the same ones, started ahead of them."""

    names: list[str]
    directory: Path
    workers: list[Worker] = field(default_factory=list)

    @property
    def test(self) -> Test:
        """Any of them: they differ in what is measured only."""
        return TESTS[self.names[0]]

    def enter(self) -> None:
        """Start them; they touch CUDA only when told to, and the scheduler is there by then."""
        env = {
            "LD_PRELOAD": str(native.interposer()),
            "NVSHARE_SOCK": str(self.directory / "scheduler.sock"),
            **self.test.variables,
        }
        self.workers = [Worker(env) for _ in range(self.test.tasks)]

    def leave(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(OSError, ValueError):  # it has ended already
                worker.send(do="quit")  # all of them before the first is waited for
        for worker in self.workers:
            worker.stop()
        self.workers = []

    @contextlib.contextmanager
    def stage(self) -> Iterator[Stage]:
        test = self.test
        scheduler = DeclaredScheduler(self.directory, test.declared)
        try:
            if not self.workers:
                self.enter()
            for worker in self.workers:
                if not worker.ask(do="prepare", workload="add", gib=test.gib)["right"]:
                    raise RuntimeError("the first sums are wrong")
            clients = len(scheduler.status()["clients"])
            if clients != test.tasks:
                raise RuntimeError(f"{clients} of {test.tasks} tasks are known to the scheduler")
            yield Stage(scheduler, self.workers, test.gib, test.declared)
        finally:
            self.leave()
            scheduler.stop()


def casts_of(names: list[str], directory: Path) -> list[Cast]:
    """In the order of the first test of each."""
    casts: list[Cast] = []
    for name in names:
        for cast in casts:
            if cast.test.same_tasks(TESTS[name]):
                cast.names.append(name)
                break
        else:
            casts.append(Cast([name], directory / name))
    return casts


class Watch:
    """Kills the tasks of a test that hangs, so that the others get their time; ``story`` is what the scheduler said of
    them then."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
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
        with contextlib.suppress(Exception), Connection(self._cast.directory / "scheduler.sock") as connection:
            self.story.append(json.dumps(connection.request("status")["status"]))
        self.story.insert(0, f"given up after {seconds:.0f} s")
        for worker in self._cast.workers:
            worker.process.kill()


def solo_speeds(native_worker: Worker) -> dict[float, float]:
    """Adds per second of a native process, alone."""
    speeds = {}
    for gib in (LARGE, SMALL):
        native_worker.ask(do="prepare", workload="add", gib=gib)
        its = native_worker.ask(do="run", iterations=WARM_UP)["its"]
        speeds[gib] = float(native_worker.ask(do="run", iterations=int(SOLO_SECONDS * its))["its"])
    return speeds


class Report:
    """Rows as they come: printed, and written with all before them."""

    def __init__(self, path: Path | None, directory: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._directory = directory
        self._result: dict[str, Any] = about
        self._began = time.monotonic()
        self.rows: list[Row] = []

    def tell(self, **facts: Any) -> None:
        """Something that belongs to all rows."""
        self._result |= facts
        print(f"[{self.elapsed:5.0f} s] {facts}", flush=True)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        details = ", ".join(f"{key} {value}" for key, value in row.items() if key not in {"test", "ok"})
        print(f"[{self.elapsed:5.0f} s] {'ok  ' if row['ok'] else 'FAIL'} {row['test']}: {details}", flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps({**self._result, "rows": self.rows, "logs": self._logs()}, indent=1))

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def _logs(self) -> dict[str, list[str]]:
        """The last lines of each scheduler, by test."""
        paths = sorted(self._directory.glob("*/scheduler.log"))
        return {path.parent.name: path.read_text().splitlines()[-80:] for path in paths}


def run(cast: Cast, bench: Bench, budget: float, report: Report) -> None:
    """Its tests, as far as the time goes; whatever happens in one, the next one can be run."""
    todo = list(cast.names)
    while todo:
        watch = Watch(cast)
        try:
            watch.until(budget - report.elapsed + GRACE)
            with cast.stage() as stage:
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
            name = todo.pop(0) if todo else f"the end of {cast.names[-1]}"
            report.add({"test": name, "error": "\n".join([*watch.story, f"{error!r}"])[-6000:], "ok": False})
        finally:
            watch.end()


def chosen(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in TESTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no test {', '.join(unknown)}: there are {', '.join(TESTS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=chosen, default=list(TESTS), help="which tests, comma separated (default: all)")
    parser.add_argument("--budget", type=float, default=215.0, help="seconds for everything (default: 215)")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        report = Report(arguments.json, Path(directory), conditions(source_of_cards()))
        alone = Worker({})
        stack.callback(alone.stop)
        subprocess.run(["make", "-C", str(ROOT), "native"], check=True, stdout=subprocess.DEVNULL)
        casts = casts_of(arguments.only, Path(directory))
        for cast in casts:
            cast.directory.mkdir()
            stack.callback(cast.leave)
            cast.enter()
        for worker in [alone, *(worker for cast in casts for worker in cast.workers)]:
            worker.ask(do="info")  # it has imported all it needs, and will not disturb what is measured
        solo = solo_speeds(alone)
        alone.stop()
        report.tell(solo_its={f"{gib} GiB": round(its, 1) for gib, its in solo.items()})
        link = measure_link({**os.environ, "PYTHONPATH": str(ROOT / "src")})
        ways = ("h2d", "d2h", "duplex_h2d", "duplex_d2h")
        report.tell(link_gb_per_s={way: round(getattr(link, way) / 1e9, 1) for way in ways})
        bench = Bench(link, solo)
        for cast in casts:
            run(cast, bench, arguments.budget, report)
    return 0 if report.rows and all(row["ok"] for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
