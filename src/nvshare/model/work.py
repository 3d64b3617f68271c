"""A modelled client's work on its card: what is in flight, and for how long the card was at it."""

from __future__ import annotations

from nvshare.model.engine import Engine, Signal


class Work:
    """Pieces of work, submitted in order. Times are seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.pieces = 0
        self.in_flight = 0.0
        self.waiting = 0  # submitters that wait until less is in flight
        self.idle_since = 0.0
        self.begun = 0.0  # when the first submission of the slice was made, 0 for none yet
        self._oldest_since = 0.0  # when the card began with the oldest piece in flight
        self._eased = Signal()
        self._drained = Signal()
        self._busy_since: float | None = None
        self._occupied = 0.0
        self._at_work = 0.0  # as events show it: from a piece's begin to its end, whoever else is on the card
        self._at_work_since = 0.0

    def begin(self) -> None:
        """A slice begins; what is in flight becomes part of it."""
        self.begun = self._engine.now if self.pieces else 0.0
        self._at_work, self._at_work_since = 0.0, self._engine.now

    def submitted(self, seconds: float) -> None:
        now = self._engine.now
        self.begun = self.begun or now
        if not self.pieces:
            self._oldest_since = self._at_work_since = self._busy_since = now
            self._drained = Signal()
        self.pieces += 1
        self.in_flight += seconds

    def finished(self, seconds: float) -> None:
        now = self._engine.now
        self.pieces -= 1
        self._oldest_since = now
        self.in_flight = self.in_flight - seconds if self.pieces else 0.0
        if not self.pieces:
            self.idle_since = now
            self._at_work += now - self._at_work_since
            self._occupied += now - (now if self._busy_since is None else self._busy_since)
            self._busy_since = None
            self._drained.fire()

    def ease(self) -> None:
        eased, self._eased = self._eased, Signal()
        eased.fire()

    def eased(self) -> Signal:
        """Fires when less is in flight."""
        return self._eased

    def drained(self) -> Signal:
        """Fires when nothing is in flight."""
        return self._drained

    def pending(self) -> float:
        """What is in flight, without what the card has done of the oldest piece."""
        return max(1e-6, self.in_flight - (self._engine.now - self._oldest_since))

    def at_work(self) -> float:
        """In this slice."""
        return self._at_work + (self._engine.now - self._at_work_since if self.pieces else 0.0)

    def occupied(self) -> float:
        """In all."""
        return self._occupied + (0.0 if self._busy_since is None else self._engine.now - self._busy_since)
