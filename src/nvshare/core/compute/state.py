"""What the scheduler knows about compute slices: each client's slice on each card, and each group's books there.

Plain data beside the grants of ``core/state.py``. ``slices.py`` and ``terms.py`` change it; the scheduler begins
``Delivered`` when a client attaches a card. Memory turns read ``throttled``, of a client and of a card.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nvshare.core.compute.books import Book
from nvshare.core.compute.policy.regime import Kind
from nvshare.core.compute.policy.shares import LONGEST

if TYPE_CHECKING:
    from nvshare.core.state import Attachment

REMEMBERED_S = 60.0  # the longest window over which delivered time is shown
SAMPLE_S = 0.25  # between two samples that are kept
FRESH_S = 0.5  # a client that uses the card reports more often than this


@dataclass(slots=True, eq=False)
class Slice:
    """A compute slice that was given and is not wholly billed yet."""

    attachment: Attachment
    number: int
    given_at: float
    since: float  # from when on it is billed: a change of quota begins anew
    length: float | None  # seconds; None: until the scheduler ends it
    exclusive: bool  # no other client has an exclusive slice meanwhile
    alone: bool  # as far as is known no other client used the card at all
    told_to_end: bool = False
    decided: bool = False  # this length is final: another client is next, or the credit ends with it
    closed_at: float | None = None  # when its client said that its gate is shut
    due: float | None = None  # when the work that was in flight then should have ended
    handed_at: float | None = None  # since when the next slice goes on beside the last of its work
    asked_for_since: float | None = None  # since when another client asks, with or without credit
    waited_for_since: float | None = None  # since when another client could have run instead
    deadline: float | None = None  # by when its client must have reported
    overlapped: float = 0.0  # seconds beside the slice before or after it
    billed: float = 0.0  # seconds so far
    weighed: float = 0.0  # the part of them that counts for whose slice is next

    @property
    def beside(self) -> bool:
        return self.handed_at is not None

    @property
    def end(self) -> float | None:
        return None if self.length is None else self.given_at + self.length

    def lasted(self, moment: float | None, now: float) -> float:
        """Seconds from ``moment`` on for which it kept the card, without those that an earlier quota was billed for."""
        end = now if self.handed_at is None else self.handed_at
        return 0.0 if moment is None else max(0.0, end - max(moment, self.since))

    def weighs(self, used: float, now: float) -> float:
        """The part of ``used`` that counts for whose slice is next: little of the time in which no other client
        asked."""
        return min(used, LONGEST + self.lasted(self.asked_for_since, now))


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

    def until_latest(self, seconds: float) -> float | None:
        """The same for the seconds before the latest sample; None where samples do not go back so far."""
        until, in_all = self.samples[-1] if self.samples else (0.0, 0.0)
        for at, occupied in reversed(self.samples):
            if at <= until - seconds:
                return max(0.0, min(1.0, (in_all - occupied) / (until - at)))
        return None


@dataclass(slots=True, eq=False)
class AttachmentCompute:
    """One client on one card."""

    book: Book | None = None  # of its group on this card
    urgent: bool = False  # its group has high priority
    in_slices: bool = False  # its terms: it runs in slices, not freely
    terms_at: float = 0.0  # when that last changed
    in_flight: float = 0.0  # its terms: seconds of work that may be in flight
    backlog_until: float = 0.0  # until then work from before it took slices may run
    speaks: bool = False  # it sent a message about slices
    ignorant: bool = False  # it works without slices against its terms: a library that knows none
    slice: Slice | None = None
    overrun: Slice | None = None  # an earlier slice whose work runs on: it is billed, and keeps no client waiting
    asks: bool = False
    asked_at: float = 0.0
    throttled: bool = False  # it waits for the card's memory, and its group has no credit to use it
    ready_since: float | None = None  # while it asks: since when only other slices keep it from one
    waited: float = 0.0  # seconds it has asked without a slice, in all
    ended_at: float = float("-inf")  # when its latest slice ended
    tail: float = 0.0  # seconds by which its slices are longer than given, while work in flight ends
    bursty: bool = False  # its latest slice ended because it had nothing to do
    active_at: float = float("-inf")  # when it was last known to use the card
    kind: Kind = Kind.UNKNOWN
    ratio: float | None = None  # the part of the time it used alone in which the card was at work
    evidence: float = 0.0  # seconds of use, in slices in a row, after which it looked launch-bound
    judged_at: float = 0.0
    trust: float = 0.0  # seconds until it is measured again
    delivered: Delivered = field(default_factory=Delivered)

    @property
    def engaged(self) -> int:
        """How many requests and slices it has."""
        return self.asks + (self.slice is not None) + (self.overrun is not None)

    def waiting(self, now: float) -> float:
        return self.waited + (now - self.asked_at if self.asks else 0.0)


@dataclass(slots=True, eq=False)
class CardCompute:
    """One card."""

    contended: bool = False  # two or more clients keep it busy, so those without quotas take slices too
    asking: dict[int, Attachment] = field(default_factory=dict)  # by arrival
    exclusive: Slice | None = None
    clock: float = 0.0  # the virtual time at which the latest exclusive slice began
    shared: dict[int, Slice] = field(default_factory=dict)  # slices that overlap others, by client
    lingering: dict[int, Slice] = field(default_factory=dict)  # by number: closed, but their work may still run
    books: dict[str, Book] = field(default_factory=dict)  # by group
    capped: bool = False  # one of its clients has a quota
    full: bool = False  # the quotas of active clients leave nothing of it
    throttled: int = 0  # how many clients here are
    free_runners: int = 0  # how many active clients take no slices
    dirty: bool = False  # the terms of its clients have to be reviewed
    look_at: float | None = None  # when they have to be in any case
    scaling_logged: dict[str, tuple[int, int]] = field(default_factory=dict)  # by group: its percent, that of all
