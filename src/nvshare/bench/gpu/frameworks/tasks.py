"""The processes of a measurement: workers of all frameworks, schedulers with a card declared small, what NVML says."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
from spine import ROOT, Scheduler
from worker import ENVIRONMENT, FRAMEWORKS, NATIVE

from nvshare import native
from nvshare.bench.workloads import ptx
from nvshare.client.connection import Connection

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
LINKED = "c-linked"
NAMES = (*FRAMEWORKS, LINKED)
PATIENCE = 45.0  # seconds for an answer
INFORMATION = "[NVSHARE][INFO]"
APART = ("unshare", "--net", "--")
CAN_BE_APART = (
    shutil.which(APART[0]) is not None
    and subprocess.run([*APART, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0
)


class Failed(Exception):
    """A worker ended or did not answer."""


class Worker:
    """One process of a framework, native or under nvshare. It is started at once and touches CUDA when told to."""

    def __init__(self, name: str, build: Path, scheduler: Scheduler | None, **variables: str) -> None:
        self.name = name
        env = {**os.environ, **ENVIRONMENT.get(name, {}), **({} if scheduler else NATIVE.get(name, {})), **variables}
        if scheduler is not None:
            env |= scheduler.worker_env()
        command = [str(build / "linked"), str(build / "kernels.ptx")]
        if name != LINKED:
            command = [sys.executable, str(HERE / "worker.py"), name]
        self.errors = (build / f"{name}-{id(self):x}.err").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )

    def send(self, *words: object) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self._failed("is gone") from error

    def receive(self, within: float = PATIENCE) -> dict[str, Any]:
        assert self.process.stdout
        timer = threading.Timer(within, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise self._failed(f"ended (or was given up after {within:g} s)")
        said: dict[str, Any] = json.loads(line)
        return said

    def ask(self, *words: object, within: float = PATIENCE) -> dict[str, Any]:
        self.send(*words)
        return self.receive(within)

    def _failed(self, what: str) -> Failed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return Failed(f"{self.name} {what}, status {self.process.returncode}: {self.said()[-1500:]}")

    def said(self) -> str:
        """What it wrote to standard error so far, but for what is no trouble."""
        lines = Path(self.errors.name).read_text().splitlines()
        return "\n".join(line for line in lines if INFORMATION not in line)

    def dismiss(self) -> None:
        """Tell it to end; ``stop`` waits for that."""
        assert self.process.stdin
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()

    def stop(self) -> None:
        if self.errors.closed:
            return
        self.dismiss()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class DeclaredScheduler(Scheduler):
    """A scheduler that takes the card for smaller than it is, or, without a size, as it is. A card has one scheduler;
    one that is ``apart`` does not see the claims of others, which end with the network namespace: so two can have a
    part of the same card each."""

    def __init__(self, directory: Path, gib: float | None = None, *, apart: bool = False) -> None:
        directory.mkdir(exist_ok=True)
        self._card_memory = None if gib is None else str(int(gib * GIB))
        self.prefix = APART if apart and CAN_BE_APART else ()
        super().__init__(directory)

    def start(self) -> None:
        if self._card_memory is not None:
            self.env["NVSHARE_CARD_MEMORY"] = self._card_memory
        super().start()

    def status(self) -> dict[str, Any]:
        with Connection(self.socket) as connection:
            status: dict[str, Any] = connection.request("status")["status"]
            return status

    def place(self, pid: int) -> dict[str, Any]:
        """What the scheduler knows of a process on the card."""
        (client,) = [client for client in self.status()["clients"] if client["pid"] == pid]
        place: dict[str, Any] = client["gpus"][0]
        return place


@contextlib.contextmanager
def scheduler(directory: Path, gib: float | None = None, *, apart: bool = False) -> Iterator[DeclaredScheduler]:
    started = DeclaredScheduler(directory, gib, apart=apart)
    try:
        yield started
    finally:
        started.stop()


@contextlib.contextmanager
def workers(*started: Worker) -> Iterator[tuple[Worker, ...]]:
    try:
        yield started
    finally:
        for worker in started:  # all of them before the first is waited for
            worker.dismiss()
        for worker in started:
            worker.stop()


def build(directory: Path) -> None:
    """The native part, the C program and its kernels."""
    subprocess.run(["make", "-C", str(ROOT), "native"], check=True, stdout=subprocess.DEVNULL)
    (directory / "kernels.ptx").write_text(ptx.PTX)
    simulated = ["-L", str(native.simulated_driver())] if os.environ.get("NVSHARE_SIM_NODE") else []
    include = ["-I", str(ROOT / "native" / "include")]
    source, program = str(HERE / "linked.c"), str(directory / "linked")
    subprocess.run(["gcc", "-O2", *include, source, "-o", program, *simulated, "-l:libcuda.so.1"], check=True)


def nvml_bytes(pid: int) -> int:
    """What NVML says the process has on the first card, its context included; 0: not there."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == pid:
            return int(process.usedGpuMemory or 0)
    return 0
