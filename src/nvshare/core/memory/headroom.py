"""How much of a card there is for memory that moves, asked of its state. These functions are queries.

``headroom`` is asked for often and changes seldom, so the card remembers the answer until ``GpuState.changed``.
"""

from __future__ import annotations

from nvshare.core.state import Attachment, GpuState, Headroom, Standing

MIB = 1 << 20


def oversubscribed(gpu: GpuState, more: int = 0) -> bool:
    """All that is allocated and asked for, and ``more``, does not fit onto the card."""
    return gpu.allocated + gpu.wanted + more > gpu.capacity


def limit(gpu: GpuState) -> int:
    """Bytes that may be on the card.

    This is more than the capacity where one client has more, adopted or left behind by a card that shrank: it could
    never run otherwise. Contexts and unmanaged processes really take what they take. So on a card where they count, a
    client may have more than the capacity only while it is alone there.
    """
    if gpu.is_physical and len(gpu.attachments) > 1:
        return gpu.capacity
    sizes = (attachment.need for attachment in gpu.attachments.values() if attachment.client.can_swap)
    return max(gpu.capacity, max(sizes, default=0))


def fixed(attachment: Attachment) -> int:
    """Bytes that cannot leave the card, nor be refused to it: those of a client that cannot move them, is stuck or does
    not answer, and pinned ones."""
    if not attachment.client.can_swap or attachment.standing is Standing.STUCK:
        return max(attachment.need_with(attachment.wanted), attachment.held)
    if attachment.silent:
        return attachment.held
    return min(attachment.pinned, attachment.allocated)


def extra(attachment: Attachment) -> int:
    """Bytes that must be on the card, beyond the fixed ones, for the client to run."""
    if not attachment.client.can_swap or attachment.standing is Standing.STUCK:
        return 0
    wanted = attachment.wanted if attachment.standing is Standing.RUNNING else 0
    return max(0, attachment.need_with(wanted) - fixed(attachment))


def headroom(gpu: GpuState) -> Headroom:
    """The part of the card for memory that moves, and how much of it the clients that run or drain leave."""
    if gpu.headroom is None:
        gpu.headroom = computed_headroom(gpu)
    return gpu.headroom


def computed_headroom(gpu: GpuState) -> Headroom:
    size = max(0, limit(gpu) - sum(map(fixed, gpu.attachments.values())))
    used = sum(extra(attachment) for attachments in (gpu.running, gpu.draining) for attachment in attachments.values())
    return Headroom(size, max(0, size - used), max(map(extra, gpu.attachments.values()), default=0) <= size)


def share(attachment: Attachment, here: Headroom) -> int:
    """What this client's turn takes of the headroom. At most all of it, for a client that was adopted with more than
    the card has."""
    return min(extra(attachment), here.size)
