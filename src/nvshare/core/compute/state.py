"""What the scheduler knows about compute: each client's slice on each card, and each group's account there.

Plain data beside the grants of ``core/state.py``. ``slices.py`` and ``terms.py`` change it; the scheduler begins
``Delivered`` when a client attaches a card. Memory turns read ``throttled``, of a client and of a card.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nvshare.core.compute.account import Account
from nvshare.core.compute.lifecycle import State
from nvshare.core.compute.policy.regime import Evidence, Kind
from nvshare.core.compute.policy.rhythm import Rhythm

if TYPE_CHECKING:
    from nvshare.core.state import Attachment

REMEMBERED_S = 60.0  # the longest window over which delivered time is shown
SAMPLE_S = 0.25  # between two samples that are kept
FRESH_S = 0.5  # a client that uses the card reports more often than this


@dataclass(slots=True, eq=False)
class Slice:
    """A slice that was given and is not wholly billed yet."""

    attachment: Attachment
    number: int
    given_at: float
    since: float  # from when on it is billed: a change of quota begins anew
    length: float | None  # seconds; None: until the scheduler ends it
    exclusive: bool  # no other client has an exclusive slice meanwhile
    alone: bool  # as far as is known no other client used the card at all
    patience: float  # as it was told
    told_to_end: bool = False
    closed_at: float | None = None  # when its client said that its gate is shut
    due: float | None = None  # when the work that was in flight then should have ended
    handed_at: float | None = None  # since when the next slice goes on beside the last of its work
    waited_for_since: float | None = None  # since when another client could have run instead
    deadline: float | None = None  # by when its client must have reported
    overlapped: float = 0.0  # seconds beside the slice before or after it
    billed: float = 0.0  # seconds that were charged so far
    counted: float = 0.0  # seconds of them that are known to be use: part of the client's burst

    @property
    def beside(self) -> bool:
        return self.handed_at is not None

    @property
    def end(self) -> float | None:
        return None if self.length is None else self.given_at + self.length

    def kept_waiting(self, now: float) -> float:
        """Seconds for which others that could have run waited for it, without those that are billed already."""
        if self.waited_for_since is None:
            return 0.0
        end = now if self.handed_at is None else self.handed_at
        return max(0.0, end - max(self.waited_for_since, self.since))


@dataclass(slots=True, eq=False)
class Delivered:
    """Samples of the time a client occupied the card, for averages over the last seconds."""

    samples: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, now: float, occupied: float) -> None:
        samples = self.samples
        if len(samples) > 1 and now - samples[-2][0] < SAMPLE_S:
            samples.pop()
        samples.append((now, occupied))
        while len(samples) > 2 and samples[1][0] < now - REMEMBERED_S:
            samples.popleft()

    def over(self, seconds: float, now: float) -> float:
        """The part of the last seconds in which the client occupied the card, as far as it reported them."""
        if not self.samples:
            return 0.0
        latest, in_all = self.samples[-1]
        until = latest if now - latest < FRESH_S else now
        earlier = (sample for sample in reversed(self.samples) if sample[0] <= until - seconds)
        at, occupied = next(earlier, self.samples[0])
        return max(0.0, min(1.0, (in_all - occupied) / max(seconds, until - at)))


@dataclass(slots=True, eq=False)
class AttachmentCompute:
    """One client on one card."""

    state: State = State.NONE  # of its slice
    slice: Slice | None = None  # while that is HELD or CLOSING
    overrun: Slice | None = None  # an earlier slice whose work runs on: it is billed, and keeps no client waiting
    again: bool = False  # it wants another slice after the one that closes
    asked_at: float = 0.0
    woke: bool = False  # it asked after a host phase
    account: Account | None = None  # of its group on this card
    urgent: bool = False  # its group has high priority
    in_slices: bool = False  # its terms: it runs in slices, not freely
    terms_at: float = 0.0  # when that last changed
    in_flight: float = 0.0  # its terms: seconds of work that may be in flight
    speaks: bool = False  # it sent a message about slices
    ignorant: bool = False  # it works without slices against its terms: a library that knows none
    throttled: bool = False  # it waits for the card's memory, and its group has no credit to use it
    ready_since: float | None = None  # while it asks: since when only other slices keep it from one
    waited: float = 0.0  # seconds it has asked without a slice, in all
    waited_ready: float = 0.0  # those of them in which only other slices kept it from one, without the last
    active_at: float = float("-inf")  # when it was last known to use the card
    kind: Kind = Kind.UNKNOWN
    evidence: Evidence = field(default_factory=Evidence)
    judged_at: float = 0.0
    trust: float = 0.0  # seconds until it is measured again
    rhythm: Rhythm = field(default_factory=Rhythm)
    delivered: Delivered = field(default_factory=Delivered)

    @property
    def asks(self) -> bool:
        return self.state is State.ASKED

    @property
    def engaged(self) -> int:
        """How many requests and slices it has."""
        return (self.state is not State.NONE) + (self.overrun is not None)

    def waiting(self, now: float) -> float:
        return self.waited + (now - self.asked_at if self.asks else 0.0)

    def set_ready(self, ready: bool, now: float) -> None:
        """From now on only other slices keep it from one, or something else does."""
        if not ready:
            self.waited_ready = self.waiting_ready(now)
            self.ready_since = None
        elif self.ready_since is None:
            self.ready_since = now

    def waiting_ready(self, now: float) -> float:
        return self.waited_ready + (now - self.ready_since if self.ready_since is not None else 0.0)


@dataclass(slots=True, eq=False)
class CardCompute:
    """One card."""

    contended: bool = False  # two or more clients keep it busy, so those without quotas take slices too
    asking: dict[int, Attachment] = field(default_factory=dict)  # by arrival
    exclusive: Slice | None = None
    shared: dict[int, Slice] = field(default_factory=dict)  # slices that overlap others, by client
    lingering: dict[int, Slice] = field(default_factory=dict)  # by number: closed, but their work may still run
    accounts: dict[str, Account] = field(default_factory=dict)  # by group
    opened: int = 0  # accounts so far
    live: list[Attachment] = field(default_factory=list)  # active clients in slices
    longest: float = 0.0  # seconds of the longest slice
    capped: bool = False  # one of its clients has a cap
    promised: bool = False  # one of its active clients has a floor or a cap
    throttled: int = 0  # how many clients here are
    free_runners: int = 0  # how many active clients take no slices
    dirty: bool = False  # the terms of its clients have to be reviewed
    wants_changed: bool = False  # their shares have to be
    look_at: float | None = None  # when terms have to be reviewed in any case
    scaling_logged: dict[str, tuple[int, int]] = field(default_factory=dict)  # by group: its percent, that of all
