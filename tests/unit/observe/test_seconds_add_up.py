"""Seconds of tasks against the seconds in which a card was busy: exact in the model, with the real core."""

from __future__ import annotations

from collections import defaultdict

import pytest

from nvshare.bench.outcome import TaskPlan
from nvshare.bench.workloads.spec import Workload
from nvshare.core import commands, events
from nvshare.core.settings import Mode, Settings
from nvshare.gpu.profiles import load
from nvshare.model.card import Card
from nvshare.model.engine import Engine
from nvshare.model.fluid import Fluid
from nvshare.model.link import Shared
from nvshare.model.shell import Shell
from nvshare.model.task import Barrier, Task
from nvshare.observe import families as f
from nvshare.observe.ledger import Ledger

TASKS, CARDS = 12, 2
FIRST = 0xA000_0000_0000_0001


class BusyCard(Card):
    """Counts the seconds in which it computes."""

    def __init__(self, engine: Engine, uuid: str) -> None:
        super().__init__(engine, uuid, load("T4"))
        self.compute = Fluid(engine, self.profile.timeslice_efficiency, self._changed)
        self._engine = engine
        self._busy_s = 0.0
        self._since: float | None = None

    def _changed(self) -> None:
        self._busy_s = self.busy_s
        self._since = self._engine.now if self.compute.busy else None

    @property
    def busy_s(self) -> float:
        return self._busy_s + (0.0 if self._since is None else self._engine.now - self._since)


class Books:
    """Books a status with each report of a task."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self.shell: Shell

    def event(self, event: events.Event) -> None:
        if isinstance(event, events.UsageReported):
            self._ledger.book({**self.shell.snapshot().to_dict(), "scheduler": {"cards": []}}, event.now)

    def command(self, now: float, command: commands.Command) -> None:
        pass

    def used(self) -> dict[str, float]:
        """Seconds of all tasks, by card."""
        used: dict[str, float] = defaultdict(float)
        for sample in self._ledger.samples(0.0):
            if sample.family is f.TASK_GPU_SECONDS:
                used[sample.labels[0]] += sample.value
        return used


def run(mode: Mode) -> tuple[list[BusyCard], Books]:
    """Twelve tasks that want two cards all the time."""
    engine = Engine()
    cards = [BusyCard(engine, f"GPU-{number}") for number in range(CARDS)]
    books = Books()
    shell = books.shell = Shell(engine, Settings(mode=mode), books, validates=False)
    for card in cards:
        shell.add_card(card.uuid, card.profile.memory_bytes, card.profile.name, None)
    workload = Workload("add", n=5000, iterations=4000)
    begin, end = Barrier(TASKS), Barrier(TASKS)
    for number in range(TASKS):
        card, client = cards[number % CARDS], FIRST + number
        plan = TaskPlan(f"task {number}", workload)
        Task(engine, card, Shared(engine, shell, card, client, plan), client, plan).start(begin, end)
    engine.run()
    return cards, books


def test_in_turns_the_seconds_of_tasks_are_those_of_their_card() -> None:
    cards, books = run(Mode.SERIAL)
    assert books.used() == pytest.approx({card.uuid: card.busy_s for card in cards}, rel=0.01)


def test_side_by_side_they_are_no_less() -> None:
    cards, books = run(Mode.AUTO)
    used = books.used()
    assert all(used[card.uuid] >= 0.99 * card.busy_s for card in cards)
