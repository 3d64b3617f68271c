"""Proportional shares: what quotas come to when they add up to more than the card, and how long slices are.

Guarantees: scaled shares keep the quotas' proportions and add up to at most one. A cycle, in which every client has one
slice, is ``CYCLE`` long, or ``QUOTA_CYCLE`` where there are quotas. It is longer where many have small shares, but at
most ``LONG_CYCLE``: each client makes progress in every quarter of a second.

Each change of slices loses about half a millisecond of the card. Equal tasks are as even over some seconds as their
slices are short, so without quotas no slice is longer than ``LONGEST``. With quotas a slice lasts for its whole part of
the cycle, because time lost between slices is missing from every quota. The scheduler gives ``LONGEST`` of it at a
time, so that a change takes effect soon.
"""

from __future__ import annotations

CYCLE, QUOTA_CYCLE, LONG_CYCLE = 0.12, 0.18, 0.2  # seconds
SHORTEST, SHORT, LONGEST = 0.002, 0.02, 0.05  # seconds of one slice; short ones lose more


def scaled(quota: float, total: float) -> float:
    """The share of one group, where the quotas of all active groups add up to ``total``."""
    return quota / total if total > 1.0 else quota


def slice_length(share: float, quotas: bool) -> float:
    """Seconds of a slice of a group with this share. ``quotas``: some group on the card has a quota."""
    part = (QUOTA_CYCLE if quotas else CYCLE) * share
    length = max(SHORTEST, part, min(SHORT, LONG_CYCLE * share))
    return length if quotas else min(LONGEST, length)
