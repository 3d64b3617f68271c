"""What tasks that compute and think could get of one card: the yardstick of compute sharing.

It depends on the tasks alone, never on how the scheduler decides. ``fair``: each task gets its floor, and the rest is
shared by weighted max-min up to what each can use. ``attainable``: of that, what an ideal preemptive scheduler
delivers. It runs the task with the least use of its fair share, switches at no cost once another task is behind by some
milliseconds, and forgets lag beyond a limit. Each host phase is a little longer, for seeing the end of a burst and
coming back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvshare.bench.fairness.rows import Yardstick
from nvshare.bench.fairness.tasks import Task
from nvshare.core.compute.policy.fair import Demand
from nvshare.core.compute.policy.fair import fair as max_min

STEP = 0.5  # all times are milliseconds of the card
LAG = 100.0  # that a task keeps through its host phase, at most
BEHIND = 10.0  # by which another task must be behind to run instead
WOKEN = 5.0  # the same where it just came back from its host phase
EXTRA = 1.5  # by which each host phase is longer
BEGINS_APART = 7.0
LENGTH = 20_000.0  # of the ideal run, of which the first part does not count
WARM_UP = 2_000.0
BURST = 50.0  # a capped task may use its cap of so much at once after a rest, or one burst


def measure(tasks: Sequence[Task]) -> Yardstick:
    shares = fair(tasks)
    ideal = _Ideal(tasks, shares).run()
    return Yardstick(shares, [min(due, could) for due, could in zip(shares, ideal, strict=True)])


def fair(tasks: Sequence[Task]) -> list[float]:
    """The fair share of each task in percent."""
    demands = [Demand(task.want / 100, (task.floor or 0) / 100, _cap(task)) for task in tasks]
    return [100 * share for share in max_min(demands)]


def _cap(task: Task) -> float:
    return 1.0 if task.cap is None else task.cap / 100


@dataclass(slots=True, eq=False)
class _State:
    """A task in the ideal run. ``used`` grows by what the task runs over its share, so that equal values are fair."""

    number: int
    burst: float
    host: float
    share: float  # part of the card
    cap: float
    left: float  # of its burst
    wakes: float
    used: float = 0.0
    budget: float = 0.0  # that its cap allows it now
    delivered: float = 0.0
    thinks: bool = False
    just_woken: bool = False

    @property
    def allowed(self) -> bool:
        return self.cap >= 1.0 or self.budget >= STEP

    def refill(self, passed: float) -> None:
        self.budget = min(max(self.burst, BURST * self.cap), self.budget + passed * self.cap)


class _Ideal:
    """A card that switches at no cost. A task without any share never runs."""

    def __init__(self, tasks: Sequence[Task], shares: Sequence[float]) -> None:
        self._tasks = [
            _State(place, task.gpu_ms, task.host_ms, share / 100, _cap(task), task.gpu_ms, BEGINS_APART * place)
            for place, (task, share) in enumerate(zip(tasks, shares, strict=True))
        ]
        self._sharing = [task for task in self._tasks if task.share > 0]
        self._current: _State | None = None
        self._now = 0.0

    def run(self) -> list[float]:
        """Percent of the card that each task gets."""
        while self._now < LENGTH:
            ready = [task for task in self._sharing if task.wakes <= self._now]
            for task in ready:
                if task.thinks:
                    _wake(task, ready)
            self._choose([task for task in ready if task.allowed])
            passed = STEP if self._current is None else self._step(self._current)
            for task in self._sharing:
                task.refill(passed)
            self._now += passed
        return [100 * task.delivered / (LENGTH - WARM_UP) for task in self._tasks]

    def _choose(self, able: list[_State]) -> None:
        if not able:
            self._current = None
            return
        best = min(able, key=lambda task: (task.used, task.number))
        current = self._current
        if current is None or current not in able:
            self._current = best
        elif best is not current:
            behind = (current.used - best.used) * best.share
            if behind > (WOKEN if best.just_woken else BEHIND):
                self._current = best

    def _step(self, task: _State) -> float:
        passed = min(STEP, task.left)
        task.just_woken = False
        task.left -= passed
        task.used += passed / task.share
        task.budget -= passed
        if self._now >= WARM_UP:
            task.delivered += passed
        if task.left <= 1e-9:
            task.left = task.burst
            if task.host > 0:
                task.wakes, task.thinks = self._now + passed + task.host + EXTRA, True
                self._current = None
        return passed


def _wake(task: _State, ready: list[_State]) -> None:
    """Back from its host phase, it is behind those that are there by a limit at most."""
    task.thinks, task.just_woken = False, True
    least = min((other.used for other in ready if other is not task and not other.thinks), default=None)
    if least is not None:
        task.used = max(task.used, least - LAG / task.share)
