"""Virtual time: a queue of things to happen, and processes written as generators that wait for them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any


class Signal:
    """Something that happens once. A process waits for it with ``value = yield signal``."""

    __slots__ = ("_callbacks", "fired", "value")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []
        self.fired = False
        self.value: Any = None

    def fire(self, value: Any = None) -> None:
        if self.fired:
            return
        self.fired = True
        self.value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call back when it fires, or now if it has."""
        if self.fired:
            callback(self.value)
        else:
            self._callbacks.append(callback)


Process = Generator["Signal | float", Any, Any]


class Deadlock(Exception):
    """Nothing is left to happen, but a process still waits."""


class Engine:
    """Runs callbacks in order of time; those of the same moment in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._unfinished: dict[Signal, Process] = {}

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(time, self.now), self._count, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def start(self, process: Process) -> Signal:
        """Run a process. It yields seconds to let pass or a signal to wait for. The result fires when it returns."""
        ended = Signal()
        self._unfinished[ended] = process

        def resume(value: Any) -> None:
            if ended.fired:
                return  # it was killed while it waited
            try:
                wanted = process.send(value)
            except StopIteration as stop:
                self._unfinished.pop(ended, None)
                ended.fire(stop.value)
                return
            if isinstance(wanted, Signal):
                wanted.then(resume)
            else:
                self.after(wanted, lambda: resume(None))

        self.after(0.0, lambda: resume(None))
        return ended

    def kill(self, ended: Signal) -> None:
        """End a process that waits, at once, wherever it is; what ``start`` gave for it names it."""
        process = self._unfinished.pop(ended, None)
        if process is not None:
            process.close()
            ended.fire()

    def run(self) -> None:
        """Until every process has ended."""
        while self._unfinished:
            if not self._queue:
                raise Deadlock(f"{len(self._unfinished)} processes wait for what never comes, at {self.now:.3f} s")
            self.now, _, action = heapq.heappop(self._queue)
            action()
