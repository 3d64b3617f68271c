"""The account of one group on one card: its share and lag, its bucket, and what it used."""

from __future__ import annotations

from dataclasses import dataclass, field

from nvshare.core.compute.policy.bucket import Bucket
from nvshare.core.compute.policy.constants import CYCLE, ENDS_BY, LONGEST
from nvshare.core.compute.policy.order import slice_of


@dataclass(slots=True, eq=False)
class Account:
    number: int  # of the group among those of the card
    floor: float = 0.0  # part of the card's time
    share: float = 1.0
    virtual: float = 0.0  # seconds used / share, since some beginning
    bucket: Bucket = field(default_factory=Bucket)
    engaged: int = 0  # slices and requests of its processes
    left_at: float = float("-inf")  # when the last of them ended
    waits_until: float = float("-inf")  # for what others missed while they waited for a client of it in vain
    used: float = 0.0  # seconds billed in all
    logged_at: float = float("-inf")  # when its throttling was last logged
    logged_used: float = 0.0  # the figures then
    logged_filled: float = 0.0
    debt_logged_at: float = float("-inf")

    @property
    def capped(self) -> bool:
        return self.bucket.capped

    def charge(self, seconds: float, now: float) -> None:
        """Charge use of the card; negative where more was billed before than was used."""
        self.used += seconds
        self.virtual += seconds / self.share
        self.bucket.draw(seconds, now)

    def repay(self, withheld: float, now: float) -> None:
        """Others waited so long for a slice that did not end: they have the card for as long as shares say first."""
        self.waits_until = max(self.waits_until, now) + min(withheld * (1.0 / self.share - 1.0), ENDS_BY)

    @property
    def piece(self) -> float:
        """Seconds of credit that are saved up before a slice begins: changing tasks for less is not worth it."""
        return slice_of(self.bucket.cap, LONGEST) / 2

    def set_depth(self, burst: float, reach: float, now: float) -> None:
        """Let the bucket hold a burst of this length, and ``reach`` seconds of its cap where memory takes turns."""
        cap = self.bucket.cap
        self.bucket.fill(now)
        self.bucket.depth = max(min(burst, LONGEST) * (1.0 - cap) + CYCLE * cap / 2, cap * reach)
        self.bucket.level = min(self.bucket.level, self.bucket.depth)
