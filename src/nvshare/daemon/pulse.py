"""How the event loop keeps up: how many events the core handled, and how late timers fired."""

from __future__ import annotations

import bisect
from typing import Any

BOUNDS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)  # seconds


class Pulse:
    def __init__(self) -> None:
        self.events = 0
        self._counts = [0] * (len(BOUNDS) + 1)
        self._late = 0.0

    def fired(self, late: float) -> None:
        """A timer fired so many seconds after it was due."""
        late = max(0.0, late)
        self._counts[bisect.bisect_left(BOUNDS, late)] += 1
        self._late += late

    def to_dict(self) -> dict[str, Any]:
        """``counts`` has one entry per bound, for timers at most so late and later than the bound before, and one for
        all later ones."""
        return {
            "events": self.events,
            "late_bounds_s": list(BOUNDS),
            "late_counts": list(self._counts),
            "late_s": round(self._late, 6),
        }
