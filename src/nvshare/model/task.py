"""A workload as the model sees it: the steps of ``workloads/program.py`` with the time each takes."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nvshare.bench.outcome import TaskPlan
from nvshare.bench.workloads import pattern
from nvshare.bench.workloads.spec import BATCH, BATCHES_IN_FLIGHT
from nvshare.model import costs
from nvshare.model.card import Card, OutOfMemory
from nvshare.model.engine import Engine, Process, Signal
from nvshare.model.link import Path


class Barrier:
    """Everybody who meets here goes on at the same moment."""

    def __init__(self, parties: int) -> None:
        self._missing = parties
        self._together = Signal()

    def join(self, gone: Signal) -> Process:
        """Meet for somebody who does not come, once that is known."""
        yield gone
        yield from self.meet()

    def meet(self) -> Process:
        self._missing -= 1
        if not self._missing:
            self._together.fire()
        yield self._together


@dataclass
class TaskTimes:
    setup: float = 0.0
    loop: float = 0.0
    copied_bytes: int = 0
    window: int | None = None
    out_of_memory: bool = False
    killed: bool = False
    began: float = 0.0  # when all loops began
    ended: float | None = None  # when the process ended
    marks: list[tuple[float, int]] = field(default_factory=list)


class Task:
    def __init__(self, engine: Engine, card: Card, path: Path, user: int, plan: TaskPlan) -> None:
        workload, seed = plan.workload, plan.seed
        self._engine = engine
        self._card = card
        self._path = path
        self._user = user
        self._plan = plan
        self._workload = workload
        self._seed = seed
        self._done = 0
        self._process = Signal()
        self._gone = Signal()
        self._kernel = card.profile.kernel_seconds(workload.kernel_bytes)
        self._copied_in, self._copied_out = pattern.copied_bytes(workload.elements, seed, min(2, workload.iterations))
        self.times = TaskTimes()

    def start(self, begin: Barrier, end: Barrier) -> None:
        self._process = self._engine.start(self._run(begin, end))
        if self._plan.leaves or self._plan.killed_at is not None:
            self._engine.start(end.join(self._gone))

    def _kill(self) -> None:
        """SIGKILL: the process and its work are gone; nothing it would have done happens."""
        if self.times.killed:
            return
        self.times.killed = True
        self.times.ended = self._engine.now
        self._engine.kill(self._process)
        self._path.close()
        self._gone.fire()

    def _run(self, begin: Barrier, end: Barrier) -> Process:
        """As the program with ``--barrier``: all begin their loops together, and none leaves before all are done, but
        those that are to leave early."""
        began = self._engine.now
        try:
            yield from self._set_up()
        except OutOfMemory:
            self.times.out_of_memory = True
        self.times.setup = self._engine.now - began
        yield from begin.meet()
        self.times.began = self._engine.now
        if not self.times.out_of_memory:
            began = self._engine.now
            yield from (self._busy_loop() if self._workload.busy else self._idle_loop())
            self.times.loop = self._engine.now - began
            self.times.window = self._path.window
            yield from self._check()
        if self._plan.leaves or self._plan.killed_at is not None:
            self._gone.fire()
        else:
            yield from end.meet()
        self.times.ended = self._engine.now
        self._path.close()

    def _set_up(self) -> Process:
        workload, card = self._workload, self._card
        yield from self._path.open()
        for _ in range(workload.buffers):
            yield from self._path.allocate(workload.buffer_bytes)
        fill = card.profile.kernel_seconds(workload.buffer_bytes)
        yield from self._launch_one(fill * workload.buffers)
        yield from self._copy(card.copy_in, self._copied_in)

    def _check(self) -> Process:
        yield from self._copy(self._card.copy_out, self._copied_out)

    def _busy_loop(self) -> Process:
        left = self._workload.iterations
        ahead: deque[Signal] = deque()
        while left:
            if len(ahead) == BATCHES_IN_FLIGHT:
                yield ahead.popleft()
            yield from self._path.enter()
            launches = self._path.batch(min(self._plan.marks or BATCH, left), self._kernel)
            yield launches * self._path.launch_seconds
            yield from self._path.pace(launches * self._kernel)
            yield from self._path.enter()
            done = self._launch(launches, launches * self._kernel)
            done.then(functools.partial(self._progress, launches))
            ahead.append(done)
            left -= launches
        yield ahead[-1]
        yield costs.WAKE

    def _progress(self, launches: int, _: object) -> None:
        self._done += launches
        if self._plan.marks is not None:
            self.times.marks.append((self._engine.now - self.times.began, self._done))
        if self._plan.killed_at is not None and self._done >= self._plan.killed_at:
            self._engine.after(0.0, self._kill)

    def _idle_loop(self) -> Process:
        pauses = self._workload.sleeps(self._seed)
        for _ in range(self._workload.iterations):
            yield from self._launch_one(self._kernel)
            yield costs.WAKE
            yield next(pauses)

    def _launch(self, launches: int, seconds: float) -> Signal:
        done = self._card.compute.submit(self._user, seconds)
        self._path.submitted(launches, done, seconds)
        return done

    def _launch_one(self, seconds: float) -> Process:
        yield self._path.launch_seconds
        yield from self._path.enter()
        yield self._launch(1, seconds)

    def _copy(self, copy: Callable[[int, int], Signal], size: int) -> Process:
        yield from self._path.enter()
        done = copy(self._user, size)
        self._path.submitted(1, done)
        self.times.copied_bytes += size
        yield done
