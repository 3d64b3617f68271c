"""The program that measured processes run: it computes when it is told to, and notes when it had done how much.

    python -m nvshare.bench.compute.program driver|torch

Each line on standard input is a command in JSON, answered by one line of JSON.

{"do": "info"}                                   who it is, and with which versions it computes
{"do": "prepare", "steps": NAME, "bytes": B}     allocate; without "bytes" as it is made for measurements
{"do": "time", "steps": N}                       the seconds that N steps take, once the card is at work
{"do": "run", "steps": N}                        the seconds that N steps take, and whether the result is right
{"do": "gpu", "steps": N}                        the seconds that the card works for a step, by its own clock (PyTorch)
{"do": "set", "amount": A}                       the length of the kernels of SPIN and BURN
{"do": "check"}                                  whether the result is right
{"do": "work", "until": T, "batch": N}           compute until T, with the further fields of ``work``
{"do": "quit"}

Times are those of the monotonic clock, which all processes share. The card is not touched before the first command that
needs it, so processes can be started ahead of time.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from nvshare.bench.workloads.spec import pauses, seeded

KITS = {"driver": "nvshare.bench.compute.driver_kit", "torch": "nvshare.bench.compute.torch_kit"}
_IN_FLIGHT = 3  # batches: the card never waits for the host, and little is in flight when a turn ends
_CORES = os.sched_getaffinity(0)
_DITHER = 0.1  # of a period: bursts must not fall into step with the turns of others


class Mark(Protocol):
    """A place behind all that was submitted, which can be waited for without burning a core."""

    def record(self) -> None: ...

    def wait(self) -> None: ...


class Steps(Protocol):
    """Something to compute, again and again."""

    def submit(self, count: int) -> None: ...

    def mark(self) -> Mark: ...

    def check(self) -> bool:
        """Whether what was computed is right."""


@runtime_checkable
class OfAmount(Protocol):
    """Steps whose length can be set."""

    def set_amount(self, amount: int) -> None: ...


@runtime_checkable
class ByCardsClock(Protocol):
    """Steps that can tell how long the card works for them."""

    def gpu_seconds(self, count: int) -> float:
        """For one step, the median of so many; whatever the host takes for it does not count."""


class Kit(Protocol):
    """A way to use the card."""

    def prepare(self, steps: str, size: int | None = None) -> Steps:
        """With so many bytes, where that can be chosen; None: as it is made for measurements."""

    def versions(self) -> dict[str, str]: ...


class Notes:
    """What a worker tells of its work."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        self.cpu: list[float] = []
        self.bursts: list[tuple[float, float]] = []

    def reached(self, count: int) -> None:
        self.times.append(round(time.monotonic(), 6))
        self.counts.append(count)
        self.cpu.append(round(time.thread_time(), 6))

    def burst(self, wanted: float) -> None:
        self.bursts.append((round(wanted, 6), round(time.monotonic() - wanted, 6)))


def work_on(steps: Steps, batch: int, until: float, notes: Notes) -> None:
    """Without a pause, a few batches ahead of the card."""
    marks = [steps.mark() for _ in range(_IN_FLIGHT)]
    submitted = done = 0
    while time.monotonic() < until:
        mark = marks[submitted % _IN_FLIGHT]
        if submitted >= _IN_FLIGHT:
            mark.wait()
            done += 1
            notes.reached(done * batch)
        steps.submit(batch)
        mark.record()
        submitted += 1
    while done < submitted:
        marks[done % _IN_FLIGHT].wait()
        done += 1
        notes.reached(done * batch)


def work_in_bursts(steps: Steps, batch: int, until: float, begins: Iterator[float], notes: Notes) -> None:
    """A batch, waited for, whenever one is wanted."""
    mark = steps.mark()
    done = 0
    wanted = next(begins)
    while wanted < until:
        late = time.monotonic() > wanted
        if not late:
            time.sleep(max(0.0, wanted - time.monotonic()))
        began = wanted if late else time.monotonic()  # what the clock overslept is not the card's fault
        steps.submit(batch)
        mark.record()
        mark.wait()
        notes.burst(began)
        done += batch
        notes.reached(done)
        wanted = next(begins)


