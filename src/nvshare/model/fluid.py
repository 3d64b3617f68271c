"""An engine of a card, shared as a fluid, as the simulated driver shares it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nvshare.model.engine import Engine, Signal

_NOTHING_LEFT = 1e-12  # seconds of work: rounding, not work


def _ignore() -> None:
    """For engines whose business concerns nobody else."""


class Fluid:
    """Egalitarian processor sharing. One user with work goes at full speed; k of them at efficiency / k each.

    A user's own work is done in order. Exact: between two changes everybody's speed is constant. ``on_change`` is told
    when the engine begins or ceases to have work.
    """

    def __init__(self, engine: Engine, efficiency: float, on_change: Callable[[], None] = _ignore) -> None:
        self._engine = engine
        self._efficiency = efficiency
        self._on_change = on_change
        self._pace = 1.0
        self._work: dict[int, deque[tuple[float, Signal]]] = {}  # of the users that have any: seconds left, done
        self._left: dict[int, float] = {}  # seconds left of the first piece of each
        self._since = 0.0
        self._plan = 0

    @property
    def busy(self) -> bool:
        return bool(self._work)

    def set_pace(self, pace: float) -> None:
        """From now on everything goes so many times as fast as it was said to take."""
        if pace != self._pace:
            self._advance()
            self._pace = pace
            self._schedule()

    def submit(self, user: int, seconds: float) -> Signal:
        """Work that takes so long alone; fires when it is done."""
        done = Signal()
        queue = self._work.get(user)
        if queue is not None:
            queue.append((seconds, done))
            return done
        self._advance()
        self._work[user] = deque([(seconds, done)])
        self._left[user] = seconds
        self._schedule()
        if len(self._work) == 1:
            self._on_change()
        return done

    def cancel(self, user: int) -> None:
        """The user is gone and its work with it; nobody is told that it was done."""
        if user not in self._work:
            return
        self._advance()
        del self._work[user], self._left[user]
        self._schedule()
        if not self._work:
            self._on_change()

    def _speed(self) -> float:
        users = len(self._work)
        return self._pace * (1.0 if users == 1 else self._efficiency / users)

    def _advance(self) -> None:
        elapsed = self._engine.now - self._since
        self._since = self._engine.now
        if not self._work or elapsed <= 0.0:
            return
        progress = elapsed * self._speed()
        for user in self._left:
            self._left[user] -= progress

    def _schedule(self) -> None:
        self._plan += 1
        if not self._work:
            return
        plan = self._plan
        left = max(0.0, min(self._left.values()))
        self._engine.after(left / self._speed(), lambda: self._complete(plan))

    def _complete(self, plan: int) -> None:
        if plan != self._plan:
            return  # overtaken by a change
        self._advance()
        first = min(self._left.values())
        finished: list[Signal] = []
        for user in [user for user, left in self._left.items() if left <= first + _NOTHING_LEFT]:
            queue = self._work[user]
            finished.append(queue.popleft()[1])
            if queue:
                self._left[user] = queue[0][0]
            else:
                del self._work[user], self._left[user]
        self._schedule()
        for done in finished:
            done.fire()
        if not self._work:
            self._on_change()
