"""What 500 pods that change their quotas cost those who wait for a grant.

    python benchmarks/pod_changes.py [--pods 500] [--rounds 10] [--seconds 2] [--json FILE]

The scheduler and nvshare-pod-watch are the real processes; the API server is the double of the tests, in a process of
its own with the lowest priority, because a real one is on another machine. Three phases take turns, so that what else
the machine does touches all alike:

- calm: nothing changes.
- other: every pod changes twice a second, but not its quotas. The API server and the watch have all their work, which a
  small machine feels; the scheduler has none.
- quotas: every pod's two annotations change once a second.

What is measured in each, 500 times a second:

- grant: from just before a request is written to just after the answer was read.
- echo: the same round trip, after each, with a process that only answers: what the machine itself adds.
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

from daemon_scale import ENVIRONMENT, ROOT, Client, Echo, paced, processor_seconds, quantile, start_scheduler

from nvshare.config import CORES_ANNOTATION, MEMORY_ANNOTATION

CLIENTS = 8
NODE = "node-1"
PHASES = ("calm", "other", "quotas")
QUOTAS = (CORES_ANNOTATION, MEMORY_ANNOTATION)
OTHERS = ("example.com/step", "example.com/progress")


def storm(pods: int, kubeconfig: str) -> None:
    """The API server: a phase on standard input says what of the pods changes."""
    sys.path.insert(0, str(ROOT))
    from tests.kube.doubles.api import ApiDouble

    os.nice(19)
    api = ApiDouble()
    for number in range(pods):
        api.create(f"pod-{number}", node=NODE, limits={"nvshare.com/gpu": "1"})
    api.kubeconfig(Path(kubeconfig))
    print("ready", flush=True)
    changing = threading.Event()
    names = QUOTAS

    def change() -> None:
        step = 0
        began = time.monotonic()
        while True:
            changing.wait()
            step += 1
            began = max(began + 1 / pods, time.monotonic() - 1.0)
            time.sleep(max(0.0, began - time.monotonic()))
            for name, value in zip(names, (str(1 + step % 99), f"{1000 + step % 999}Mi"), strict=True):
                api.annotate(f"pod-{step % pods}", name, value)

    threading.Thread(target=change, daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "calm":
            changing.clear()
        else:
            names = QUOTAS if line.strip() == "quotas" else OTHERS
            changing.set()
        print("done", flush=True)


class Node:
    """A scheduler, a watch of pods, and an API server that can be told what changes."""

    def __init__(self, directory: Path, pods: int) -> None:
        self.gpu = f"GPU-{secrets.token_hex(4)}-0000-0000-0000-000000000000"
        self.socket = directory / "scheduler.sock"
        kubeconfig = directory / "kubeconfig"
        self._processes: list[subprocess.Popen[bytes] | subprocess.Popen[str]] = [
            start_scheduler(self.socket, [self.gpu])
        ]
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
        watch = [sys.executable, "-m", "nvshare.cli.pod_watch", *options]
        self._processes.append(subprocess.Popen(watch, env=ENVIRONMENT))

    def _answer(self) -> None:
        assert self._api.stdout
        if not self._api.stdout.readline():
            raise SystemExit("the API server did not start")

    def turn_to(self, phase: str) -> None:
        assert self._api.stdin
        self._api.stdin.write(phase + "\n")
        self._api.stdin.flush()
        self._answer()
        time.sleep(0.5)  # what is on its way arrives

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Meter:
    """Round trips in each phase."""

    def __init__(self, node: Node) -> None:
        self._clients = [Client(node.socket, node.gpu) for _ in range(CLIENTS)]
        self._echo = Echo()
        self._node = node
        self.grants: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.echoes: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.busy = dict.fromkeys(PHASES, 0.0)  # seconds of the scheduler's processor

    def watch(self, phase: str, seconds: float) -> None:
        self._node.turn_to(phase)
        before = processor_seconds(self._node.scheduler)

        def once(number: int) -> float:
            self.echoes[phase].append(self._echo.once(number))
            return self._clients[number % CLIENTS].turn()

        self.grants[phase] += paced(once, seconds)
        self.busy[phase] += processor_seconds(self._node.scheduler) - before

    def close(self) -> None:
        self._echo.close()


def measure(pods: int, rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory), pods)
        try:
            meter = Meter(node)
            for number in range(rounds):
                for place in range(len(PHASES)):
                    meter.watch(PHASES[(number + place) % len(PHASES)], seconds)
            meter.close()
        finally:
            node.close()
    figures: dict[str, Any] = {"pods": pods, "rounds": rounds, "seconds": seconds}
    for what, taken in (("grant", meter.grants), ("echo", meter.echoes)):
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            found = {phase: quantile(taken[phase], part) * 1e3 for phase in PHASES}
            figures |= {f"{what}_{name}_{phase}_ms": value for phase, value in found.items()}
            figures[f"{what}_{name}_other_to_calm"] = found["other"] / found["calm"]
            figures[f"{what}_{name}_quotas_to_calm"] = found["quotas"] / found["calm"]
            figures[f"{what}_{name}_quotas_to_other"] = found["quotas"] / found["other"]
    return figures | {f"scheduler_cpu_{phase}_s": seconds for phase, seconds in meter.busy.items()}


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
