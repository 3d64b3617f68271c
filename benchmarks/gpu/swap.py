"""On a real NVIDIA GPU: tasks that do not fit on a card declared small take turns, their memory moves at link speed.

    python benchmarks/gpu/swap.py [--only pair,whole,three,wake,many] [--json FILE]

Needs PyTorch, 40 GiB of free memory on the card and 48 GiB on the host. Measures the link first, by plain driver calls.
Builds the native part, starts schedulers of its own, ends everything it started. The card is never filled: it is only
declared small.
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
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spine import ROOT, Scheduler, Worker, describe, workers

from nvshare.client.connection import Connection
from nvshare.lab.linkspeed import LinkSpeed, NotCalibrated
from nvshare.lab.linkspeed import measure as measure_link
from nvshare.lab.switches import Switch, SwitchWatch

GIB = 1 << 30
PAIR_SECONDS = 35.0  # of work for each of two tasks, alone
THREE_SECONDS = 15.0
WHOLE_SECONDS = 10.0
PART_SECONDS = 3.0  # of work between two checks of all sums
MANY_SWITCHES = 100
WAKES = 6
WARM_UP = 200  # adds


class DeclaredScheduler(Scheduler):
    """A scheduler that takes the card for smaller than it is."""

    def __init__(self, directory: Path, gib: float) -> None:
        self._card_memory = str(int(gib * GIB))
        super().__init__(directory)

    def start(self) -> None:
        self.env["NVSHARE_CARD_MEMORY"] = self._card_memory
        super().start()

    def worker_env(self) -> dict[str, str]:
        return {**super().worker_env(), "NVSHARE_SWAP": "on"}

    def status(self) -> dict[str, Any]:
        """Without a process of its own: it is asked for often."""
        with Connection(self.socket) as connection:
            status: dict[str, Any] = connection.request("status")["status"]
            return status


@dataclass(frozen=True)
class Bench:
    """What all tests use: a place for files, and the link's calibrated speed."""

    directory: Path
    link: LinkSpeed

    @contextlib.contextmanager
    def card(self, gib: float) -> Iterator[DeclaredScheduler]:
        place = Path(tempfile.mkdtemp(dir=self.directory))
        scheduler = DeclaredScheduler(place, gib)
        try:
            yield scheduler
        finally:
            scheduler.stop()

    def log(self) -> list[str]:
        """The last lines of each scheduler."""
        return [line for path in sorted(self.directory.glob("*/scheduler.log")) for line in _tail(path)]


def _tail(path: Path) -> list[str]:
    return path.read_text().splitlines()[-80:]


def solo_speed(gib: float) -> float:
    """Adds per second of a native process, alone."""
    with workers({}) as (native,):
        native.ask(do="prepare", workload="add", gib=gib)
        its = native.ask(do="run", iterations=WARM_UP)["its"]
        return float(native.ask(do="run", iterations=int(3 * its))["its"])


@contextlib.contextmanager
def team(scheduler: Scheduler, gib: float, count: int) -> Iterator[list[Worker]]:
    """Tasks that have computed once, so that all their memory exists."""
    with workers(*(scheduler.worker_env() for _ in range(count))) as members:
        for member in members:
            if not member.ask(do="prepare", workload="add", gib=gib)["right"]:
                raise RuntimeError("the first sums are wrong")
        yield members


def together(members: list[Worker], iterations: int) -> list[dict[str, Any]]:
    for member in members:
        member.send(do="run", iterations=iterations)
    return [member.receive() for member in members]


def account(switches: list[Switch], link: LinkSpeed) -> dict[str, Any]:
    """What the switches of a run moved and took, against the link. The first of each pair pins host memory for the
    first time and is left out of the means."""
    counted = switches[2:] or switches
    if not counted:
        return {"switches": 0, "of_limit": 0.0, "stall_ratio": float("inf")}
    limits = [link.seconds(switch.out_bytes, switch.in_bytes) for switch in counted]
    stall = statistics.fmean(switch.stall for switch in counted)
    limit = statistics.fmean(limits)
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


def pair(bench: Bench) -> list[dict[str, Any]]:
    """Two tasks of 12 GiB on a declared 16 GiB, all settings as they come."""
    gib, declared = 11.9, 16.0
    its = solo_speed(gib)
    iterations = int(PAIR_SECONDS * its)
    with bench.card(declared) as scheduler, team(scheduler, gib, 2) as members:
        with SwitchWatch(scheduler.status) as watch:
            answers = together(members, iterations)
        allocated = sum(client["gpus"][0]["allocated"] for client in scheduler.status()["clients"])
    costs = account(watch.switches, bench.link)
    right = all(answer["right"] for answer in answers)
    ratio = max(answer["seconds"] for answer in answers) * its / iterations
    most = allocated / GIB - declared + 0.5
    return [
        {
            "test": "two 12 GiB tasks on 16 GiB",
            "ratio": round(ratio, 4),
            "right": right,
            "most_gib": round(most, 3),
            **costs,
            "ok": right
            and ratio <= 2.06
            and costs["switches"] > 0
            and costs["largest_gib"] <= most
            and costs["of_limit"] >= 0.8,
        }
    ]


def whole(bench: Bench) -> list[dict[str, Any]]:
    """Two tasks that each take the whole declared card: all of it changes places."""
    gib, declared = 11.9, 12.0
    its = solo_speed(gib)
    with bench.card(declared) as scheduler, team(scheduler, gib, 2) as members:
        scheduler.ctl("-T", "2")
        with SwitchWatch(scheduler.status) as watch:
            answers = together(members, int(WHOLE_SECONDS * its))
    costs = account(watch.switches, bench.link)
    right = all(answer["right"] for answer in answers)
    ok = right and costs["switches"] > 0 and costs["stall_ratio"] <= 1.3
    return [{"test": "whole 12 GiB sets change places", "right": right, **costs, "ok": ok}]


