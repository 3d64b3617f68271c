"""The one estimator of how a client uses a card: how long its bursts are, and how long its host thinks between them.

A *burst* is GPU time between two host phases; a gap of less than ``PAUSE`` belongs to it. A *host phase* lasts from the
seen end of a burst to the next request. Time that the client spent waiting counts for neither, so both depend on the
task alone and not on its neighbours. A burst that is still running counts as at least what it has used. What was learnt
is forgotten when the client was away for long, or computes for much longer than it did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nvshare.core.compute.policy.constants import ACTIVE_FOR, BRIEF, BURSTS, LONG, OFTEN, PAUSE, THINKS

BUSY = float("inf")  # what is left of a burst that does not end


@dataclass(slots=True, eq=False)
class Rhythm:
    bursts: deque[float] = field(default_factory=lambda: deque(maxlen=BURSTS))  # seconds of GPU time
    hosts: deque[float] = field(default_factory=lambda: deque(maxlen=BURSTS))  # seconds of thinking
    running: float = 0.0  # seconds that the burst under way has used
    ended_at: float | None = None  # when the work was seen to end; None: it has not, or it goes on
    hesitated: int = 0  # bursts for which the client is given time to hesitate

    def used(self, seconds: float) -> None:
        """More of the burst was billed. A client that goes on for much longer than before has changed."""
        self.running = max(0.0, self.running + seconds)
        if self.bursts and self.running > max(BURSTS * _mean(self.bursts), LONG):
            self._forget()

    def ended(self, at: float) -> None:
        """All its work had ended at that time."""
        self.ended_at = at

    def resumed(self, now: float) -> bool:
        """The client asks again. True: it was a host phase, and a new burst begins."""
        if self.ended_at is None:
            return False
        gap, self.ended_at = now - self.ended_at, None
        if gap < PAUSE:
            self.hesitated = 2 * BURSTS
            return False
        self.hesitated = max(0, self.hesitated - 1)
        if gap > ACTIVE_FOR:
            self._forget()
        elif self.running > 0.0:
            self.bursts.append(self.running)
            self.hosts.append(gap)
        self.running = 0.0
        return True

    def _forget(self) -> None:
        self.bursts.clear()
        self.hosts.clear()

    @property
    def known(self) -> bool:
        return len(self.bursts) == BURSTS

    @property
    def burst(self) -> float:
        """Seconds of GPU time of a burst; infinite while no end of one was seen."""
        return max(_mean(self.bursts), self.running) if self.bursts else BUSY

    @property
    def want(self) -> float:
        """The part of the card that the client would use alone."""
        if not self.bursts:
            return 1.0
        return self.burst / (self.burst + _mean(self.hosts))

    @property
    def left(self) -> float:
        """Seconds that the burst under way is expected to go on. One that is much longer than those before it is
        expected to take as long again."""
        if not self.bursts:
            return BUSY
        mean = _mean(self.bursts)
        return max(mean - self.running, 0.0) if self.running < 1.25 * mean else self.running

    @property
    def thinks(self) -> bool:
        """Its bursts are short, and its host phases leave others a part of the card that is worth having."""
        return self.want < THINKS and self.burst < LONG

    @property
    def brief(self) -> bool:
        return self.known and _mean(self.bursts) < BRIEF

    @property
    def patience(self) -> float:
        """How long its slice waits for more work: two looks, where it is known that a pause will be long."""
        return 2 * OFTEN if self.known and not self.hesitated else PAUSE


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values)
