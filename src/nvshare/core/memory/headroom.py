"""Degree of multiprogramming: do the clients of a card run side by side or in turns, and how many fit together.

Guarantees: outside serial mode nobody takes turns while all memory is on the card, or can be; in serial mode one runs
at a time. Memory that does not fit cannot be used at once, so there concurrent mode takes turns like auto mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvshare.core.settings import Mode, Settings
from nvshare.core.state import Headroom, Standing

if TYPE_CHECKING:
    from nvshare.core.state import Attachment, GpuState

MIB = 1 << 20


def oversubscribed(gpu: GpuState) -> bool:
    """All that is allocated and asked for does not fit onto the card."""
    return gpu.allocated + gpu.wanted > gpu.capacity


def limit(gpu: GpuState) -> int:
    """Bytes that may be on the card. More than its capacity only where one client, adopted or left behind by a card
    that shrank, has more: it could never run otherwise. What a context takes of a card that is not declared, or a
    process outside nvshare of any, is really taken: there only one that is alone may have more than we think there
    is."""
    if gpu.is_physical and len(gpu.attachments) > 1:
        return gpu.capacity
    sizes = (attachment.need for attachment in gpu.attachments.values() if attachment.client.can_swap)
    return max(gpu.capacity, max(sizes, default=0))


def takes_turns(settings: Settings, gpu: GpuState) -> bool:
    """Outside serial mode turns begin when memory does not fit *and* somebody lacks some: bytes that were adopted
    beyond a card's declared size but are all on the card need no turns."""
    if settings.mode is Mode.SERIAL:
        return True
    if gpu.allocated + gpu.wanted <= gpu.capacity or not (gpu.lacking or gpu.pending):
        return False
    return gpu.allocated + gpu.wanted > limit(gpu)


def fixed(attachment: Attachment) -> int:
    """Bytes that cannot leave the card, nor be refused to it: those of a client that cannot move them, cannot stop or
    does not answer, and pinned ones."""
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
    """What of the card there is for memory that moves; it is asked for often and changes seldom."""
    if gpu.headroom is None:
        gpu.headroom = computed_headroom(gpu)
    return gpu.headroom


def computed_headroom(gpu: GpuState) -> Headroom:
    whole = max(0, limit(gpu) - sum(map(fixed, gpu.attachments.values())))
    used = sum(extra(attachment) for attachments in (gpu.running, gpu.draining) for attachment in attachments.values())
    return Headroom(whole, max(0, whole - used), max(map(extra, gpu.attachments.values()), default=0) <= whole)


def share(attachment: Attachment, here: Headroom) -> int:
    """What this client's turn takes of it; at most all, for one that was adopted with more than the card has."""
    return min(extra(attachment), here.whole)


def reason(settings: Settings, gpu: GpuState) -> str:
    """Why the card is run the way it is, for people."""
    if not settings.anti_thrash:
        return "anti-thrash is off: all run freely"
    if settings.mode is Mode.SERIAL:
        return "serial mode: one task at a time"
    allocated, capacity = (gpu.allocated + gpu.wanted) // MIB, gpu.capacity // MIB
    if takes_turns(settings, gpu):
        turns = "; concurrent mode takes turns too then" if settings.mode is Mode.CONCURRENT else ""
        return f"memory does not fit ({allocated} > {capacity} MB){turns}"
    if settings.mode is Mode.CONCURRENT:
        return "concurrent mode: all at once"
    if gpu.allocated + gpu.wanted <= gpu.capacity:
        return f"memory fits ({allocated} <= {capacity} MB)"
    return f"memory is over the card's size ({allocated} > {capacity} MB) but all of it is on the card"
