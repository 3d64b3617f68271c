"""One alarm per client, without a clock: which alarm is due is asked, never awaited."""

from __future__ import annotations

import heapq


class Alarms:
    """A heap with lazy deletion: setting and clearing cost O(log n) amortised, however often an alarm is moved."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}  # client -> when its alarm is due
        self._queued: dict[int, float] = {}  # client -> its earliest entry in the heap
        self._heap: list[tuple[float, int]] = []

    def set(self, client: int, at: float | None) -> None:
        if at is None:
            self._at.pop(client, None)
            return
        self._at[client] = at
        queued = self._queued.get(client)
        if queued is None or at < queued:
            self._queued[client] = at
            heapq.heappush(self._heap, (at, client))

    def next(self) -> float | None:
        """When the earliest alarm is due."""
        heap = self._heap
        while heap:
            at, client = heap[0]
            if self._at.get(client) == at:
                return at
            heapq.heappop(heap)
            if self._queued.get(client) == at:
                del self._queued[client]
                moved_to = self._at.get(client)
                if moved_to is not None:
                    self._queued[client] = moved_to
                    heapq.heappush(heap, (moved_to, client))
        return None

    def pop_due(self, now: float) -> int | None:
        """A client whose alarm is due, earliest first; its alarm is cleared."""
        at = self.next()
        if at is None or at > now:
            return None
        client = self._heap[0][1]
        del self._at[client]
        return client

    def clients(self) -> frozenset[int]:
        return frozenset(self._at)
