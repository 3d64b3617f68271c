"""Simulated nodes for tests, with a scheduler and tasks where a test wants them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nvshare.gpu import sim
from tests.support.processes import Program, node_scheduler, preloaded, programs

_numbers = itertools.count()

MakeNode = Callable[..., sim.SimNode]


@contextlib.contextmanager
def simulated_nodes() -> Iterator[MakeNode]:
    """A function that takes what ``sim.up`` takes and makes a node of a new name; all go down with the context."""
    made: list[sim.SimNode] = []

    def make(spec: str, speed: float | None = None, **options: Any) -> sim.SimNode:
        made.append(sim.up(spec, speed, name=f"test-{os.getpid()}-{next(_numbers)}", **options))
        return made[-1]

    try:
        yield make
    finally:
        for node in made:
            sim.down(node.name)


class Node:
    """A simulated node, a scheduler that can be killed and started again, and tasks under the library."""

    def __init__(self, spec: str, speed: float) -> None:
        self._stack = contextlib.ExitStack()
        self.sim = self._stack.enter_context(simulated_nodes())(spec, speed)
        self.speed = speed
        self.env = {**os.environ, **self.sim.env()}
        self.scheduler = node_scheduler(self.sim, self.env, "--user")
        self._stack.callback(self.scheduler.stop)
        self._run = self._stack.enter_context(programs())
        self.start_scheduler = self.scheduler.start
        self.kill_scheduler = self.scheduler.kill
        self.status = self.scheduler.status
        self.set = self.scheduler.set
        self.await_status = self.scheduler.wait_until

    def restart_scheduler(self, *options: str) -> None:
        self.kill_scheduler()
        self.start_scheduler(*options)

    def log(self) -> str:
        """What the scheduler wrote."""
        return self.scheduler.log()

    def start(self, *command: str, gpu: int = 0, **variables: str) -> Program:
        """Run Python with these arguments, on one card."""
        environment = preloaded(self.sim, **{"CUDA_VISIBLE_DEVICES": self.sim.uuids[gpu], **variables})
        return self._run([sys.executable, *command], environment)

    def workload(self, name: str, *options: str, gpu: int = 0) -> Program:
        return self.start(
            "-m", "nvshare.bench.workloads", name, "--time-scale", f"{self.speed:g}", "--json", *options, gpu=gpu
        )

    def close(self) -> None:
        self._stack.close()
