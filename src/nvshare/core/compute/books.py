"""Weighted fair queueing below a token bucket: the books of one group on one card.

*Virtual time* grows by used / share, and the group with the lowest goes next. So groups that always ask get time in
proportion to their shares, within one slice. The card's clock is the virtual time at which the latest slice began. A
group that comes back from idleness begins there, or up to one slice earlier if it was behind, because its host may only
have hesitated. More of its idle time is not owed to it, and what it had before is not held against it. What is owed is
made good by slices that are longer or shorter than usual (``evened``).

*Credit* is the bucket. It fills with time by the quota, up to a bound, and falls by what was used. A group with too
little for a slice waits, unless the card would idle (``early_length``). So over any time t a group gets at most
quota * t + bound + one slice. Debt, from kernels that ran on, is bounded: a group waits at most ``DEBT_WAIT`` for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvshare.core.compute.policy.shares import LONGEST, slice_length

BOUND_WAIT = 0.5  # seconds without use after which credit grows no further
DEBT_WAIT = 10.0  # seconds after which the largest debt is paid
IDLE_AFTER = 0.02  # seconds without slice and request after which a group was idle
HESITATES = 0.1  # seconds without slice and request in which the host of a group may only be late
FORGOTTEN_AFTER = 1.0  # seconds without slice and request after which virtual time begins anew
PROGRESS = 0.25  # seconds in which every group is to have had a slice
ROUNDING = 1e-9  # seconds
EVENED, EVENED_MOST = 0.7, 0.35  # of what a group is owed when its slice begins; of a slice


@dataclass(slots=True, eq=False)
class Book:
    quota: float  # part of the card's time, 0 to 1; 1: no cap
    virtual: float = 0.0
    credit: float = 0.0
    credited_at: float = 0.0
    reach: float = BOUND_WAIT  # seconds of quota that credit may hold; more where memory takes turns
    share: float = 1.0  # the quota, scaled to what the active groups of the card leave
    length: float = 0.0  # seconds of a slice, by that share
    engaged: int = 0  # slices and requests of its processes
    seen_at: float = float("-inf")  # when the last of them ended
    used: float = 0.0  # seconds billed in all
    allowed: float = 0.0  # seconds that quotas allowed in all
    logged_at: float = float("-inf")  # when its throttling was last logged
    logged_used: float = 0.0  # the figures then
    logged_allowed: float = 0.0
    debt_logged_at: float = float("-inf")

    @property
    def capped(self) -> bool:
        return self.quota < 1.0

    @property
    def step(self) -> float:
        """Seconds of a slice that are given at a time."""
        return min(LONGEST, self.length)

    def restart(self, quota: float, now: float, clock: float) -> None:
        """Take a new quota. Of what the group is owed, and of what it owes, at most one slice is kept."""
        self.accrue(now)
        before = self.length
        self.quota = self.share = quota
        self.length = slice_length(quota, self.capped)
        debt = min(max(before, self.length), DEBT_WAIT * quota)
        self.credit = max(-debt, min(self.credit, self.length * (1.0 - quota)))
        slice = self.length / self.share
        self.virtual = max(clock - slice, min(self.virtual, clock + slice))

    def set_share(self, share: float, quotas: bool) -> None:
        self.share, self.length = share, slice_length(share, quotas)

    def set_reach(self, reach: float, now: float) -> None:
        """Credit may grow to this many seconds of quota, what is not booked yet included."""
        self.reach = reach
        self.accrue(now)

    def accrue(self, now: float) -> None:
        """Book what the quota earned until now."""
        earned = (now - self.credited_at) * self.quota
        self.allowed += earned
        self.credit = min(self.credit + earned, self.reach * self.quota)
        self.credited_at = now

    def credit_at(self, now: float) -> float:
        """The credit at this moment, with what was earned since it was last booked."""
        return min(self.credit + (now - self.credited_at) * self.quota, self.reach * self.quota)

    def bill(self, seconds: float, weighed: float, now: float) -> None:
        """Charge use of the card. ``weighed``: the part that counts for whose slice is next. Both are negative where
        more was billed before than was used."""
        self.accrue(now)
        self.used += seconds
        self.virtual += weighed / self.share
        self.credit = max(min(self.credit - seconds, self.reach * self.quota), -DEBT_WAIT * self.quota)

    def arrive(self, now: float, clock: float) -> None:
        """A client of the group asks. The group was not idle while another of its clients asked, or had a slice whose
        last work may still run: what it is owed stays owed."""
        idle = 0.0 if self.engaged else now - self.seen_at
        if idle > FORGOTTEN_AFTER:
            self.virtual = clock
        elif idle > IDLE_AFTER:
            self.virtual = max(self.virtual, clock - self.length / self.share)
        self.engaged += 1

    def leave(self, now: float) -> None:
        """A request was answered or taken back, or a slice is over."""
        self.engaged -= 1
        self.seen_at = now

    def ready_at(self, now: float) -> float:
        """When there is credit for a slice. A slice earns some of its credit itself."""
        if self.quota >= 1.0:
            return now
        missing = self.length * (1.0 - self.quota) - self.credit_at(now)
        return now if missing <= ROUNDING else now + missing / self.quota

    def early_length(self, now: float) -> float:
        """How long a slice may be that begins before there is credit for a whole one: so long that the next one is not
        too late. Zero while there is debt, so a group is never early twice in a row."""
        credit, whole = self.credit_at(now), self.length * (1.0 - self.quota)
        ahead = PROGRESS * self.quota - whole
        return min(self.length, (credit + ahead) / (1.0 - self.quota)) if self.capped and credit >= 0.0 else 0.0

    def hesitates(self, now: float) -> bool:
        """The group had a slice a moment ago and does not ask."""
        return not self.engaged and now < self.seen_at + HESITATES

    def length_left(self, now: float, unbilled: float) -> float:
        """How much longer a slice may be by its credit, less ``unbilled`` seconds of use."""
        return (self.credit_at(now) - unbilled) / (1.0 - self.quota) if self.capped else float("inf")


def evened(book: Book, rivals: Iterable[Book]) -> float:
    """The length of a group's slice among rivals that want slices as well.

    Slice length = nominal + ``EVENED`` × what the group is behind its part, within ± ``EVENED_MOST`` of a slice. Half a
    slice behind is normal at the start of one.
    """
    among = {id(each): each for each in (book, *rivals)}.values()
    total = sum(each.share for each in among)
    mean = sum(each.share * each.virtual for each in among) / total
    usual = book.length * (1.0 - book.share / total) / 2
    owed = book.share * (mean - book.virtual) - usual
    most = EVENED_MOST * book.length
    return book.length + max(-most, min(EVENED * owed, most)) if len(among) > 1 else book.length
