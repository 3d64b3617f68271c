"""On a real NVIDIA GPU: the stress test by both of its names, and a pool of PyTorch workers with a quota each.

    python benchmarks/gpu/workers.py [--only stress,allocation,pool] [--seconds 8] [--json FILE]
    python benchmarks/gpu/workers.py --sim 1xT4        the same on a simulated card, without PyTorch

Builds the native part and starts a scheduler of its own; nothing of it is left afterwards. What a quota delivers is the
speed of a worker against that of a pool of one worker without a quota, before and after, in the same run; both pools
stay up, and the one that is not measured rests. Rows are written as they are found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spine import ROOT, Scheduler

from nvshare.bench.compute.kinds import ADD, KINDS, MATMUL
from nvshare.bench.compute.program import KITS, timed, work
from nvshare.bench.machine import conditions
from nvshare.gpu import sim
from nvshare.launch import GpuPool, check
from nvshare.launch.errors import LaunchError

WORKERS, CORES, MEMORY = 4, 20, "8GiB"
SMALL_MEMORY = "2GiB"  # on a simulated card
WITHIN = 2.0  # percentage points
START, SOLO_START = 2.0, 0.5  # seconds that do not count
SOLO_PART = 0.25  # of a window: alone and without a quota the speed is steady
LEAD = 2.0  # seconds until the slowest worker has its memory
STRESS_SECONDS = 30

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    kit: str
    seconds: float
    memory: str
    node: str | None

    @property
    def where(self) -> list[str]:
        return ["--sim", self.node] if self.node else []


# --- the stress test


def stress(options: Options) -> list[Row]:
    command = [sys.executable, "-m", "nvshare", "stress", "--workers", "8", "--duration", str(STRESS_SECONDS)]
    return [_stressed("stress", command, STRESS_SECONDS, options)]


def allocation(options: Options) -> list[Row]:
    command = [sys.executable, str(ROOT / "test_gpu_allocation.py"), "--duration", "30", "--memory", "128"]
    return [_stressed("test_gpu_allocation.py", command, 30, options)]


def _stressed(name: str, command: list[str], seconds: float, options: Options) -> Row:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        result = subprocess.run(
            [*command, *options.where, "--json", file.name], capture_output=True, text=True, check=False
        )
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
    inside = [
        (at, count) for at, count in zip(notes["times"], notes["counts"], strict=True) if begin + start <= at <= end
    ]
    (first, done), (last, total) = inside[0], inside[-1]
    return {
        "speed": round((total - done) / (last - first), 3),
        "right": notes["right"],
        "late": round(late, 2),
        "pid": os.getpid(),
        "gpus": [gpu.uuid for gpu in seen.gpus],
    }


def pool(options: Options) -> Iterator[Row]:
    with GpuPool(1, mem=options.memory) as one, GpuPool(WORKERS, mem=options.memory, cores=CORES) as all_of_them:
        first = one.submit(load, options.kit)
        loaded: set[int] = set()
        while len(loaded) < WORKERS:  # a worker that is quick may take the part of one that is still starting
            parts = [all_of_them.submit(load, options.kit) for _ in range(WORKERS)]
            loaded |= {part.result() for part in parts}
        first.result()
        for steps in (ADD, MATMUL):
            yield from _pool(steps, one, all_of_them, options)


def _pool(steps: str, one: GpuPool, all_of_them: GpuPool, options: Options) -> Iterator[Row]:
    alone = (options, steps, SOLO_START, SOLO_PART * options.seconds)
    before = _together(one, 1, *alone)[0]
    shared = _together(all_of_them, WORKERS, options, steps, START, options.seconds)
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


def _together(pool: GpuPool, count: int, options: Options, steps: str, start: float, seconds: float) -> list[Row]:
    begin = time.monotonic() + LEAD
    parts = [pool.submit(speed, options.kit, steps, begin, start, seconds) for _ in range(count)]
    return [part.result() for part in parts]


TESTS: dict[str, Callable[[Options], Iterable[Row]]] = {"stress": stress, "allocation": allocation, "pool": pool}


@contextmanager
def place(node: str | None) -> Iterator[None]:
    """A scheduler of our own for this process and those it starts."""
    if node is not None:
        simulated = sim.up(node, name=f"workers-{os.getpid()}")
        os.environ.update(simulated.env())
    with tempfile.TemporaryDirectory() as directory:
        scheduler = Scheduler(Path(directory))
        os.environ.update(scheduler.env)
        try:
            yield
        finally:
            scheduler.stop()
            if node is not None:
                sim.down(simulated.name)


def tell(row: Row) -> None:
    details = ", ".join(f"{key} {value}" for key, value in row.items() if key not in {"test", "ok"})
    print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['test']}: {details}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TESTS), help="which parts, comma separated (default: all)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default: 8)")
    parser.add_argument("--sim", metavar="NODE", help="on a simulated node, e.g. 1xT4")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    subprocess.run(["make", "-C", str(ROOT), "native"], check=True, stdout=subprocess.DEVNULL)
    kit, memory = ("driver", SMALL_MEMORY) if arguments.sim else ("torch", MEMORY)
    options = Options(kit, arguments.seconds, memory, arguments.sim)
    rows: list[Row] = []
    about = conditions("simulated", {"node": f"simulated {arguments.sim}"}) if arguments.sim else conditions("gpu")
    with place(arguments.sim):
        for name in arguments.only.split(","):
            began = time.monotonic()
            try:
                for row in TESTS[name](options):
                    rows.append(row)
                    tell(row)
                    if arguments.json:
                        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
            except (LaunchError, OSError, ValueError, IndexError) as error:  # of one test; the others are worth as much
                rows.append({"test": name, "error": repr(error)[-2000:], "ok": False})
                tell(rows[-1])
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