def work_and_think(steps: Steps, batch: int, until: float, seconds: float, spins: bool, notes: Notes) -> None:
    """A batch, waited for, then the host thinks for so long: it computes (``spins``) or sleeps."""
    mark = steps.mark()
    done = 0
    while (began := time.monotonic()) < until:
        steps.submit(batch)
        mark.record()
        mark.wait()
        notes.burst(began)
        done += batch
        if spins:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
        elif seconds:
            time.sleep(seconds)


def begins_with_sleep(sleep: float, seed: int, irregular: bool) -> Iterator[float]:
    """Each burst so long after the end of the one before, which is when the next is asked for."""
    for length in pauses(sleep, seed) if irregular else itertools.repeat(sleep):
        yield time.monotonic() + length


def begins_with_period(period: float, seed: int) -> Iterator[float]:
    """One burst per period, a little earlier or later each time."""
    source = seeded(seed)
    first = time.monotonic()
    number = 0
    while True:
        number += 1
        yield first + (number + _DITHER * source.random()) * period


def work(steps: Steps, command: dict[str, Any]) -> dict[str, Any]:
    """Compute until "until", in batches of "batch" steps.

    With "sleep": S (and "irregular": true) a pause follows each batch, with "period": P a batch begins every P seconds.
    With "think": S each batch is waited for, and S seconds follow, which "spins": true lets the host compute.
    "core": submit from that core alone; "gives_way": true, and only while nobody else wants it.
    """
    notes = Notes()
    core = command.get("core")
    os.sched_setaffinity(0, _CORES if core is None else {core})  # this thread; those of libraries go where they like
    if command.get("gives_way"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    batch, until, seed = command["batch"], command["until"], command.get("seed", 1)
    if "think" in command:
        work_and_think(steps, batch, until, command["think"], command["spins"], notes)
    elif command.get("sleep"):
        work_in_bursts(steps, batch, until, begins_with_sleep(command["sleep"], seed, command["irregular"]), notes)
    elif command.get("period"):
        work_in_bursts(steps, batch, until, begins_with_period(command["period"], seed), notes)
    else:
        work_on(steps, batch, until, notes)
    return {
        "times": notes.times,
        "counts": notes.counts,
        "cpu": notes.cpu,
        "bursts": notes.bursts,
        "right": steps.check(),
    }


def run(steps: Steps, count: int) -> float:
    """Seconds that so many steps take, from the first submission on."""
    mark = steps.mark()
    began = time.monotonic()
    steps.submit(count)
    mark.record()
    mark.wait()
    return time.monotonic() - began


def timed(steps: Steps, count: int) -> float:
    """The same on a card that has just computed."""
    run(steps, 1)
    return run(steps, count)


def answer(steps: Steps, command: dict[str, Any]) -> dict[str, Any] | None:
    """Of a command that computes; None when there is no such command."""
    match command["do"]:
        case "time":
            return {"seconds": timed(steps, command["steps"])}
        case "run":
            return {"seconds": run(steps, command["steps"]), "right": steps.check()}
        case "gpu" if isinstance(steps, ByCardsClock):
            return {"seconds": steps.gpu_seconds(command["steps"])}
        case "set" if isinstance(steps, OfAmount):
            steps.set_amount(command["amount"])
            return {}
        case "check":
            return {"right": steps.check()}
        case "work":
            return work(steps, command)
    return None


def stand_aside() -> None:
    """Ctrl-C reaches who started this process alone, and that one ends it. No session of its own: the kernel would
    share a core between sessions, whoever gives way."""
    if os.getpgrp() != os.getpid():
        os.setpgrp()


def main() -> int:
    stand_aside()
    kit: Kit = importlib.import_module(KITS[sys.argv[1]]).Kit()
    steps: Steps | None = None
    for line in sys.stdin:
        command = json.loads(line)
        said: dict[str, Any] | None = {}
        if command["do"] == "info":
            said = {"pid": os.getpid(), **kit.versions()}
        elif command["do"] == "prepare":
            steps = kit.prepare(command["steps"], command.get("bytes"))
        else:
            said = answer(steps, command) if steps is not None else None
        if said is None:
            break
        print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
