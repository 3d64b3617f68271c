"""Which clients take compute slices, decided by measurement with hysteresis.

Guarantees: where fewer than two clients keep a card busy, a client without a quota takes no slices. A client's kind
changes only when what was measured in its slices alone is clearly beyond the other bound.
"""

from __future__ import annotations

import enum

from nvshare.core.settings import Mode

ACTIVE_FOR = 2.0  # seconds after its last use of the card in which a client counts as active
LAUNCH_BOUND_BELOW, BUSY_ABOVE = 0.60, 0.75  # parts of the time used alone in which the card was at work
JUDGED_FROM = 0.002  # seconds of use; a shorter slice is no measurement
WEIGHT, WEIGHED = 0.5, 0.05  # of the latest slice, if it was that many seconds of use; of a shorter one, in proportion
EVIDENCE = 0.06  # seconds of use, in slices in a row, that make a client launch-bound
BACKLOG = 0.25  # seconds for which work that was submitted freely may run on beside slices, where no slice ended it
LOOK_AGAIN, LOOK_AGAIN_MAX = 4.0, 60.0  # seconds until a launch-bound client is measured again
SEEN_OVER = 1.0  # seconds over which a client that runs freely is seen to use little


class Kind(enum.Enum):
    """How a client uses the card in slices of its own."""

    UNKNOWN = "unknown"  # counts as busy
    BUSY = "busy"
    LAUNCH_BOUND = "launch-bound"  # the card idles between its kernels


def blended(ratio: float | None, busy: float, used: float) -> float:
    """The measured ratio after one more slice alone. A few milliseconds, in which a busy client looks at its results
    or loads a kernel, say little about the rest of its time."""
    latest = min(1.0, busy / used)
    return latest if ratio is None else ratio + (latest - ratio) * WEIGHT * min(1.0, used / WEIGHED)


def judged(kind: Kind, ratio: float) -> Kind:
    """What one more slice alone makes of a client."""
    if ratio < LAUNCH_BOUND_BELOW or (kind is Kind.LAUNCH_BOUND and ratio <= BUSY_ABOVE):
        return Kind.LAUNCH_BOUND
    return Kind.BUSY


def contended(mode: Mode, busy: int, capped: bool) -> bool:
    """Whether clients without quotas take slices too. ``capped``: a client that keeps the card busy has a quota."""
    return busy >= 2 and (mode is Mode.AUTO or capped)
