"""Proportional shares: what quotas come to when they add up to more than the card, and how long turns are.

Guarantees: scaled shares keep the quotas' proportions and add up to at most one. A cycle in which everybody has one
turn is about ``CYCLE`` long, so that each makes progress in every quarter of a second.
"""

from __future__ import annotations

CYCLE = 0.2  # seconds
SHORTEST, LONGEST = 0.002, 0.05  # seconds of one turn


def scaled(quota: float, total: float) -> float:
    """The share of one group, where the quotas of all active groups add up to ``total``."""
    return quota / total if total > 1.0 else quota


def turn_length(share: float) -> float:
    return max(SHORTEST, min(LONGEST, CYCLE * share))
