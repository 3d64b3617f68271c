"""The tasks of all frameworks, native or shared, and what NVML says of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml

from nvshare import native
from nvshare.bench.gpu.frameworks import worker
from nvshare.bench.gpu.scheduler import TREE, OwnScheduler, build_native, plain_environment
from nvshare.bench.worker import Worker, ending
from nvshare.bench.workloads import ptx

LINKED = "c-linked"
FRAMEWORKS = (*worker.FRAMEWORKS, LINKED)
LONG = 240.0  # seconds to prepare: compilers and autotuning


class Task(Worker):
    """A process of one framework: native, or as a client of this scheduler. It touches the card when told to."""

    def __init__(self, framework: str, build: Path, scheduler: OwnScheduler | None, **variables: str) -> None:
        self.framework = framework
        chosen = {**worker.ENVIRONMENT.get(framework, {}), **({} if scheduler else worker.NATIVE.get(framework, {}))}
        variables = {**chosen, **variables}
        environment = scheduler.environment(variables) if scheduler else plain_environment(variables)
        if framework == LINKED:
            command = [str(build / "linked"), str(build / "kernels.ptx")]
        else:
            command = [sys.executable, "-m", worker.__name__, framework]
        super().__init__(framework, command, environment)


@contextlib.contextmanager
def tasks(*started: Task) -> Iterator[list[Task]]:
    with ending(started) as running:
        yield running


def build(directory: Path) -> None:
    """The native part, the C program and its kernels."""
    build_native()
    (directory / "kernels.ptx").write_text(ptx.PTX)
    simulated = ["-L", str(native.simulated_driver())] if os.environ.get("NVSHARE_SIM_NODE") else []
    include = ["-I", str(TREE / "native" / "include")]
    source, program = str(Path(__file__).with_name("linked.c")), str(directory / "linked")
    subprocess.run(["gcc", "-O2", *include, source, "-o", program, *simulated, "-l:libcuda.so.1"], check=True)


def nvml_bytes(pid: int) -> int:
    """What NVML says the process has on the first card, its context included; 0: not there."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == pid:
            return int(process.usedGpuMemory or 0)
    return 0
