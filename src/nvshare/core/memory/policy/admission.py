"""Memory admission control.

Guarantees: a request is refused that
- takes a group over its quota on a card, counted exactly over all its processes,
- makes a client too large to run on the card beside memory that others cannot move: the client that asks or, where the
  memory itself can never be moved, any other. A client that says it may be larger than the card is exempt: it gets what
  it touches,
- needs more host memory than the budget has for bytes beyond the cards.

What is held already is never taken away: a quota or a card that shrinks below it only refuses new requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nvshare.core.settings import SIZE_MAX, DenyReason


class Denial(NamedTuple):
    reason: DenyReason
    limit: int  # the bytes that the reason allows


class Holding(NamedTuple):
    """One client's memory on the card."""

    size: int  # allocated and asked for
    lasting: int  # the part of it that stays on the card whatever happens
    oversize: bool  # the client may be larger than the card

    @property
    def moving(self) -> int:
        return self.size - self.lasting


class Crowd(NamedTuple):
    """A card onto which not everything fits."""

    capacity: int
    own: Holding  # of the client that asks
    others: Sequence[Holding]
    makes_room: bool  # clients take turns, so the memory of one can make room for another's
    host_budget: int | None  # bytes that may be allocated beyond the cards; None: any number
    beyond: int  # bytes that would be, on all cards, with the request

    @property
    def headroom(self) -> int:
        return self.capacity - self.own.lasting - sum(other.lasting for other in self.others)


def admit(size: int, movable: bool, quota: int | None, booked: int, crowd: Crowd | None) -> Denial | None:
    """None when the request may be granted, else why not; the quota first, because its owner can change it.

    ``booked``: what the group has and waits for on this card. ``crowd``: None where all fits, with the request.
    """
    denial = quota_check(quota, booked, size)
    if denial is not None or crowd is None:
        return denial
    return card_check(crowd, size, movable) or host_check(crowd)


def quota_check(quota: int | None, booked: int, size: int) -> Denial | None:
    return Denial(DenyReason.QUOTA, quota) if quota is not None and booked + size > quota else None


def card_check(crowd: Crowd, size: int, movable: bool) -> Denial | None:
    """The memory of others can make room, and every client can still have all of its own on the card at once. Memory
    that can never be moved takes room from every client."""
    own = crowd.own
    if not crowd.makes_room:
        fits = False
    elif movable and own.oversize:
        fits = own.size + size <= SIZE_MAX
    elif movable:
        fits = own.moving + size <= crowd.headroom
    else:
        fits = _largest((own, *crowd.others)) + size <= crowd.headroom
    return None if fits else Denial(DenyReason.CARD, crowd.capacity)


def keep_check(crowd: Crowd, size: int) -> Denial | None:
    """Bytes that a client has already may stay for good, unless another client could no longer have all of its own on
    the card."""
    fits = _largest(crowd.others) + size <= crowd.headroom
    return None if fits else Denial(DenyReason.CARD, crowd.capacity)


def host_check(crowd: Crowd) -> Denial | None:
    """What is allocated beyond the cards will lie in host memory."""
    if crowd.host_budget is None or crowd.beyond <= crowd.host_budget:
        return None
    return Denial(DenyReason.HOST, crowd.host_budget)


def _largest(holdings: Sequence[Holding]) -> int:
    """The most bytes of one client that move and have to be on the card at once."""
    return max((holding.moving for holding in holdings if not holding.oversize), default=0)
