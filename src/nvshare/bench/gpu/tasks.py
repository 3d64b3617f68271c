"""Tasks that compute with PyTorch, or by the driver API where the card is simulated."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping

from nvshare.bench.compute.workers import PROGRAM
from nvshare.bench.gpu.scheduler import OwnScheduler, plain_environment
from nvshare.bench.machine import source_of_cards
from nvshare.bench.worker import Worker, ending


class Task(Worker):
    """A process that computes when it is told to: native, or as a client of this scheduler."""

    def __init__(self, scheduler: OwnScheduler | None, variables: Mapping[str, str] | None = None) -> None:
        kit = "torch" if source_of_cards() == "gpu" else "driver"
        environment = plain_environment(variables) if scheduler is None else scheduler.environment(variables)
        super().__init__("shared task" if scheduler else "native task", [sys.executable, *PROGRAM, kit], environment)

    def speed(self, steps: int) -> float:
        """Steps per second, from the first submission on."""
        return steps / float(self.ask(do="run", steps=steps)["seconds"])


@contextlib.contextmanager
def tasks(*schedulers: OwnScheduler | None) -> Iterator[list[Task]]:
    with ending([Task(scheduler) for scheduler in schedulers]) as started:
        yield started
