"""How much of a card there is for memory that moves, asked of its state. These functions are queries.

``headroom`` is asked for often and changes seldom, so the card remembers the answer until ``GpuState.changed``.
"""

from __future__ import annotations

from nvshare.core.state import Attachment, GpuState, Headroom, Standing

MIB = 1 << 20


def oversubscribed(gpu: GpuState, more: int = 0) -> bool:
    """All that is allocated and asked for, and ``more``, does not fit onto the card."""
    return gpu.demand + more > gpu.capacity


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


def beside_contexts(gpu: GpuState) -> int:
    """The limit; negative by what contexts take beyond all that the card has for them."""
    size = limit(gpu)
    return size - gpu.overdrawn if size == gpu.capacity else size


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


def demand(attachment: Attachment) -> int:
    """Bytes that must be on the card for the client to run and that leave it otherwise: memory, and the context of a
    client that can sleep."""
    return extra(attachment) + attachment.movable_context


def headroom(gpu: GpuState) -> Headroom:
    """The part of the card for memory and contexts that move, and how much of it clients that run or drain leave."""
    if gpu.headroom is None:
        gpu.headroom = computed_headroom(gpu)
    return gpu.headroom


def computed_headroom(gpu: GpuState) -> Headroom:
    attachments = gpu.attachments.values()
    leaving = sum(min(one.context_here, one.movable_context) for one in attachments)
    size = max(0, beside_contexts(gpu) + leaving - sum(map(fixed, attachments)))
    used = sum(demand(attachment) for busy in (gpu.running, gpu.draining) for attachment in busy.values())
    return Headroom(size, max(0, size - used), max(map(demand, attachments), default=0) <= size)


def attainable(gpu: GpuState) -> int:
    """Bytes that one client can have on the card while those that can sleep do: its size as clients are told it. It
    does not change when one of them falls asleep or wakes."""
    contexts = [one.movable_context for one in gpu.attachments.values()]
    if not any(contexts):
        return gpu.capacity
    here = sum(one.context_here for one in gpu.attachments.values() if one.movable_context)
    return max(0, gpu.capacity - gpu.overdrawn + here - max(contexts))


def share(attachment: Attachment, here: Headroom) -> int:
    """What this client's turn takes of the headroom. At most all of it, for a client that was adopted with more than
    the card has."""
    return min(demand(attachment), here.size)
