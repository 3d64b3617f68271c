"""One alarm per owner (a client, a card), without a clock: which alarm is due is asked, never awaited."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Key = TypeVar("Key", int, str)


class Alarms(Generic[Key]):
    """A heap with lazy deletion: setting and clearing cost O(log n) amortised, however often an alarm is moved."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}  # owner -> when its alarm is due
        self._queued: dict[Key, float] = {}  # owner -> its earliest entry in the heap
        self._heap: list[tuple[float, Key]] = []

    def set(self, owner: Key, at: float | None) -> None:
        if at is None:
            self._at.pop(owner, None)
            return
        self._at[owner] = at
        queued = self._queued.get(owner)
        if queued is None or at < queued:
            self._queued[owner] = at
            heapq.heappush(self._heap, (at, owner))

    def next(self) -> float | None:
        """When the earliest alarm is due."""
        heap = self._heap
        while heap:
            at, owner = heap[0]
            if self._at.get(owner) == at:
                return at
            heapq.heappop(heap)
            if self._queued.get(owner) == at:
                del self._queued[owner]
                moved_to = self._at.get(owner)
                if moved_to is not None:
                    self._queued[owner] = moved_to
                    heapq.heappush(heap, (moved_to, owner))
        return None

    def pop_due(self, now: float) -> Key | None:
        """An owner whose alarm is due, earliest first; its alarm is cleared."""
        at = self.next()
        if at is None or at > now:
            return None
        owner = self._heap[0][1]
        del self._at[owner]
        return owner

    def owners(self) -> frozenset[Key]:
        return frozenset(self._at)
