"""Capacity planning of a card: how many bytes all clients together may have allocated on it.

Guarantees: what unmanaged processes hold is never given to clients. A declared size is taken at its word where there
are no such processes, and never exceeds what they and the contexts leave. Without a declared size the reserve and every
measured context come off the card, so that what is admitted also fits physically. Of a declared size that holds the
contexts too they come off as well.
"""

from __future__ import annotations

from typing import NamedTuple

MATERIAL_SHARE = 512  # clients hear of a change of an undeclared card over 1/512 of it: less than any context


class Size(NamedTuple):
    """Of a card, in bytes."""

    total: int
    declared: int | None = None
    inside: bool = False  # the declared size holds the contexts too
    reserve_percent: int = 0  # kept free, where no size is declared

    def ceiling(self, unmanaged: int) -> int:
        """What contexts and memory on the card may take together."""
        if self.declared is None:
            return self.total * (100 - self.reserve_percent) // 100 - unmanaged
        left = self.total - unmanaged
        return min(self.declared, left) if self.inside else left


def capacity(size: Size, contexts: int, unmanaged: int = 0) -> int:
    left = max(0, size.ceiling(unmanaged) - contexts)
    if size.declared is None or size.inside:
        return left
    return min(size.declared, left) if unmanaged else size.declared


def is_material(old: int, new: int, total: int, declared: int | None) -> bool:
    """Whether clients must be told: always for a declared card, for a computed one only when it matters."""
    return old != new if declared is not None else abs(new - old) * MATERIAL_SHARE > total
