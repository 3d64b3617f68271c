"""What quotas promise: shares of one card, and what they add up to over time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Quota = int | None  # percent of one GPU; None: no limit
WHOLE = 100


def percent(quota: Quota) -> int:
    return WHOLE if quota is None else quota


def promised(quotas: Sequence[Quota]) -> list[float]:
    """The share of each busy task, 0 to 1: its quota, scaled in proportion where all add up to more than the card."""
    total = sum(map(percent, quotas))
    return [percent(quota) / max(total, WHOLE) for quota in quotas]


@dataclass(frozen=True)
class Change:
    """From ``at`` on the task ``who`` has this quota."""

    at: float
    who: int
    quota: Quota


def promised_over(quotas: Sequence[Quota], changes: Sequence[Change], begin: float, end: float) -> list[float]:
    """The mean share of each task over a window in which quotas change; ``changes`` in order of time."""
    now = list(quotas)
    shares = [0.0] * len(now)
    since = begin
    for change in changes:
        until = min(max(change.at, begin), end)
        _add(shares, promised(now), until - since)
        since = until
        now[change.who] = change.quota
    _add(shares, promised(now), end - since)
    return [share / (end - begin) for share in shares]


def _add(sums: list[float], shares: Sequence[float], seconds: float) -> None:
    for who, share in enumerate(shares):
        sums[who] += share * seconds
