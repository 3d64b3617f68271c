"""What 500 pods that change their quotas cost those who wait for a grant.

    python benchmarks/pod_changes.py [--pods 500] [--rounds 10] [--seconds 2] [--json FILE]

The scheduler and nvshare-pod-watch are the real processes; the API server is the double of the tests, in a process of
its own with the lowest priority, because a real one is on another machine. Calm and storm take turns, so that what
else the machine does touches both alike: in a storm every pod's two annotations change once a second.

- grant: from just before a request is written to just after the answer was read, 500 times a second.
- echo: the same round trip, after each, with a process that only answers: what the machine itself adds, in calm and
  in storm.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from daemon_scale import CARD, ENTRY_POINT, ROOT, Client, Echo, paced, processor_seconds

CLIENTS = 8
NODE = "node-1"


def storm(pods: int, kubeconfig: str) -> None:
    """The API server: ``on`` and ``off`` on standard input say whether the pods change."""
    sys.path.insert(0, str(ROOT / "tests" / "kube"))
    from doubles.api import ApiDouble

    os.nice(19)
    api = ApiDouble()
    for number in range(pods):
        api.create(f"pod-{number}", node=NODE, limits={"nvshare.com/gpu": "1"})
    api.kubeconfig(Path(kubeconfig))
    print("ready", flush=True)
    changing = threading.Event()

    def change() -> None:
        step = 0
        began = time.monotonic()
        while True:
            changing.wait()
            step += 1
            began = max(began + 1 / pods, time.monotonic() - 1.0)
            time.sleep(max(0.0, began - time.monotonic()))
            cores = str(1 + step % 99)
            api.annotate(f"pod-{step % pods}", "nvshare.com/gpu-core-limit", cores)
            api.annotate(f"pod-{step % pods}", "nvshare.com/gpu-memory-limit", f"{1000 + step % 999}Mi")

    threading.Thread(target=change, daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "on":
            changing.set()
        else:
            changing.clear()
        print("done", flush=True)


class Node:
    """A scheduler, a watch of pods, and an API server that can be told to storm."""

    def __init__(self, directory: Path, pods: int) -> None:
        self.gpu = f"GPU-{secrets.token_hex(4)}-0000-0000-0000-000000000000"
        self.socket = directory / "scheduler.sock"
        kubeconfig = directory / "kubeconfig"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        ready, told = os.pipe()
        self._processes = [
            subprocess.Popen(
                [sys.executable, ENTRY_POINT, self.socket, self.gpu, str(CARD), str(told)],
                pass_fds=(told,),
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        ]
        os.close(told)
        if not os.read(ready, 1):
            raise SystemExit("the scheduler did not start")
        os.close(ready)
        self.scheduler = self._processes[0].pid
        self._api = subprocess.Popen(
            [sys.executable, __file__, "--storm", str(kubeconfig), "--pods", str(pods)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(self._api)
        self._answer()
        options = ["--node", NODE, "--kubeconfig", str(kubeconfig), "--socket", str(self.socket)]
        self._processes.append(
            subprocess.Popen([sys.executable, "-m", "nvshare.cli.pod_watch", *options], env=environment)
        )

    def _answer(self) -> None:
        assert self._api.stdout
        if not self._api.stdout.readline():
            raise SystemExit("the API server did not start")

    def storms(self, on: bool) -> None:
        assert self._api.stdin
        self._api.stdin.write("on\n" if on else "off\n")
        self._api.stdin.flush()
        self._answer()
        time.sleep(0.5)  # what is on its way arrives

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Meter:
    """Round trips in calm and in storm."""

    def __init__(self, node: Node) -> None:
        self._clients = [Client(node.socket, node.gpu) for _ in range(CLIENTS)]
        self._echo = Echo()
        self._node = node
        self.grants: dict[bool, list[float]] = {False: [], True: []}
        self.echoes: dict[bool, list[float]] = {False: [], True: []}
        self.busy = {False: 0.0, True: 0.0}  # seconds of the scheduler's processor

    def phase(self, on: bool, seconds: float) -> None:
        self._node.storms(on)
        before = processor_seconds(self._node.scheduler)

        def once(number: int) -> float:
            self.echoes[on].append(self._echo.once(number))
            return self._clients[number % CLIENTS].turn()

        self.grants[on] += paced(once, seconds)
        self.busy[on] += processor_seconds(self._node.scheduler) - before

    def close(self) -> None:
        self._echo.close()


def measure(pods: int, rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory), pods)
        try:
            meter = Meter(node)
            for number in range(rounds):
                for on in (False, True) if number % 2 else (True, False):
                    meter.phase(on, seconds)
            meter.close()
        finally:
            node.close()
    figures: dict[str, Any] = {"pods": pods, "rounds": rounds, "seconds": seconds}
    for what, taken in (("grant", meter.grants), ("echo", meter.echoes)):
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            calm, stormy = (_quantile(taken[on], part) * 1e3 for on in (False, True))
            figures |= {f"{what}_{name}_calm_ms": calm, f"{what}_{name}_storm_ms": stormy}
            figures[f"{what}_{name}_ratio"] = stormy / calm
    figures["scheduler_cpu_calm_s"], figures["scheduler_cpu_storm_s"] = meter.busy[False], meter.busy[True]
    return figures


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--storm", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.storm:
        storm(arguments.pods, arguments.storm)
        return
    figures = measure(arguments.pods, arguments.rounds, arguments.seconds)
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
