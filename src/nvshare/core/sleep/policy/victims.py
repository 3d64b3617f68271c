"""Who sleeps where contexts are in the way of memory whose turn has come.

Guarantees: nobody is chosen for a card where all of them together do not make enough room. The client with the
furthest next turn sleeps first: one that does not wait before one that waits, the longest idle before others, a later
ticket before an earlier one. Of equals the one with the largest context sleeps. Nobody sleeps whom the others make
unnecessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A client that can sleep, and has no turn now."""

    frees: Mapping[str, int]  # bytes of its context, by card
    ticket: int = 0  # 0: it does not wait
    active_at: float = 0.0  # when it last did something
    leaving: bool = False  # it was chosen before, and goes on between equals

    @property
    def nearness(self) -> tuple[bool, int, float, int, bool]:
        """The less, the further its next turn."""
        idle = self.ticket == 0
        return not idle, -self.ticket, self.active_at if idle else 0.0, -sum(self.frees.values()), not self.leaving


def victims(candidates: Sequence[Candidate], lacking: Mapping[str, int]) -> list[int]:
    """Indices of those who are to sleep. ``lacking``: bytes by card."""
    most = {card: sum(one.frees.get(card, 0) for one in candidates) for card in lacking}
    lack = {card: size for card, size in lacking.items() if 0 < size <= most[card]}
    chosen: list[int] = []
    for index in sorted(range(len(candidates)), key=lambda index: candidates[index].nearness):
        if any(lack[card] > 0 for card in lack if candidates[index].frees.get(card)):
            chosen.append(index)
            for card in lack:
                lack[card] -= candidates[index].frees.get(card, 0)
    for index in reversed(chosen.copy()):
        frees = candidates[index].frees
        if all(lack[card] + frees.get(card, 0) <= 0 for card in lack):
            chosen.remove(index)
            for card in lack:
                lack[card] += frees.get(card, 0)
    return chosen
