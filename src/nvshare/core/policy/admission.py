"""Memory admission control.

Guarantees: no request is admitted that takes a group over its quota on a card, counted exactly over all its processes,
or all clients together over the card. What is held already is never taken away: a quota or a card that shrinks below it
only refuses new requests.

The two checks are apart because the second one will depend on the client: one whose memory can move to the host is
admitted beyond the card, and a planner decides who is resident. That needs another ``card_check``, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvshare.core.settings import DenyReason

if TYPE_CHECKING:
    from nvshare.core.state import Attachment


@dataclass(frozen=True)
class Denial:
    reason: DenyReason
    limit: int  # the bytes that the reason allows


def quota_check(place: Attachment, size: int) -> Denial | None:
    group = place.client.group
    limit = group.mem_limit.effective
    if limit is not None and group.allocated.get(place.gpu.uuid, 0) + size > limit:
        return Denial(DenyReason.QUOTA, limit)
    return None


def card_check(place: Attachment, size: int) -> Denial | None:
    gpu = place.gpu
    if gpu.allocated + size > gpu.capacity:
        return Denial(DenyReason.CARD, gpu.capacity)
    return None


def admit(place: Attachment, size: int) -> Denial | None:
    """None when the request may be granted, else why not; the quota first, because its owner can change it."""
    return quota_check(place, size) or card_check(place, size)
