"""Which clients take slices, decided by measurement with hysteresis.

Guarantees: where fewer than two clients keep a card busy, a client without a cap takes no slices. A client's kind
changes only when what was measured in its slices alone is clearly beyond the other bound.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvshare.core.compute.policy.constants import BUSY_ABOVE, EVIDENCE, LAUNCH_BOUND_BELOW
from nvshare.core.settings import Mode


class Kind(enum.Enum):
    """How a client uses the card in slices of its own."""

    UNKNOWN = "unknown"  # counts as busy
    BUSY = "busy"
    LAUNCH_BOUND = "launch-bound"  # the card idles between its kernels
    BRIEF = "brief"  # its bursts are so short that slices would cost more than they give

    @property
    def free(self) -> bool:
        """Better left to run beside others."""
        return self is Kind.LAUNCH_BOUND or self is Kind.BRIEF


@dataclass(slots=True, eq=False)
class Evidence:
    """For how long a client used the card in slices of its own, and for how much of that the card was at work."""

    used: float = 0.0
    busy: float = 0.0

    def add(self, used: float, busy: float) -> None:
        self.used += used
        self.busy += min(used, busy)

    def verdict(self, before: Kind) -> Kind | None:
        """None while there is too little evidence. What led to a verdict counts half in the next one."""
        if self.used < EVIDENCE:
            return None
        ratio = self.busy / self.used
        self.used, self.busy = self.used / 2, self.busy / 2
        if ratio < LAUNCH_BOUND_BELOW or (before is Kind.LAUNCH_BOUND and ratio <= BUSY_ABOVE):
            return Kind.LAUNCH_BOUND
        return Kind.BUSY


def contended(mode: Mode, busy: int, promised: bool) -> bool:
    """Whether clients without caps take slices too. ``promised``: a client that keeps the card busy has a quota."""
    return busy >= 2 and (mode is Mode.AUTO or promised)
