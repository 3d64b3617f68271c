"""Memory admission control.

Guarantees: no request is admitted that takes a group over its quota on a card, counted exactly over all its processes;
that makes a client too large to run on the card beside what others cannot move (except one that says it may be larger
than the card, which is brought what it touches), the client that asks or, where the memory itself can never be moved,
any other; or that needs more host memory than the
budget has for bytes beyond the cards. What is held already is never taken away: a quota or a card that shrinks below it
only refuses new requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvshare.core.memory.headroom import fixed
from nvshare.core.settings import SIZE_MAX, DenyReason, Settings

if TYPE_CHECKING:
    from nvshare.core.state import Attachment, GpuState


@dataclass(frozen=True)
class Denial:
    reason: DenyReason
    limit: int  # the bytes that the reason allows


def quota_check(attachment: Attachment, size: int) -> Denial | None:
    group, gpu = attachment.client.group, attachment.gpu
    limit = group.mem_limit.effective
    if limit is None:
        return None
    asked = sum(request.size for request in gpu.pending if request.attachment.client.group is group)
    if group.allocated.get(gpu.uuid, 0) + asked + size > limit:
        return Denial(DenyReason.QUOTA, limit)
    return None


def card_check(attachment: Attachment, size: int, stays: bool, settings: Settings) -> Denial | None:
    """Everything fits; or the memory of others can make room, and every client can still have all of its own on the
    card at once. Without turns nobody can make room for anybody. Memory that ``stays`` takes room from everybody."""
    gpu = attachment.gpu
    if gpu.allocated + gpu.wanted + size <= gpu.capacity:
        return None
    refused = Denial(DenyReason.CARD, gpu.capacity)
    if not settings.anti_thrash:
        return refused
    lasting = {other.client.id: _lasting(other) for other in gpu.attachments.values()}
    headroom = gpu.capacity - sum(lasting.values())
    if attachment.client.oversize and not stays:
        return refused if attachment.allocated + attachment.wanted + size > SIZE_MAX else None
    if attachment.client.can_swap and not stays:
        return refused if _moving(attachment, lasting) + size > headroom else None
    needs = (_moving(other, lasting) for other in gpu.attachments.values() if not other.client.oversize)
    return refused if max(needs, default=0) + size > headroom else None


def keep_check(attachment: Attachment, size: int, settings: Settings) -> Denial | None:
    """Bytes that a client has already may stay for good, unless another one could never have all of its own on the card
    any more. Where nobody takes turns nobody makes room for anybody, and nothing changes."""
    gpu = attachment.gpu
    if gpu.allocated + gpu.wanted <= gpu.capacity or not settings.anti_thrash or not attachment.client.can_swap:
        return None
    lasting = {other.client.id: _lasting(other) for other in gpu.attachments.values()}
    headroom = gpu.capacity - sum(lasting.values())
    others = (other for other in gpu.attachments.values() if other is not attachment and not other.client.oversize)
    needs = max((_moving(other, lasting) for other in others), default=0)
    return Denial(DenyReason.CARD, gpu.capacity) if needs + size > headroom else None


def _lasting(attachment: Attachment) -> int:
    """Bytes that stay on the card whatever happens; those of a stuck client will move one day."""
    return fixed(attachment) if not attachment.client.can_swap else min(attachment.pinned, attachment.allocated)


def _moving(attachment: Attachment, lasting: dict[int, int]) -> int:
    return attachment.allocated + attachment.wanted - lasting[attachment.client.id]


def host_check(attachment: Attachment, size: int, gpus: Iterable[GpuState], settings: Settings) -> Denial | None:
    """What is allocated beyond the cards will lie in host memory."""
    if (
        settings.host_budget is None
        or attachment.gpu.allocated + attachment.gpu.wanted + size <= attachment.gpu.capacity
    ):
        return None
    beyond = 0
    for gpu in gpus:
        more = size if gpu is attachment.gpu else 0
        beyond += max(0, gpu.allocated + gpu.wanted + more - gpu.capacity)
    return Denial(DenyReason.HOST, settings.host_budget) if beyond > settings.host_budget else None


def admit(
    attachment: Attachment, size: int, stays: bool, gpus: Iterable[GpuState], settings: Settings
) -> Denial | None:
    """None when the request may be granted, else why not; the quota first, because its owner can change it."""
    denial = quota_check(attachment, size) or card_check(attachment, size, stays, settings)
    return denial or host_check(attachment, size, gpus, settings)