def three(bench: Bench) -> list[dict[str, Any]]:
    """Three tasks of 7 GiB on 16 GiB: what all do together, against one alone. In serial mode too, to compare."""
    gib, declared = 6.9, 16.0
    its = solo_speed(gib)
    iterations = int(THREE_SECONDS * its)
    rows = []
    for mode in ("auto", "serial"):
        with bench.card(declared) as scheduler, team(scheduler, gib, 3) as members:
            scheduler.ctl("set", "--mode", mode)
            with SwitchWatch(scheduler.status) as watch:
                answers = together(members, iterations)
        speed = len(answers) * iterations / max(answer["seconds"] for answer in answers) / its
        right = all(answer["right"] for answer in answers)
        rows.append(
            {
                "test": f"three 7 GiB tasks on 16 GiB, {mode}",
                "sum_of_speeds": round(speed, 4),
                "right": right,
                **account(watch.switches, bench.link),
                "ok": right and (speed >= 0.96 or mode == "serial"),
            }
        )
    return rows


def wake(bench: Bench) -> list[dict[str, Any]]:
    """An idle task whose memory is on the host is asked to compute, again and again."""
    gib, declared = 11.9, 16.0
    kernel = 1 / solo_speed(gib)
    over: list[float] = []
    seconds: list[float] = []
    right = True
    with bench.card(declared) as scheduler, team(scheduler, gib, 2) as members:
        pids = [member.ask(do="info")["pid"] for member in members]
        for turn in range(WAKES):
            sleeper = turn % 2
            missing = _missing(scheduler, pids[sleeper])
            answer = members[sleeper].ask(do="run", iterations=1)
            right = right and answer["right"] and missing > 0
            took = answer["seconds"] - kernel
            seconds.append(took)
            over.append(took - 1.2 * bench.link.seconds(missing, missing))
    worst = max(over[2:])  # the first of each pins host memory for the first time
    return [
        {
            "test": "an idle task computes again",
            "seconds": [round(value, 4) for value in seconds],
            "missing_gib": round(missing / GIB, 3),
            "beyond_1.2_of_link_ms": round(1000 * worst, 1),
            "right": right,
            "ok": right and worst <= 0.03,
        }
    ]


def _missing(scheduler: Scheduler, pid: int) -> int:
    (client,) = [client for client in scheduler.status()["clients"] if client["pid"] == pid]
    gpu = client["gpus"][0]
    return int(gpu["allocated"] - gpu["resident"])


def many(bench: Bench) -> list[dict[str, Any]]:
    """A hundred switches in the shortest turns there are, all sums checked every few seconds."""
    gib, declared = 11.9, 16.0
    iterations = int(PART_SECONDS * solo_speed(gib))
    checks = wrong = 0
    with bench.card(declared) as scheduler, team(scheduler, gib, 2) as members:
        scheduler.ctl("-T", "1")
        before = scheduler.status()["counters"]["switches"]
        switches = 0
        with SwitchWatch(scheduler.status) as watch:
            for member in members:
                member.send(do="run", iterations=iterations)
            while switches < MANY_SWITCHES:
                for member in members:
                    wrong += not member.receive()["right"]
                    checks += 1
                    member.send(do="run", iterations=iterations)
                switches = scheduler.status()["counters"]["switches"] - before
            for member in members:
                wrong += not member.receive()["right"]
                checks += 1
    costs = account(watch.switches, bench.link)
    return [
        {
            "test": f"{MANY_SWITCHES} switches with checksums",
            **costs,
            "switches": switches,
            "checks": checks,
            "wrong": wrong,
            "ok": wrong == 0,
        }
    ]


TESTS: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    "pair": pair,
    "whole": whole,
    "three": three,
    "wake": wake,
    "many": many,
}


def chosen(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in TESTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no test {', '.join(unknown)}: there are {', '.join(TESTS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=chosen, default=list(TESTS), help="which tests, comma separated (default: all)")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    subprocess.run(["make", "-C", str(ROOT), "native"], check=True, stdout=subprocess.DEVNULL)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), measure_link({**os.environ, "PYTHONPATH": str(ROOT / "src")}))
        speeds = {name: round(value / 1e9, 1) for name, value in asdict(bench.link).items()}
        print(f"link, GB/s: {speeds}", flush=True)
        for name in arguments.only:
            started = time.monotonic()
            try:
                rows += TESTS[name](bench)
            except (RuntimeError, subprocess.SubprocessError, NotCalibrated, KeyError, ValueError) as error:
                rows.append({"test": name, "error": str(error)[-2000:], "ok": False})
            print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
            write(arguments.json, bench, speeds, rows)
    for row in rows:
        details = ", ".join(f"{key} {value}" for key, value in row.items() if key not in {"test", "ok"})
        print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['test']}: {details}")
    return 0 if all(row["ok"] for row in rows) else 1


def write(path: Path | None, bench: Bench, speeds: dict[str, float], rows: list[dict[str, Any]]) -> None:
    """After each test, so that a run that is cut short leaves what it found."""
    if path is not None:
        result = {"machine": describe(), "link_gb_per_s": speeds, "rows": rows, "scheduler_log": bench.log()}
        path.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.exit(main())
