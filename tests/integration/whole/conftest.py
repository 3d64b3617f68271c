"""The whole path: real processes under libnvshare.so, a real scheduler, a simulated node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvshare import native
from nvshare.client.connection import Connection, SchedulerError
from nvshare.gpu import sim

HOLDER = Path(__file__).with_name("holder.py")
PATIENCE = 60.0


class Task:
    """A process on the node; its standard error is kept with the time each line came."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[tuple[float, str]] = []
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self._heard:
                self.said.append((time.monotonic(), line.rstrip()))
                self._heard.notify_all()

    def heard(self, text: str, count: int = 1) -> float:
        """Wait until a line with this text came for the count-th time; when that was."""
        with self._heard:
            assert self._heard.wait_for(lambda: len(self._times(text)) >= count, PATIENCE), (text, self.said)
            return self._times(text)[count - 1]

    def _times(self, text: str) -> list[float]:
        return [when for when, line in self.said if text in line]

    def line(self, text: str, count: int = 1) -> str:
        """Read standard output up to the count-th line with this text."""
        assert self.process.stdout
        for line in self.process.stdout:
            count -= text in line
            if count == 0:
                return line
        raise AssertionError((text, self.said))

    def ignore_output(self) -> None:
        """Read the rest of its output and forget it, so that it never waits for us."""
        assert self.process.stdout
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def tell(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.said
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        self.tell(command)
        return self.answer()

    def result(self) -> tuple[int, str]:
        """Wait for its end: exit code and what is left of its output."""
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        output = self.process.stdout.read()
        code = self.process.wait(PATIENCE * 3)
        self._reader.join(PATIENCE)
        return code, output

    def kill(self) -> float:
        self.process.send_signal(signal.SIGKILL)
        return time.monotonic()

    def clean(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Node:
    """A simulated node with a scheduler of its own that can be killed and started again."""

    def __init__(self, spec: str, speed: float) -> None:
        self.sim = sim.up(spec, speed=speed, name=f"whole-{os.getpid()}")
        self.speed = speed
        self.tasks: list[Task] = []
        self.env = {**os.environ, **self.sim.env(), "NVSHARE_SOCK": str(self.sim.socket)}
        self.log = self.sim.directory / "test.log"
        self.scheduler: subprocess.Popen[bytes] | None = None

    def start_scheduler(self, *options: str) -> None:
        ready, told = os.pipe()
        command = [sys.executable, "-m", "nvshare.cli.scheduler", "--user", "--socket", str(self.sim.socket)]
        with self.log.open("ab") as log:
            self.scheduler = subprocess.Popen(
                [*command, "--ready-fd", str(told), *options], env=self.env, stderr=log, pass_fds=(told,)
            )
        os.close(told)
        listening = os.read(ready, 1)
        os.close(ready)
        assert listening, self.log.read_text()

    def kill_scheduler(self) -> None:
        assert self.scheduler
        self.scheduler.kill()
        self.scheduler.wait()

    def start(self, *command: str, gpu: int = 0, **variables: str) -> Task:
        environment = {
            **self.env,
            "LD_PRELOAD": str(native.interposer()),
            "CUDA_VISIBLE_DEVICES": self.sim.uuids[gpu],
            **variables,
        }
        task = Task([sys.executable, *command], environment)
        self.tasks.append(task)
        return task

    def workload(self, name: str, *options: str, gpu: int = 0) -> Task:
        return self.start(
            "-m", "nvshare.bench.workloads", name, "--time-scale", f"{self.speed:g}", "--json", *options, gpu=gpu
        )

    def holder(self, gpu: int = 0, **variables: str) -> Task:
        return self.start(str(HOLDER), gpu=gpu, **variables)

    def status(self) -> dict[str, Any]:
        with Connection(self.sim.socket) as connection:
            status: dict[str, Any] = connection.request("status")["status"]
            return status

    def set(self, **settings: Any) -> None:
        with Connection(self.sim.socket) as connection:
            connection.request("set", **settings)

    def await_status(self, satisfied: Any, patience: float = PATIENCE) -> dict[str, Any]:
        """Ask until the status is as wanted."""
        deadline = time.monotonic() + patience
        while True:
            with contextlib.suppress(SchedulerError):
                status = self.status()
                if satisfied(status):
                    return status
            assert time.monotonic() < deadline, self.log.read_text()
            threading.Event().wait(0.03)  # the scheduler has to answer each time

    def close(self) -> None:
        for task in self.tasks:
            task.clean()
        if self.scheduler is not None:
            self.scheduler.terminate()
            self.scheduler.wait()
        sim.down(self.sim.name)


@pytest.fixture
def node() -> Iterator[Node]:
    """Two simulated T4, ten times as fast as life, and a scheduler."""
    node = Node("2xT4", speed=10)
    try:
        node.start_scheduler()
        yield node
    finally:
        node.close()
