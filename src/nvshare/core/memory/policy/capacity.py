"""Capacity planning of a card: how many bytes all clients together may have allocated on it.

Guarantees: what unmanaged processes hold is never given to clients. A declared size is taken at its word where there
are no such processes, and never exceeds what they and the contexts leave. Without a declared size the reserve and every
measured context come off the card, so that what is admitted also fits physically.
"""

from __future__ import annotations

MATERIAL_SHARE = 512  # clients hear of a change of an undeclared card over 1/512 of it: less than any context


def capacity(total: int, declared: int | None, reserve_percent: int, contexts: int, unmanaged: int = 0) -> int:
    if declared is None:
        return max(0, total * (100 - reserve_percent) // 100 - contexts - unmanaged)
    return min(declared, max(0, total - contexts - unmanaged)) if unmanaged else declared


def is_material(old: int, new: int, total: int, declared: int | None) -> bool:
    """Whether clients must be told: always for a declared card, for a computed one only when it matters."""
    return old != new if declared is not None else abs(new - old) * MATERIAL_SHARE > total
