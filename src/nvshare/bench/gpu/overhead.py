"""What nvshare costs a task that runs alone, and two tasks side by side.

    python -m nvshare.bench.gpu.overhead [--only alone,together] [--rounds 9] [--json FILE]

Speeds are compared within this run only: a native process, a second native process and one under nvshare stay up and
take turns, each round in a new order. The two that rest have contexts and memory on the card and no work. The driver
gives its time to those that have some, which native against native shows in the same run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from nvshare.bench.compute.kinds import ADD, MATMUL
from nvshare.bench.gpu.report import Report, Row, options
from nvshare.bench.gpu.scheduler import GIB, OwnScheduler, build_native
from nvshare.bench.gpu.tasks import Task, tasks
from nvshare.bench.workloads.spec import seeded

WINDOW = 0.6  # seconds of one measurement
TOGETHER = 2.5  # seconds of work, alone, for each of two tasks side by side
WORST = 0.99  # ratio to native


def alone(scheduler: OwnScheduler, rounds: int) -> Iterator[Row]:
    """Paired, alternating: nvshare/native beside native/native, for each workload in the same processes."""
    with tasks(None, None, scheduler) as trio:
        yield _paired(trio, ADD, int(8.8 * GIB), rounds)
        yield _paired(trio, MATMUL, None, rounds)


def _paired(trio: Sequence[Task], workload: str, size: int | None, rounds: int) -> Row:
    native, second, shared = trio
    for task in trio:
        task.send(do="prepare", steps=workload, bytes=size)
    for task in trio:
        task.receive()
    for task in trio:
        speed = task.speed(200)
    steps = max(10, int(speed * WINDOW))
    ratios: dict[str, list[float]] = {"nvshare": [], "native": []}
    right = True
    dice = seeded(1)
    for _ in range(rounds):
        order = [("base", native), ("native", second), ("nvshare", shared)]
        dice.shuffle(order)
        speeds = {}
        for name, task in order:
            answer = task.ask(do="run", steps=steps)
            speeds[name] = steps / answer["seconds"]
            right = right and answer["right"]
        for name, values in ratios.items():
            values.append(speeds[name] / speeds["base"])
    return {
        "test": f"alone {workload}",
        "ratio": round(statistics.median(ratios["nvshare"]), 4),
        "native_native": round(statistics.median(ratios["native"]), 4),
        "spread": [round(min(ratios["nvshare"]), 4), round(max(ratios["nvshare"]), 4)],
        "native_spread": [round(min(ratios["native"]), 4), round(max(ratios["native"]), 4)],
        "native_its": round(speeds["base"], 1),
        "right": right,
        "ok": right and statistics.median(ratios["nvshare"]) >= WORST,
    }


def together(scheduler: OwnScheduler, rounds: int) -> Iterator[Row]:
    """Two tasks of 4 GiB at the same time. The status must show both, their bytes and busy time."""
    with tasks(scheduler, scheduler) as pair:
        solo = []
        for task in pair:
            task.ask(do="prepare", steps=ADD, bytes=4 * GIB)
            solo.append(task.speed(500))
        steps = int(solo[0] * TOGETHER)
        for task in pair:
            task.send(do="run", steps=steps)
        time.sleep(TOGETHER)  # half of the run, for they share the card
        status = scheduler.status()
        answers = [task.receive() for task in pair]
    seen = {client["pid"]: client["gpus"][0] for client in status["clients"]}
    mine = [seen.get(task.pid) for task in pair]
    both = all(each and each["allocated"] >= 4 * GIB and each["occupied_s"] > 0 for each in mine)
    right = all(answer["right"] for answer in answers)
    speeds = [steps / answer["seconds"] for answer in answers]
    yield {
        "test": "two together, 4 GiB add",
        "ratio": round(sum(speeds) / statistics.mean(solo), 4),
        "shares": [round(speed / solo[0], 3) for speed in speeds],
        "right": right,
        "status_clients": mine,
        "drops": status["counters"]["drops"],
        "ok": right and both and status["counters"]["drops"] == 0,
    }


TESTS = {"alone": alone, "together": together}


def main() -> int:
    parser = options(__doc__, TESTS)
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds per workload (default: 9)")
    arguments = parser.parse_args()
    build_native()
    with tempfile.TemporaryDirectory() as directory, OwnScheduler(Path(directory) / "card") as scheduler:
        report = Report(arguments.json, Path(directory))
        for name in arguments.only:
            report.take(name, partial(TESTS[name], scheduler, arguments.rounds))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
