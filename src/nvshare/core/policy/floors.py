"""First come, first guaranteed: which floors are in force on one card.

Guarantees: floors in force add up to at most 100. A floor in force stays in force until its group lowers it or leaves
the card. The others come into force in the order of arrival, each as soon as the whole of it fits. A floor that does
not fit keeps no later and smaller one waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WHOLE = 100  # percent of a card's time


@dataclass(frozen=True)
class Claim:
    """One group on a card."""

    group: str
    floor: int  # percent that it asks for
    held: int = 0  # percent in force so far


def in_force(claims: Sequence[Claim]) -> dict[str, int]:
    """The floor in force of each group, from claims in the order of arrival."""
    floors = {claim.group: min(claim.held, claim.floor) for claim in claims}
    left = WHOLE - sum(floors.values())
    for claim in claims:
        more = claim.floor - floors[claim.group]
        if more <= left:
            floors[claim.group] = claim.floor
            left -= more
    return floors


def room(floors: Mapping[str, int], group: str) -> int:
    """The largest floor that this group can have beside the others' floors in force."""
    return WHOLE - sum(floor for name, floor in floors.items() if name != group)
