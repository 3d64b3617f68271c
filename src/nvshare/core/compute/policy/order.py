"""Whose slice is next, and for how long the holder of a slice goes on.

Guarantees, for groups that want the card: the one with the earliest virtual deadline among those whose lag is not
negative goes next, as in EEVDF. A holder gives way at once to a waking task that is owed a quarter of a slice, and at
the end of its slice to anyone who is owed half of one. A task that has more to do than the holder's burst has left must
be owed a whole slice in both cases. Letting short bursts go first, and bursts end, is what keeps the card busy while
others think. A client of high priority has a head start of ``LONGEST``, and goes at once when it wakes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvshare.core.compute.policy.constants import CYCLE, FOR_TURN, FOR_WAKER, GRAIN, LONGEST

NEVER = float("inf")
ROUNDING, DIGITS = 1e-9, 9  # seconds


@dataclass(frozen=True)
class Claim:
    """One client's claim to the card."""

    virtual: float  # of its group
    share: float
    left: float  # seconds that its burst is expected to go on; infinite: it never sleeps
    woke: bool = False  # it comes from a host phase and has not had the card since
    urgent: bool = False
    group: int = 0  # claims of one group do not compete

    @property
    def start(self) -> float:
        return self.virtual - (LONGEST / self.share if self.urgent else 0.0)


def slice_of(share: float, longest: float) -> float:
    """Seconds of a slice of a group with this share: each has one in a cycle."""
    return min(longest, max(GRAIN, CYCLE * share))


def next_claim(claims: Sequence[Claim], time: float, longest: float) -> int:
    """The index of the claim that goes next, the card's virtual time being ``time``. Of equals, the first."""

    def rank(claim: Claim) -> tuple[bool, float]:
        eligible = claim.start <= time + ROUNDING
        request = min(claim.left, slice_of(claim.share, longest))
        return not eligible, round(claim.start + (request / claim.share if eligible else 0.0), DIGITS)

    return min(range(len(claims)), key=lambda index: rank(claims[index]))


def goes_on(holder: Claim, since: float, rivals: Sequence[Claim], longest: float) -> float:
    """Seconds until the holder, whose slice began ``since`` seconds ago, gives way to the first of its rivals."""
    return min((_until(holder, since, rival, longest) for rival in rivals), default=NEVER)


def _until(holder: Claim, since: float, rival: Claim, longest: float) -> float:
    if rival.group == holder.group and rival.group:
        return max(0.0, slice_of(holder.share, longest) - since)
    owed = rival.share * (holder.start - rival.start)
    rate = rival.share / holder.share  # the rival is owed so much more with each second of the holder's
    if rival.urgent and rival.woke and not holder.urgent:
        return max(0.0, -owed / rate)
    whole = slice_of(rival.share, longest)
    boundary = max(0.0, slice_of(holder.share, longest) - since)
    shorter = rival.left <= holder.left
    turn = max(boundary, (whole * (FOR_TURN if shorter else 1.0) - owed) / rate)
    if rival.woke:
        return min(turn, max(GRAIN - since, 0.0, (whole * (FOR_WAKER if shorter else 1.0) - owed) / rate))
    return turn
