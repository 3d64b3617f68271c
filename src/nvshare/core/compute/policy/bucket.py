"""The token bucket that keeps a cap.

Guarantees: over any ``t`` seconds a group uses at most ``cap * t`` plus the depth of its bucket, plus work that was in
flight when the bucket was empty. Such debt is paid back before the next slice. A burst of the group's own size goes
through in one piece once the bucket holds enough for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvshare.core.compute.policy.constants import ENDS_BY, GRAIN

ROUNDING = 1e-9


@dataclass(slots=True, eq=False)
class Bucket:
    cap: float = 1.0  # part of the card's time; 1: no cap
    depth: float = 0.0  # seconds
    level: float = 0.0  # seconds; negative: debt
    filled_at: float = 0.0
    filled: float = 0.0  # seconds that the cap allowed in all

    @property
    def capped(self) -> bool:
        return self.cap < 1.0

    def fill(self, now: float) -> None:
        """Add what the cap earned until now."""
        earned = (now - self.filled_at) * self.cap
        self.filled_at = now
        self.filled += earned
        self.level = min(self.level + earned, max(self.depth, self.level))

    def draw(self, seconds: float, now: float) -> None:
        """Take what was used since it was filled, beside what was earned meanwhile: a full bucket earns while it is
        used. Negative where more was taken before than was used."""
        earned = (now - self.filled_at) * self.cap
        self.filled_at = now
        self.filled += earned
        self.level = max(min(self.level + earned - seconds, self.depth), -ENDS_BY * self.cap)

    def at(self, now: float) -> float:
        """The level at this moment."""
        return min(self.level + (now - self.filled_at) * self.cap, max(self.depth, self.level))

    def ready_at(self, wanted: float, now: float) -> float:
        """When a slice of ``wanted`` seconds may begin; it earns a part of what it uses itself."""
        if not self.capped:
            return now
        missing = min(wanted * (1.0 - self.cap), self.depth) - self.at(now)
        return now if missing <= ROUNDING else now + missing / self.cap

    def lasts(self, now: float, unbilled: float) -> float:
        """For how many more seconds the holder of a slice may go on, ``unbilled`` seconds of which it used already."""
        return (self.at(now) - unbilled) / (1.0 - self.cap) if self.capped else float("inf")

    def restart(self, cap: float, now: float) -> None:
        """Take a new cap. A debt of more than the shortest slice is paid at the new rate."""
        self.fill(now)
        if not self.capped:
            self.level = max(self.level, GRAIN)
        self.cap = cap
        self.level = max(self.level, -ENDS_BY * cap)
