"""Tasks that compute and think, on a modelled card in virtual time: under the real scheduler core, and natively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvshare.bench.fairness.rows import Measure, Row, Yardstick, row
from nvshare.bench.fairness.tasks import Task, Tasks
from nvshare.bench.outcome import TaskPlan
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.core.settings import Cores, Settings
from nvshare.gpu.profiles import Profile, load, of_card
from nvshare.model import attainable, costs
from nvshare.model.card import Card
from nvshare.model.engine import Engine, Process, Signal
from nvshare.model.link import Path, Plain, Shared
from nvshare.model.run import card_uuid
from nvshare.model.shell import Shell

PIECE = 0.0005  # seconds of short kernels that are submitted as one
_BEGIN_APART = 0.007  # seconds
_FIRST_CLIENT = 0xF000_0000_0000_0001


@dataclass(frozen=True)
class Job:
    """One set to measure; a plain value, so that other processes can be handed it."""

    part: str
    tasks: Tasks
    profile: str
    seconds: float
    warm_up: float


def measured_row(job: Job) -> Row:
    """The row of a set. Exact: the same job gives the same row to the last digit."""
    profile = load(job.profile)
    got = shares(job.tasks, job.seconds, job.warm_up, profile)
    native = shares(job.tasks, job.seconds, job.warm_up, profile, None)
    return row(job.part, job.tasks, attainable.measure(job.tasks), got, native)


def measure_beside(card: str, seconds: float, warm_up: float) -> Measure:
    """What tasks that are measured on a card of this name should get of it, and what the model gives them where the
    card has a profile."""
    profile = of_card(card)

    def measure(tasks: Tasks) -> Yardstick:
        due = attainable.measure(tasks)
        return due if profile is None else replace(due, model=shares(tasks, seconds, warm_up, profile))

    return measure


_AS_INSTALLED = Settings()


def shares(
    tasks: Sequence[Task],
    seconds: float,
    warm_up: float,
    profile: Profile,
    settings: Settings | None = _AS_INSTALLED,
    *,
    validates: bool = False,
) -> list[float]:
    """Percent of the card's time that each task uses in ``seconds`` after the warm-up. Without settings: natively, by
    the driver's time-slicing, without quotas."""
    engine = Engine()
    card = Card(engine, card_uuid(profile, 0), profile)
    shell = Shell(engine, settings or Settings(), validates=validates)
    shell.add_card(card.uuid, profile.memory_bytes, profile.name, None)
    programs = []
    for place, task in enumerate(tasks):
        client = _FIRST_CLIENT + place
        path = Plain(card, client) if settings is None else _shared_path(engine, shell, card, client, task)
        programs.append(_Program(engine, card, path, client, task, warm_up, warm_up + seconds))
        engine.start(programs[-1].run(_BEGIN_APART * place))
    engine.run()
    return [100 * program.used / seconds for program in programs]


def _shared_path(engine: Engine, shell: Shell, card: Card, client: int, task: Task) -> Path:
    quota = None if task.floor is None and task.cap is None else Cores(task.floor or 0, task.cap or Cores().cap)
    plan = TaskPlan(f"task {client - _FIRST_CLIENT + 1}", WORKLOADS["add"], core_limit=quota)
    return Shared(engine, shell, card, client, plan)


class _Program:
    """``used``: seconds of work that the card did for it in the window."""

    def __init__(
        self, engine: Engine, card: Card, path: Path, client: int, task: Task, begin: float, end: float
    ) -> None:
        self._engine = engine
        self._card = card
        self._path = path
        self._client = client
        self._task = task
        self._kernel = task.kernel_seconds
        self._piece = max(1, int(PIECE / self._kernel))
        self._begin, self._end = begin, end
        self._ended_at = 0.0  # the piece before
        self.used = 0.0

    def run(self, later: float) -> Process:
        yield later
        yield from self._path.open()
        while self._engine.now < self._end:
            yield (yield from self._burst())
            yield costs.WAKE
            yield self._task.host_ms / 1000
        self._path.close()

    def _burst(self) -> Process:
        """Submit all kernels of a burst; the result fires when the last one is done."""
        left, done = self._task.kernels, Signal()
        while left:
            yield from self._path.enter()
            launches = self._path.batch(min(self._piece, left), self._kernel)
            seconds = launches * self._kernel
            yield launches * self._path.launch_seconds
            yield from self._path.pace(seconds)
            yield from self._path.enter()
            done = self._submit(launches, seconds)
            left -= launches
        return done

    def _submit(self, launches: int, seconds: float) -> Signal:
        began = self._engine.now
        done = self._card.compute.submit(self._client, seconds)
        self._path.submitted(launches, done, seconds)
        done.then(lambda _: self._count(max(began, self._ended_at), seconds))
        return done

    def _count(self, began: float, seconds: float) -> None:
        """Of a piece at an edge of the window, the part that lies within."""
        now = self._ended_at = self._engine.now
        within = min(now, self._end) - max(began, self._begin)
        if within > 0:
            self.used += seconds * (within / (now - began))
