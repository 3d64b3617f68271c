"""Two ranks of one job on one card beside a third task: they wait for each other, and must never do so for ever."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nvshare.bench.gpu.frameworks.tasks import LINKED, Task, tasks
from nvshare.bench.gpu.report import Row
from nvshare.bench.gpu.scheduler import OwnScheduler

ROUNDS = 200
SIZE = 2
GIB_EACH = 0.5
CARDS = {"all fits": 4.0, "one rank fits at a time": 1.25}  # GiB declared
PATIENCE = 60.0


def ranks(names: list[str], build: Path, rounds: int) -> Iterator[Row]:
    for title, declared in CARDS.items():
        with OwnScheduler(build / f"ranks-{declared}", declared) as small:
            yield {"test": f"two ranks beside a third task, {title}", **_job(small, build)}


def _job(small: OwnScheduler, build: Path) -> Row:
    with tempfile.TemporaryDirectory() as directory, tasks(Task(LINKED, build, small)) as (third,):
        third.ask("prepare", GIB_EACH)
        tail = (str(SIZE), f"{directory}/store", str(ROUNDS), str(GIB_EACH))
        pair = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("rank.py")), str(rank), *tail],
                env=small.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(SIZE)
        ]
        third_right, beside = True, 0
        with contextlib.ExitStack() as stack:
            for process in pair:
                stack.callback(process.kill)
            while any(process.poll() is None for process in pair) and beside < PATIENCE / 0.1:
                third.ask("steps", 20)
                beside += 1
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pair[0].wait(0.05)
            third_right = third.ask("check")["right"]
            said = []
            for process in pair:
                try:
                    out, errors = process.communicate(timeout=5)
                except subprocess.TimeoutExpired:
                    return {"error": f"no end after {PATIENCE:g} s", "status": small.status(), "ok": False}
                if process.returncode != 0:
                    return {"error": errors[-1500:], "ok": False}
                said.append(json.loads(out.splitlines()[-1]))
    switches = small.status()["counters"]["switches"]
    right = third_right and all(each["right"] for each in said)
    seconds = [round(each["seconds"], 2) for each in said]
    return {"rounds": ROUNDS, "seconds": seconds, "switches": switches, "right": right, "ok": right}
