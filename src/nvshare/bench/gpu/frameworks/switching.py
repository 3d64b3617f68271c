"""Each framework beside a neighbour on a card that is declared too small for both: switched out and in, results right,
memory accounted, every launch held back while the neighbour has its turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvshare.bench.gpu.frameworks.tasks import LINKED, LONG, Task, nvml_bytes, tasks
from nvshare.bench.gpu.report import Row
from nvshare.bench.gpu.scheduler import GIB, OwnScheduler
from nvshare.bench.worker import WorkerFailed

DECLARED = 4.0  # GiB
MEMORY = 2.5  # GiB of the task, and of its neighbour; what JAX takes follows from the card
FIRST = 0.5  # GiB before it grows
SWITCHES = 22
AHEAD = 3  # processes that are started before their turn
STEP_SECONDS = 0.03  # of work between two switches
GATED_SECONDS = 0.4  # of the neighbour's work while the task wants to compute
ACCOUNTING_OFF = 2 << 20  # bytes that accounting may differ by
DIGESTED = ("torch-train", "jax")  # results that must be those of a native run, bit for bit


def switching(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    """One row for each framework. The next one's process is started while one is measured: importing takes longer. The
    neighbour stays, unless something went wrong beside it."""
    with OwnScheduler(build / "switching", DECLARED) as small, contextlib.ExitStack() as stack:
        small.set_quantum(5)
        waiting: list[tuple[Task, Task | None]] = []
        todo = list(names)
        rival: Task | None = None
        while todo or waiting:
            while todo and len(waiting) < AHEAD:
                waiting.append(_start(todo.pop(0), build, small))
                for each in waiting[-1]:
                    if each is not None:
                        stack.callback(each.close)
            worker, native = waiting.pop(0)
            with tasks(worker):
                try:
                    if rival is None:
                        rival = Task(LINKED, build, small)
                        stack.callback(rival.close)
                        rival.ask("prepare", MEMORY)
                    row = _row(worker, native, rival, small)
                except WorkerFailed as failure:
                    row = {"test": f"switching {worker.framework}", "error": str(failure), "ok": False}
            if native is not None:
                native.close()
            if not row["ok"] and rival is not None:
                rival.close()
                rival = None
            yield row


def _start(name: str, build: Path, small: OwnScheduler) -> tuple[Task, Task | None]:
    return Task(name, build, small), Task(name, build, None) if name in DIGESTED else None


def _row(worker: Task, native: Task | None, rival: Task, small: OwnScheduler) -> Row:
    about = worker.ask("info")
    pid = about["pid"]
    accounted = _accounting(worker, small, pid)
    count = _steps_for(worker, STEP_SECONDS)
    rival_count = _steps_for(rival, STEP_SECONDS)
    swapped = small.attachment(pid)["swapped_in"]
    wrong = outs = 0
    for turn in range(SWITCHES):
        rival.ask("steps", rival_count)
        place = small.attachment(pid)
        outs += place["resident"] < place["allocated"]
        worker.ask("steps", count)
        if turn % 6 == 5:
            wrong += not worker.ask("check")["right"]
    gated = _gated(worker, rival, rival_count)
    last = worker.ask("check")
    wrong += not last["right"]
    neighbour_right = rival.ask("check")["right"]
    swapped = small.attachment(pid)["swapped_in"] - swapped
    same = _same_as_native(native, last) if native is not None else None
    return {
        "test": f"switching {worker.framework}",
        "version": about["version"],
        "switched_out": outs,
        "swapped_in_gib": round(swapped / GIB, 2),
        "wrong": wrong,
        "neighbour_right": neighbour_right,
        "same_as_native": same,
        **accounted,
        **gated,
        "ok": outs >= 20
        and swapped > 0
        and wrong == 0
        and neighbour_right
        and same is not False
        and accounted["accounting_off_bytes"] <= ACCOUNTING_OFF
        and gated["held_back"],
    }


def _steps_for(worker: Task, seconds: float) -> int:
    worker.ask("steps", 2)
    worker.ask("steps", 4)
    return max(1, int(seconds / (worker.ask("steps", 4)["seconds"] / 4)))


def _accounting(worker: Task, small: OwnScheduler, pid: int) -> Row:
    """The process grows; what NVML sees of it must grow by what the scheduler counts. What the two differ by is the
    context with its modules and libraries, all of them loaded by the first steps."""
    beyond = []
    for gib in (FIRST, MEMORY):
        worker.ask("prepare", gib, within=LONG)
        worker.ask("steps", 2)
        worker.ask("check")
        worker.ask("steps", 2)
        beyond.append(_beyond(small, pid))
    return {
        "allocated_gib": round(small.attachment(pid)["allocated"] / GIB, 3),
        "context_mib": beyond[1] >> 20,
        "accounting_off_bytes": abs(beyond[1] - beyond[0]),
    }


def _beyond(small: OwnScheduler, pid: int) -> int:
    """What NVML sees beyond what is counted, once nothing moves any more."""
    for _ in range(100):
        before = small.attachment(pid)["resident"]
        seen = nvml_bytes(pid)
        after = small.attachment(pid)
        if before == after["resident"] == after["allocated"]:
            return int(seen - before)
        time.sleep(0.02)
    raise WorkerFailed(f"process {pid} does not come to rest: {after}")


def _gated(worker: Task, rival: Task, rival_count: int) -> Row:
    """The neighbour computes without a pause; a step asked for meanwhile must not end before that."""
    worker.ask("steps", 1)
    held, waits = True, []
    for _ in range(3):
        rival.ask("steps", rival_count)
        rival.send("steps", int(rival_count * GATED_SECONDS / STEP_SECONDS))
        time.sleep(0.1)  # the neighbour is at work
        worker.send("steps", 1)
        theirs, mine = rival.receive(), worker.receive()
        held = held and mine["began"] < theirs["ended"] <= mine["ended"]
        waits.append(round(mine["ended"] - mine["began"], 3))
    return {"held_back": held, "held_back_s": waits}


def _same_as_native(native: Task, last: dict[str, Any]) -> bool:
    """The same steps, natively."""
    native.ask("prepare", FIRST, within=LONG)
    native.ask("steps", last["steps"])
    said = native.ask("check")
    return bool(said["steps"] == last["steps"] and said["digest"] == last["digest"])
