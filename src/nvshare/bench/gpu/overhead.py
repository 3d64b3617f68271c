"""On a real NVIDIA GPU: what nvshare costs a task that runs alone, two tasks side by side, the memory quota, a restart.

    python benchmarks/gpu/spine.py [--only alone,tiny,together,quota,restart] [--rounds 9] [--json FILE]

Needs PyTorch. Builds the native part, starts a scheduler of its own, ends everything it started. Speeds are compared
within this run only: a native process, a second native process and one under nvshare stay up and take turns, each round
in a new order. The two that rest have contexts and memory on the card and no work: the driver gives its time to those
that have some, which native against native shows in the same run. Rows are written as they are found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
SIMULATED = "NVSHARE_SIM_NODE" in os.environ  # the scripts can be tried there; nothing is claimed from it
WORKER = Path(__file__).with_name("driver_worker.py" if SIMULATED else "torch_worker.py")
WINDOW = 0.6  # seconds of one measurement
TOGETHER = 2.5  # seconds of work, alone, for each of two tasks side by side
Row = dict[str, Any]


class Worker:
    """A torch_worker.py process, native or under nvshare."""

    def __init__(self, env: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        )

    def send(self, **command: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate()
            raise RuntimeError(f"worker ended with {self.process.returncode}:\n{errors[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        self.send(**command)
        return self.receive()

    def stop(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.send(do="quit")
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


class Scheduler:
    """A scheduler of our own on a socket of our own. ``prefix``: what starts it."""

    prefix: tuple[str, ...] = ()

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "scheduler.sock"
        self.log = (directory / "scheduler.log").open("w")
        self.env = {"PYTHONPATH": str(ROOT / "src"), "NVSHARE_SOCK": str(self.socket)}
        self.start()

    def start(self) -> None:
        read_end, write_end = os.pipe()
        program = [sys.executable, "-m", "nvshare.cli.scheduler"]
        self.process = subprocess.Popen(
            [*self.prefix, *program, "--socket", str(self.socket), "--ready-fd", str(write_end)],
            env={**os.environ, **self.env},
            stderr=self.log,
            pass_fds=(write_end,),
        )
        os.close(write_end)
        if os.read(read_end, 1) == b"":
            raise RuntimeError(f"the scheduler did not start:\n{Path(self.log.name).read_text()}")
        os.close(read_end)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.log.close()

    def worker_env(self) -> dict[str, str]:
        from nvshare import native

        return {"LD_PRELOAD": str(native.interposer()), "NVSHARE_SOCK": str(self.socket)}

    def ctl(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "nvshare.cli.ctl", *arguments]
        return subprocess.run(
            command, env={**os.environ, **self.env}, check=True, capture_output=True, text=True
        ).stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ctl("status", "--json"))
        return status


@contextlib.contextmanager
def workers(*environments: dict[str, str]) -> Iterator[list[Worker]]:
    started = [Worker(env) for env in environments]
    try:
        yield started
    finally:
        for worker in started:
            worker.stop()


def alone(scheduler: Scheduler, rounds: int) -> list[Row]:
    """Paired, alternating: nvshare/native beside native/native, for each workload in the same processes."""
    return _alone(scheduler, rounds, {"add": 8.8, "matmul": 1.0})


def tiny(scheduler: Scheduler, rounds: int) -> list[Row]:
    """The same of a task that is launch-bound: the host's own noise is larger than what is asked for."""
    return _alone(scheduler, rounds, {"tiny": 1.0})


def _alone(scheduler: Scheduler, rounds: int, workloads: dict[str, float]) -> list[Row]:
    with workers({}, {}, scheduler.worker_env()) as trio:
        return [_paired(trio, workload, gib, rounds) for workload, gib in workloads.items()]


def _paired(trio: list[Worker], workload: str, gib: float, rounds: int) -> Row:
    native, second, shared = trio
    for worker in trio:
        worker.send(do="prepare", workload=workload, gib=gib)
    for worker in trio:
        worker.receive()
    for worker in trio:
        speed = worker.ask(do="run", iterations=200)["its"]
    iterations = max(10, int(speed * WINDOW))
    ratios: dict[str, list[float]] = {"nvshare": [], "native": []}
    right = True
    shuffle = random.Random(1)
    for _ in range(rounds):
        order = [("base", native), ("native", second), ("nvshare", shared)]
        shuffle.shuffle(order)
        its = {}
        for name, worker in order:
            answer = worker.ask(do="run", iterations=iterations)
            its[name] = answer["its"]
            right = right and answer["right"]
        for name, values in ratios.items():
            values.append(its[name] / its["base"])
    return {
        "test": f"alone {workload}",
        "ratio": round(statistics.median(ratios["nvshare"]), 4),
        "native_native": round(statistics.median(ratios["native"]), 4),
        "spread": [round(min(ratios["nvshare"]), 4), round(max(ratios["nvshare"]), 4)],
        "native_spread": [round(min(ratios["native"]), 4), round(max(ratios["native"]), 4)],
        "native_its": round(its["base"], 1),
        "right": right,
        "ok": right and (workload == "tiny" or statistics.median(ratios["nvshare"]) >= 0.99),
    }


