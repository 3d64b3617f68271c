"""A real scheduler process on a real socket, and clients made of wire messages."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import READY, environment
from tests.support.wire_client import WireClient

GIB = 1 << 30
ENTRY_POINT = Path(__file__).with_name("scheduler_with_cards.py")


class SchedulerProcess(processes.SchedulerProcess):
    """A scheduler on cards that exist by name only."""

    def __init__(self, directory: Path, cards: int, size: int, variables: dict[str, str]) -> None:
        unique = secrets.token_hex(4)  # claims on cards are seen by the whole machine
        self.gpus = [f"GPU-{unique}-0000-0000-0000-{index:012d}" for index in range(cards)]
        self._size = size
        super().__init__([], directory / "scheduler.sock", directory / "scheduler.log", environment(**variables))

    def start(self, *options: str, idle_exit: float = 0.0) -> SchedulerProcess:
        cards = ",".join(self.gpus)
        self.command = [sys.executable, ENTRY_POINT, str(self.socket), cards, str(self._size), READY, str(idle_exit)]
        return super().start(*options)


@pytest.fixture
def make_scheduler(tmp_path: Path) -> Iterator[Callable[..., SchedulerProcess]]:
    made: list[SchedulerProcess] = []

    def make(cards: int = 2, size: int = 16 * GIB, name: str = "node", **variables: str) -> SchedulerProcess:
        directory = tmp_path / name
        directory.mkdir()
        made.append(SchedulerProcess(directory, cards, size, variables))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.kill()


@pytest.fixture
def scheduler(make_scheduler: Callable[..., SchedulerProcess]) -> SchedulerProcess:
    """A scheduler with two cards of 16 GiB."""
    return make_scheduler().start()


@pytest.fixture
def connect() -> Iterator[Callable[[SchedulerProcess], WireClient]]:
    made: list[WireClient] = []

    def make(scheduler: SchedulerProcess) -> WireClient:
        made.append(WireClient(scheduler.socket))
        return made[-1]

    yield make
    for client in made:
        client.close()
