"""Tasks that share the engines of modelled cards: what each is delivered, under quotas and priorities.

The real scheduler core, the modelled library, virtual time: the same tasks give the same figures to the last digit.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nvshare.bench.outcome import TaskPlan
from nvshare.bench.workloads.spec import WORKLOADS, seeded
from nvshare.core import commands, events
from nvshare.core.settings import Cores, Mode, Settings
from nvshare.gpu.profiles import Profile, load
from nvshare.model import costs
from nvshare.model.card import Card
from nvshare.model.engine import Engine, Process, Signal
from nvshare.model.link import Path, Plain, Shared
from nvshare.model.run import card_uuid
from nvshare.model.shell import Shell

CARD = "H200"
STREAM = 0.001  # seconds of tiny kernels that are modelled as one piece
AHEAD = 8  # pieces that a program submits ahead of the card
STALL = 0.02  # seconds
_FIRST_CLIENT = 0xC000_0000_0000_0001


@dataclass(frozen=True)
class ComputeTask:
    """A program that launches kernels of ``kernel`` seconds one after the other, at most one in ``gap`` seconds (with a
    gap above the kernel it is launch-bound). With ``burst`` it sleeps after so many seconds of work. With ``stalls``
    its host hesitates so often a second, for ``STALL`` in the mean, when depends on its name; not so alone."""

    name: str = "task"
    kernel: float = 0.002
    gap: float = 0.0
    burst: float | None = None
    sleep: float = 0.0
    stalls: float = 0.0
    quota: int | None = None  # percent
    urgent: bool = False
    gpu: int = 0

    @property
    def launch_bound(self) -> bool:
        return self.gap > self.kernel


@dataclass(frozen=True)
class QuotaChange:
    at: float  # seconds after the begin
    task: int
    quota: int


@dataclass(frozen=True)
class Delivery:
    """``delivered``: speed in the window over the speed without nvshare and neighbours. ``bursts``: seconds that each
    burst of work took, from its first launch to its end."""

    name: str
    delivered: float
    bursts: tuple[float, ...] = ()
    marks: tuple[tuple[float, float], ...] = ()  # seconds after the begin, work done by then in solo seconds


@dataclass(frozen=True)
class ComputeOutcome:
    tasks: tuple[Delivery, ...]
    log: tuple[str, ...] = field(default=())  # lines of the scheduler, DEBUG left out


def run(
    tasks: Sequence[ComputeTask],
    *,
    seconds: float = 8.0,
    warm_up: float = 2.0,
    changes: Sequence[QuotaChange] = (),
    mode: Mode | None = Mode.AUTO,
    profile: Profile | None = None,
) -> ComputeOutcome:
    """All tasks together for ``warm_up`` and ``seconds`` more; delivered counts from the end of the warm-up. Mode
    None: without nvshare."""
    profile = profile or load(CARD)
    steady = [replace(task, stalls=0.0) for task in tasks]
    solo = [_Run([task], warm_up, seconds, (), None, profile).programs[0] for task in steady]
    shared = _Run(tasks, warm_up, seconds, changes, None if mode is None else Settings(mode=mode), profile)
    return ComputeOutcome(
        tuple(
            Delivery(
                task.name,
                program.done / alone.done if alone.done else 0.0,
                tuple(program.bursts),
                tuple((at, done) for at, done in program.marks),
            )
            for task, program, alone in zip(tasks, shared.programs, solo, strict=True)
        ),
        tuple(shared.log),
    )


class _Run:
    """One run to its end. Without settings: without nvshare."""

    def __init__(
        self,
        tasks: Sequence[ComputeTask],
        warm_up: float,
        seconds: float,
        changes: Sequence[QuotaChange],
        settings: Settings | None,
        profile: Profile,
    ) -> None:
        self.log: list[str] = []
        engine = self._engine = Engine()
        gpus = 1 + max(task.gpu for task in tasks)
        cards = [Card(engine, card_uuid(profile, index), profile) for index in range(gpus)]
        shell = self._shell = Shell(engine, settings or Settings(), self)
        for card in cards:
            shell.add_card(card.uuid, profile.memory_bytes, profile.name, None)
        self.programs: list[_Program] = []
        for index, task in enumerate(tasks):
            card, client = cards[task.gpu], _FIRST_CLIENT + index
            plan = TaskPlan(task.name, WORKLOADS["add"], task.gpu, core_limit=task.quota, urgent=task.urgent)
            path: Path = Plain(card, client) if settings is None else Shared(engine, shell, card, client, plan)
            self.programs.append(_Program(engine, card, path, client, task, warm_up, warm_up + seconds))
        for change in changes:
            engine.at(change.at, functools.partial(self._change, change))
        engine.run()

    def _change(self, change: QuotaChange) -> None:
        group = f"process:{_FIRST_CLIENT + change.task}"
        self._shell.handle(events.LimitsChanged(self._engine.now, group, core_limit=Cores.of(change.quota)))

    def event(self, event: events.Event) -> None:
        """Nothing is learnt from what goes in."""

    def command(self, now: float, command: commands.Command) -> None:
        if isinstance(command, commands.Log) and command.level is not commands.Level.DEBUG:
            self.log.append(f"{now:.3f} {command.text}")


class _Program:
    """One program; ``done`` is its work in the window, in seconds that it takes alone."""

    def __init__(
        self, engine: Engine, card: Card, path: Path, client: int, task: ComputeTask, begin: float, end: float
    ) -> None:
        self._engine = engine
        self._card = card
        self._path = path
        self._client = client
        self._task = task
        self._begin, self._end = begin, end
        self.done = 0.0
        self.bursts: list[float] = []
        self.marks: list[tuple[float, float]] = []
        engine.start(self._run())

    def _run(self) -> Process:
        yield from self._path.open()
        while self._engine.now < self._end:
            if self._task.burst is not None:
                yield from self._burst(self._task.burst)
            elif self._task.launch_bound:
                yield from self._stream()
            else:
                yield from self._busy()
        self._path.close()

    def _busy(self) -> Process:
        ahead: deque[Signal] = deque()
        source, stalls = seeded(self._task.name), self._task.stalls
        stall_at = source.expovariate(stalls) if stalls else math.inf
        while self._engine.now < self._end:
            if len(ahead) == AHEAD:
                yield ahead.popleft()
            if self._engine.now >= stall_at:
                yield source.expovariate(1 / STALL)
                stall_at = self._engine.now + source.expovariate(stalls)
            ahead.append((yield from self._submit(max(1, round(STREAM / self._task.kernel)))))
        yield ahead[-1]

    def _burst(self, seconds: float) -> Process:
        began = self._engine.now
        last = Signal()
        for _ in range(max(1, round(seconds / self._task.kernel))):
            last = yield from self._submit(1)
        yield last
        yield costs.WAKE
        if self._begin <= began and self._engine.now <= self._end:
            self.bursts.append(self._engine.now - began)
        yield self._task.sleep

    def _stream(self) -> Process:
        """Host and card work at the same time; the host is the slower one."""
        launches = round(STREAM / self._task.gap)
        done = yield from self._submit(launches)
        yield launches * self._task.gap
        yield done

    def _submit(self, launches: int) -> Process:
        task, path = self._task, self._path
        yield from path.enter()
        launches = min(launches, path.batch(launches, task.kernel))
        seconds = launches * task.kernel
        if not task.launch_bound:
            yield launches * path.launch_seconds
        yield from path.pace(seconds)
        yield from path.enter()
        done = self._card.compute.submit(self._client, seconds)
        path.submitted(launches, done, seconds)
        done.then(lambda _: self._progress(max(seconds, launches * task.gap)))
        return done

    def _progress(self, seconds: float) -> None:
        if self._begin < self._engine.now <= self._end:
            self.done += seconds
        if not self.marks or self._engine.now - self.marks[-1][0] > STREAM:
            self.marks.append((self._engine.now, self.done))