def together(scheduler: Scheduler, rounds: int) -> list[Row]:
    """Two tasks of 4 GiB at the same time; status must show both, their bytes and busy time."""
    with workers(scheduler.worker_env(), scheduler.worker_env()) as pair:
        solo = []
        for worker in pair:
            worker.ask(do="prepare", workload="add", gib=4.0)
            solo.append(worker.ask(do="run", iterations=500)["its"])
        iterations = int(solo[0] * TOGETHER)
        for worker in pair:
            worker.send(do="run", iterations=iterations)
        time.sleep(TOGETHER)  # half of the run, for they share the card
        status = scheduler.status()
        answers = [worker.receive() for worker in pair]
        pids = [worker.ask(do="info")["pid"] for worker in pair]
    seen = {client["pid"]: client["gpus"][0] for client in status["clients"]}
    both = all(pid in seen and seen[pid]["allocated"] >= 4 << 30 and seen[pid]["occupied_s"] > 0 for pid in pids)
    right = all(answer["right"] for answer in answers)
    return [
        {
            "test": "two together, 4 GiB add",
            "ratio": round(sum(answer["its"] for answer in answers) / statistics.mean(solo), 4),
            "shares": [round(answer["its"] / solo[0], 3) for answer in answers],
            "right": right,
            "status_clients": [seen.get(pid) for pid in pids],
            "drops": status["counters"]["drops"],
            "ok": right and both and status["counters"]["drops"] == 0,
        }
    ]


def quota(scheduler: Scheduler, rounds: int) -> list[Row]:
    """A task at 1Gi gets PyTorch's out-of-memory error there, sees a card of 1024 MiB, and goes on after freeing."""
    with workers({**scheduler.worker_env(), "NVSHARE_GPU_MEMORY_LIMIT": "1Gi"}) as (limited,):
        answer = limited.ask(do="alloc", mib=4096)
    ok = answer["error"] == "OutOfMemoryError" and answer["total_mib"] == 1024 and 896 <= answer["reached_mib"] <= 1024
    return [{"test": "memory quota 1Gi", **answer, "ok": ok}]


def restart(scheduler: Scheduler, rounds: int) -> list[Row]:
    """kill -9 of the scheduler under two running tasks: they go on, register again, and finish with right sums."""
    with workers(scheduler.worker_env(), scheduler.worker_env()) as pair:
        for worker in pair:
            worker.ask(do="prepare", workload="add", gib=2.0)
        its = pair[0].ask(do="run", iterations=2000)["its"]
        for worker in pair:
            worker.send(do="run", iterations=int(its * 3))
        time.sleep(1)  # in the middle of the run
        scheduler.kill()
        scheduler.start()
        answers = [worker.receive() for worker in pair]
        deadline = time.monotonic() + 5
        while len(scheduler.status()["clients"]) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        clients = scheduler.status()["clients"]
    held = [client["gpus"][0]["allocated"] for client in clients]
    right = all(answer["right"] for answer in answers)
    return [
        {
            "test": "scheduler killed and restarted",
            "right": right,
            "registered_again": len(clients),
            "held_gib": [round(held_bytes / (1 << 30), 2) for held_bytes in held],
            "ok": right and len(clients) == 2 and all(held_bytes >= 2 << 30 for held_bytes in held),
        }
    ]


TESTS = {"alone": alone, "tiny": tiny, "together": together, "quota": quota, "restart": restart}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TESTS), help="which tests, comma separated (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds per workload (default: 9)")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    subprocess.run(["make", "-C", str(ROOT), "native"], check=True, stdout=subprocess.DEVNULL)
    from nvshare.bench.machine import conditions, source_of_cards

    rows: list[Row] = []
    about = conditions(source_of_cards())
    with tempfile.TemporaryDirectory() as directory:
        scheduler = Scheduler(Path(directory))
        try:
            for name in arguments.only.split(","):
                started = time.monotonic()
                try:
                    rows += TESTS[name](scheduler, arguments.rounds)
                except (RuntimeError, subprocess.SubprocessError, KeyError) as error:
                    rows.append({"test": name, "error": str(error)[-2000:], "ok": False})
                print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
                log = (Path(directory) / "scheduler.log").read_text().splitlines()[-200:]
                result = {**about, "rows": rows, "scheduler_log": log}
                if arguments.json:
                    arguments.json.write_text(json.dumps(result, indent=1))
        finally:
            scheduler.stop()
    print(json.dumps(about["machine"]))
    for row in rows:
        details = ", ".join(
            f"{key} {value}" for key, value in row.items() if key not in {"test", "ok", "status_clients"}
        )
        print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['test']}: {details}")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
