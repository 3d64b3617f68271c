"""What the daemon is to the core, in virtual time: delivers events, carries commands out, keeps the timer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from nvshare.core import commands, events
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Settings
from nvshare.core.snapshot import Snapshot
from nvshare.model import costs
from nvshare.model.engine import Engine


class Receiver(Protocol):
    """A client's end of its connection."""

    def receive(self, command: commands.Command) -> None: ...


class Watcher(Protocol):
    """Sees all that goes in and out of the scheduler, in order."""

    def event(self, event: events.Event) -> None: ...

    def command(self, now: float, command: commands.Command) -> None: ...


class Shell:
    """``validates``: check the scheduler's invariants after each event, which takes most of the time of a long run."""

    def __init__(self, engine: Engine, settings: Settings, *watchers: Watcher, validates: bool = True) -> None:
        self._engine = engine
        self._validates = validates
        self._watchers = watchers
        self._scheduler = Scheduler(settings)
        self._receivers: dict[int, Receiver] = {}
        self._wake = 0
        self._events: deque[events.Event] = deque()

    def add_card(self, uuid: str, total: int, name: str, declared: int | None) -> None:
        self.handle(events.GpuAdded(self._engine.now, uuid, total, name, declared))

    def connect(self, client: int, receiver: Receiver) -> None:
        self._receivers[client] = receiver

    def send(self, make: Callable[[float], events.Event]) -> None:
        """From a client: arrives a message's time later."""
        self._engine.after(costs.MESSAGE, lambda: self.handle(make(self._engine.now)))

    def handle(self, event: events.Event) -> None:
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            for watcher in self._watchers:
                watcher.event(event)
            for command in self._scheduler.handle(event):
                for watcher in self._watchers:
                    watcher.command(self._engine.now, command)
                self._carry_out(command)
            if self._validates:
                self._scheduler.validate()

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot(self._engine.now)

    def _carry_out(self, command: commands.Command) -> None:
        if isinstance(command, commands.WakeAt):
            self._set_timer(command.at)
        elif isinstance(command, commands.SampleCards):  # what is on a modelled card is known at once
            self._events.append(events.CardsSampled(self._engine.now, command.sample))
        elif not isinstance(command, (commands.Log, commands.GroupAppeared)):
            client: int = command.client  # type: ignore[attr-defined]  # every other command has one
            receiver = self._receivers[client]
            self._engine.after(costs.MESSAGE, lambda: receiver.receive(command))

    def _set_timer(self, at: float | None) -> None:
        self._wake += 1
        if at is None:
            return
        wake = self._wake

        def fire() -> None:
            if wake == self._wake:
                self.handle(events.TimerFired(self._engine.now))

        self._engine.at(at, fire)
