"""The stress test by both of its names, and a pool of workers with a quota each.

    python -m nvshare.bench.gpu.launching [--only stress,allocation,pool] [--seconds 8] [--json FILE]
    python -m nvshare.bench.gpu.launching --sim 1xT4        on a simulated card, without PyTorch

What a quota delivers is the speed of a worker against that of a pool of one worker without a quota, before and after,
in the same run. Both pools stay up, and the one that is not measured rests.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvshare.bench.compute.kinds import ADD, KINDS, MATMUL
from nvshare.bench.compute.program import KITS, timed, work
from nvshare.bench.compute.track import Track
from nvshare.bench.gpu.report import Report, Row, options
from nvshare.bench.gpu.scheduler import TREE, OwnScheduler, build_native, plain_environment
from nvshare.gpu import sim
from nvshare.launch import GpuPool, check

WORKERS, CORES, MEMORY = 4, 20, "8GiB"
SMALL_MEMORY = "2GiB"  # on a simulated card
WITHIN = 2.0  # percentage points
START, SOLO_START = 2.0, 0.5  # seconds that do not count
SOLO_PART = 0.25  # of a window: alone and without a quota the speed is steady
LEAD = 2.0  # seconds until the slowest worker has its memory
STRESS_SECONDS = 30


@dataclass(frozen=True)
class Terms:
    """What to compute with, for how long, and on which simulated node, if any."""

    kit: str
    seconds: float
    memory: str
    node: str | None

    @property
    def where(self) -> list[str]:
        return ["--sim", self.node] if self.node else []


# --- the stress test


def stress(terms: Terms) -> list[Row]:
    command = [sys.executable, "-m", "nvshare", "stress", "--workers", "8", "--duration", str(STRESS_SECONDS)]
    return [_stressed("stress", command, STRESS_SECONDS, terms)]


def allocation(terms: Terms) -> list[Row]:
    command = [
        sys.executable,
        str(TREE / "test_gpu_allocation.py"),
        "--duration",
        str(STRESS_SECONDS),
        "--memory",
        "128",
    ]
    return [_stressed("test_gpu_allocation.py", command, STRESS_SECONDS, terms)]


def _stressed(name: str, command: list[str], seconds: float, terms: Terms) -> Row:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        whole = [*command, *terms.where, "--json", file.name]
        result = subprocess.run(whole, env=plain_environment(), capture_output=True, text=True, check=False)
        print(result.stdout + result.stderr, flush=True)
        text = Path(file.name).read_text()
    report = json.loads(text) if text else {}
    verdicts = {verdict["name"]: verdict["passed"] for verdict in report.get("verdicts", [])}
    figures = report.get("figures", {})
    return {
        "test": name,
        "seconds": seconds,
        "ok": result.returncode == 0,
        "code": result.returncode,
        "verdicts": verdicts,
        **figures,
    }


# --- the pool


def load(kit: str) -> int:
    """In a worker: all that is needed, so that it is there when something is measured. Which worker it was."""
    importlib.import_module(KITS[kit]).Kit().prepare(MATMUL)
    return os.getpid()


def speed(kit: str, steps: str, begin: float, start: float, seconds: float) -> Row:
    """In a worker: how many steps a second in a window that begins ``start`` seconds after ``begin``, whether they are
    right, and what the worker sees."""
    seen = check()
    prepared = importlib.import_module(KITS[kit]).Kit().prepare(steps)
    step = timed(prepared, 20) / 20
    late = time.monotonic() - begin
    end = begin + start + seconds
    notes = work(prepared, {"batch": KINDS[steps].batch(step), "until": end + 0.2})
    track = Track(notes["times"], notes["counts"])
    return {
        "speed": round(track.speed(begin + start, end), 3),
        "right": notes["right"],
        "late": round(late, 2),
        "pid": os.getpid(),
        "gpus": [gpu.uuid for gpu in seen.gpus],
    }


def pool(terms: Terms) -> Iterator[Row]:
    with GpuPool(1, mem=terms.memory) as one, GpuPool(WORKERS, mem=terms.memory, cores=CORES) as all_of_them:
        first = one.submit(load, terms.kit)
        loaded: set[int] = set()
        while len(loaded) < WORKERS:  # a worker that is quick may take the part of one that is still starting
            parts = [all_of_them.submit(load, terms.kit) for _ in range(WORKERS)]
            loaded |= {part.result() for part in parts}
        first.result()
        for steps in (ADD, MATMUL):
            yield from _pool(steps, one, all_of_them, terms)


def _pool(steps: str, one: GpuPool, all_of_them: GpuPool, terms: Terms) -> Iterator[Row]:
    alone = (terms, steps, SOLO_START, SOLO_PART * terms.seconds)
    before = _together(one, 1, *alone)[0]
    shared = _together(all_of_them, WORKERS, terms, steps, START, terms.seconds)
    after = _together(one, 1, *alone)[0]
    solo = (before["speed"] + after["speed"]) / 2
    apart = len({each["pid"] for each in shared}) == WORKERS
    for number, each in enumerate(shared):
        delivered = 100 * each["speed"] / solo
        yield {
            "test": f"pool of {WORKERS}, {steps}, worker {number}",
            "quota": CORES,
            "delivered": round(delivered, 2),
            "solo_spread": round(abs(before["speed"] - after["speed"]) / solo, 4),
            "ok": each["right"] and each["late"] < START and apart and abs(delivered - CORES) <= WITHIN,
            **each,
        }


def _together(pool: GpuPool, count: int, terms: Terms, steps: str, start: float, seconds: float) -> list[Row]:
    begin = time.monotonic() + LEAD
    parts = [pool.submit(speed, terms.kit, steps, begin, start, seconds) for _ in range(count)]
    return [part.result() for part in parts]


TESTS: dict[str, Callable[[Terms], Iterable[Row]]] = {"stress": stress, "allocation": allocation, "pool": pool}


@contextlib.contextmanager
def own_place(node: str | None) -> Iterator[None]:
    """A scheduler of our own for this process and those it starts; ``node``: on a simulated node of our own."""
    with contextlib.ExitStack() as stack:
        if node is not None:
            os.environ.update(stack.enter_context(sim.held(node, 1.0, f"launching-{os.getpid()}")).env())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nvs-")))
        os.environ["NVSHARE_SOCK"] = str(stack.enter_context(OwnScheduler(directory / "card")).socket)
        yield


def main() -> int:
    parser = options(__doc__, TESTS)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default: 8)")
    parser.add_argument("--sim", metavar="NODE", help="on a simulated node, e.g. 1xT4")
    arguments = parser.parse_args()
    build_native()
    kit, memory = ("driver", SMALL_MEMORY) if arguments.sim else ("torch", MEMORY)
    terms = Terms(kit, arguments.seconds, memory, arguments.sim)
    with own_place(arguments.sim):
        report = Report(arguments.json)
        if arguments.sim:
            report.tell(node=f"simulated {arguments.sim}")
        for name in arguments.only:
            report.take(name, partial(TESTS[name], terms))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
