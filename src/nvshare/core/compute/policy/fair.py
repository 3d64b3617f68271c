"""Weighted max-min fairness: what each of several groups should get of one card.

Guarantees: every group gets its floor, or all it can use if that is less. The rest is shared in proportion to weights,
and nobody gets more than it can use. What one cannot use the others share. Shares add up to at most 1, where floors do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 1e-12


@dataclass(frozen=True)
class Demand:
    """What one group can use of a card, and what it is promised; parts of the card's time, from 0 to 1."""

    want: float = 1.0  # what it would use alone, without a cap
    floor: float = 0.0
    cap: float = 1.0

    @property
    def most(self) -> float:
        return min(self.want, self.cap)

    @property
    def weight(self) -> float:
        """Its floor; without one its cap, which is the whole card where there is none."""
        return self.floor or self.cap


def fair(demands: Sequence[Demand]) -> list[float]:
    """The share of each, in the same order."""
    shares = [min(demand.most, demand.floor) for demand in demands]
    left = 1.0 - sum(shares)
    open_ = [index for index, demand in enumerate(demands) if shares[index] < demand.most]
    while open_ and left > ROUNDING:
        level = left / sum(demands[index].weight for index in open_)
        filled = [
            index for index in open_ if demands[index].most - shares[index] <= level * demands[index].weight + ROUNDING
        ]
        for index in filled or open_:
            demand = demands[index]
            more = demand.most - shares[index] if filled else level * demand.weight
            shares[index] += more
            left -= more
        if not filled:
            break
        open_ = [index for index in open_ if index not in filled]
    return shares
