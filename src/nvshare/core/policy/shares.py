"""Proportional shares: what quotas come to when they add up to more than the card, and how long turns are.

Guarantees: scaled shares keep the quotas' proportions and add up to at most one. A cycle in which everybody has one
turn is ``CYCLE`` long, longer where many have small shares, but not than ``LONG_CYCLE``: each makes progress in every
quarter of a second. Turns are as short as they can be at little loss, because what a task has got over some seconds is
as even as its turns are short.
"""

from __future__ import annotations

CYCLE, LONG_CYCLE = 0.12, 0.2  # seconds
SHORTEST, SHORT, LONGEST = 0.002, 0.02, 0.05  # seconds of one turn; short ones lose more


def scaled(quota: float, total: float) -> float:
    """The share of one group, where the quotas of all active groups add up to ``total``."""
    return quota / total if total > 1.0 else quota


def turn_length(share: float) -> float:
    return min(LONGEST, max(SHORTEST, CYCLE * share, min(SHORT, LONG_CYCLE * share)))
