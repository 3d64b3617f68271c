"""What nvshare costs a task that runs alone: paired, alternating runs against a native process, with a second native
process beside them to show what chance does. And what it adds to one launch.

The three processes of a framework stay up: two rest while one computes. A context without work costs those that have
some nothing that can be measured; what it might cost, it costs all three, and native against native shows it."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path

from nvshare.bench.gpu.frameworks.tasks import LINKED, LONG, Task, tasks
from nvshare.bench.gpu.report import Row
from nvshare.bench.gpu.scheduler import OwnScheduler
from nvshare.bench.worker import WorkerFailed
from nvshare.bench.workloads.spec import seeded

MEMORY = 1.0  # GiB
SECONDS = 0.2  # of one measurement
MEAN, WORST = 0.005, 0.01  # slowdown
NOISE = 0.02  # width of the native/native interval beyond which a row says nothing about a mean
LAUNCHES = 25_000  # in one round: short ones in turn, for the speed of a host drifts
LAUNCH_ROUNDS = 41
LAUNCH_US = 0.2


def interval(values: list[float]) -> list[float]:
    """95 % of the median, by order statistics (the whole range where there are few)."""
    ordered = sorted(values)
    margin = max(0, round(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5) - 1)
    return [round(ordered[margin], 4), round(ordered[-1 - margin], 4)]


def alone(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    """All processes are started first and have imported what they need: doing so disturbs what is measured. The mean is
    over rows in which two native processes agree."""
    ratios: dict[str, float] = {}
    with OwnScheduler(build / "alone") as whole, contextlib.ExitStack() as stack:
        trios = {name: [Task(name, build, shared) for shared in (None, None, whole)] for name in names}
        for trio in trios.values():
            for worker in trio:
                stack.callback(worker.close)
        for trio in trios.values():
            for worker in trio:
                worker.ask("info")
        for name, trio in trios.items():
            with tasks(*trio):
                try:
                    row = _row(name, trio, rounds)
                except WorkerFailed as failure:
                    row = {"test": f"alone {name}", "error": str(failure), "ok": False}
            if "ratio" in row and row["native_interval"][1] - row["native_interval"][0] <= NOISE:
                ratios[name] = row["ratio"]
            yield row
    if len(ratios) > 1:
        mean = statistics.fmean(ratios.values())
        yield {
            "test": "alone, mean of all",
            "ratio": round(mean, 4),
            "of": len(ratios),
            "left_out": [name for name in names if name not in ratios],
            "ok": mean >= 1 - MEAN,
        }


def _row(name: str, trio: list[Task], rounds: int) -> Row:
    native, second, shared = trio
    for worker in trio:
        worker.send("prepare", MEMORY)
    for worker in trio:
        worker.receive(within=LONG)
    for worker in trio:
        worker.ask("steps", 8)
        speed = 32 / worker.ask("steps", 32)["seconds"]
    count = max(4, int(speed * SECONDS))
    for worker in trio:
        worker.ask("steps", count)  # warm, all of them alike
    ratios: dict[str, list[float]] = {"nvshare": [], "native": []}
    shuffle = seeded(1)
    for _ in range(rounds):
        order = [("base", native), ("native", second), ("nvshare", shared)]
        shuffle.shuffle(order)
        seconds = {which: worker.ask("steps", count)["seconds"] for which, worker in order}
        for which, values in ratios.items():
            values.append(seconds["base"] / seconds[which])
    right = all(worker.ask("check")["right"] for worker in trio)
    ratio = statistics.median(ratios["nvshare"])
    spread = interval(ratios["native"])
    return {
        "test": f"alone {name}",
        "ratio": round(ratio, 4),
        "interval": interval(ratios["nvshare"]),
        "native_native": round(statistics.median(ratios["native"]), 4),
        "native_interval": spread,
        "steps_per_s": round(speed, 1),
        "right": right,
        "ok": right and ratio >= min(1 - WORST, spread[0]),
    }


def launches(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    """A loop of a million launches of an empty kernel, from C."""
    with (
        OwnScheduler(build / "launches") as whole,
        tasks(Task(LINKED, build, None), Task(LINKED, build, None), Task(LINKED, build, whole)) as trio,
    ):
        for worker in trio:
            worker.ask("prepare", 0.1)
            worker.ask("launches", 4 * LAUNCHES)
        times: list[list[float]] = [[], [], []]
        shuffle = seeded(2)
        for _ in range(LAUNCH_ROUNDS):
            order = list(enumerate(trio))
            shuffle.shuffle(order)
            for index, worker in order:
                times[index].append(worker.ask("launches", LAUNCHES)["each_us"])
    native, second, shared = (statistics.median(each) for each in times)
    added, chance = ([mine - base for mine, base in zip(each, times[0], strict=True)] for each in (times[2], times[1]))
    yield {
        "test": "a million launches from C",
        "native_us": round(native, 4),
        "second_native_us": round(second, 4),
        "nvshare_us": round(shared, 4),
        "added_us": round(statistics.median(added), 4),
        "added_interval": interval(added),
        "native_interval": interval(chance),
        "ok": statistics.median(added) <= LAUNCH_US,
    }
