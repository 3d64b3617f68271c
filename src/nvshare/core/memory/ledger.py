"""The ledger of memory: every byte granted, asked for, adopted, released or promised is booked here, on client, card
and group.

``held`` is the heart of it: the most that a client can have on a card by all targets it may still keep to. A lowered
target frees nothing until the client says that it keeps to it. A raised one takes its bytes at once. So no two clients
are ever told to use the same byte.
"""

from __future__ import annotations

from nvshare.core.memory.policy.capacity import Size, capacity
from nvshare.core.settings import Settings
from nvshare.core.sleep.lifecycle import State
from nvshare.core.state import Attachment, GpuState, Standing


def grant(attachment: Attachment, size: int) -> None:
    """Book bytes that admission let through. They count from now on, whether or not the client has used them yet."""
    attachment.granted += size
    _book(attachment, size)
    _weigh(attachment)
    _weigh_oversize(attachment.gpu)


def want(attachment: Attachment, size: int) -> None:
    """Book a request that waits for room, or with a negative size one that no longer does."""
    attachment.wanted += size
    attachment.gpu.wanted += size
    attachment.gpu.changed()


def adopt(attachment: Attachment, allocated: int, resident: int) -> None:
    """Book what a client held before it registered, even if it is more than the card has: it exists. The client may
    keep on the card what it has there."""
    attachment.granted += allocated
    _book(attachment, allocated)
    attachment.gpu.resident += resident
    attachment.resident = resident
    if attachment.client.can_swap and resident < allocated:
        attachment.target = resident
        attachment.arrived = False
    if attachment.client.oversize:
        attachment.gpu.oversize[attachment.client.id] = attachment
    _weigh(attachment)
    _weigh_oversize(attachment.gpu)
    _tolerate(attachment.gpu)


def report(attachment: Attachment, released: int, resident: int, host: int, pinned: int, applied: int = 0) -> None:
    """Book a client's report; the caller has checked that it is possible."""
    gpu = attachment.gpu
    given_back = released - attachment.released
    if given_back:
        attachment.released = released
        _book(attachment, -given_back)
        attachment.earlier = [(number, min(size, attachment.allocated)) for number, size in attachment.earlier]
    moved = resident - attachment.resident
    if moved:
        if moved > 0:
            gpu.moved_in += moved if not attachment.whole else 0
        else:
            gpu.moved_out += max(0, -moved - given_back)
        gpu.resident += moved
        attachment.resident = resident
    gpu.host += host - attachment.host
    attachment.host = host
    attachment.pinned = pinned
    if applied > attachment.applied:
        attachment.applied = applied
        attachment.earlier = [older for older in attachment.earlier if older[0] >= applied]
    if not attachment.arrived and attachment.applied == attachment.number and resident >= attachment.need:
        attachment.arrived = True
    _weigh(attachment)
    _weigh_oversize(gpu)
    _tolerate(gpu)


def keep(attachment: Attachment, size: int) -> None:
    """Book that so much more of the client's memory stays on the card whatever happens."""
    attachment.pinned += size
    _weigh(attachment)
    _weigh_oversize(attachment.gpu)
    _tolerate(attachment.gpu)


def retarget(attachment: Attachment, target: int) -> int:
    """Book a new target; its number. Bytes granted before it may still become resident under an older target. Bytes
    granted after it cannot, because the client hears of both in this order."""
    attachment.earlier.append((attachment.number, attachment.bound))
    attachment.number += 1
    attachment.target = target
    _weigh(attachment)
    return attachment.number


def expect_context(attachment: Attachment, settings: Settings) -> None:
    """Book a context for a new client: as large as the largest one here, until it is measured. A process needs it
    before it can ask for anything, so others make room."""
    gpu = attachment.gpu
    if gpu.is_physical and gpu.largest_context:
        measure_context(attachment, gpu.largest_context, settings)
        if attachment.client.sleep.is_here:
            gpu.expecting.add(attachment.client.id)


def silence(attachment: Attachment, silent: bool) -> None:
    """Book that a client does not answer, or does again. Only what a silent client had on the card counts. What it was
    promised beyond that goes to others. If it comes for it all the same, it finds the card full and waits."""
    attachment.had = attachment.held if attachment.held > attachment.bound else attachment.resident
    attachment.silent = silent
    if silent:
        attachment.gpu.silent[attachment.client.id] = attachment
    else:
        del attachment.gpu.silent[attachment.client.id]
    _weigh(attachment)
    _tolerate(attachment.gpu)


def measure_context(attachment: Attachment, size: int, settings: Settings) -> None:
    gpu = attachment.gpu
    gpu.expecting.discard(attachment.client.id)
    gpu.largest_context = max(gpu.largest_context, size)
    _place_context(attachment, size, settings)


def move_context(attachment: Attachment, settings: Settings) -> None:
    """Book that the client fell asleep, or that its context gets its room again."""
    _place_context(attachment, attachment.context, settings)
    _weigh(attachment)


def _place_context(attachment: Attachment, size: int, settings: Settings) -> None:
    gpu = attachment.gpu
    here = 0 if attachment.client.sleep.state is State.ASLEEP else size
    gpu.contexts += here - attachment.context_here
    gpu.contexts_away += (size - here) - (attachment.context - attachment.context_here)
    attachment.context, attachment.context_here = size, here
    recompute_capacity(gpu, settings)


def forget(attachment: Attachment, settings: Settings) -> None:
    """Book that the client is gone from this card, with all it had."""
    gpu = attachment.gpu
    report(attachment, attachment.granted, 0, 0, 0)
    gpu.lacking.pop(attachment.client.id, None)
    gpu.oversize.pop(attachment.client.id, None)
    gpu.silent.pop(attachment.client.id, None)
    measure_context(attachment, 0, settings)
    sums = attachment.client.group.allocated
    if sums.get(gpu.uuid) == 0:
        del sums[gpu.uuid]
    del gpu.attachments[attachment.client.id]
    gpu.changed()


def size_of(gpu: GpuState, settings: Settings) -> Size:
    return Size(gpu.total, gpu.declared, gpu.contexts_inside, settings.reserve_percent)


def room(gpu: GpuState, settings: Settings) -> int:
    """Bytes that neither contexts nor memory of clients can take as things are; negative while some have to leave."""
    return size_of(gpu, settings).ceiling(gpu.unmanaged_bytes) - gpu.contexts - gpu.held


def recompute_capacity(gpu: GpuState, settings: Settings) -> None:
    size = size_of(gpu, settings)
    gpu.capacity = capacity(size, gpu.contexts, gpu.unmanaged_bytes)
    gpu.overdrawn = max(0, gpu.contexts - size.ceiling(gpu.unmanaged_bytes)) if gpu.holds_contexts else 0
    gpu.changed()
    _weigh_oversize(gpu)
    _tolerate(gpu)


def _book(attachment: Attachment, delta: int) -> None:
    attachment.allocated += delta
    attachment.gpu.allocated += delta
    if attachment.standing is Standing.RUNNING:
        attachment.gpu.allocated_running += delta
    sums = attachment.client.group.allocated
    sums[attachment.gpu.uuid] = sums.get(attachment.gpu.uuid, 0) + delta


def _weigh(attachment: Attachment) -> None:
    """Compute anew what the client can have on the card, and whether some of its memory is missing there."""
    gpu, allocated = attachment.gpu, attachment.allocated
    if attachment.silent:
        held = min(attachment.had, allocated)
    elif attachment.target >= allocated and not attachment.earlier:
        held = allocated
    else:
        held = min(allocated, max(attachment.resident, attachment.target, *(size for _, size in attachment.earlier), 0))
    if attachment.target < attachment.need:
        attachment.arrived = False
    elif attachment.client.oversize and attachment.resident >= attachment.need:
        attachment.arrived = True  # others leave more room than before
    attachment.changed()
    gpu.held += held - attachment.held
    attachment.held = held
    if attachment.whole:
        gpu.lacking.pop(attachment.client.id, None)
    else:
        gpu.lacking[attachment.client.id] = attachment


def _weigh_oversize(gpu: GpuState) -> None:
    """The need of a client that may be larger than the card depends on the other clients: compute it anew."""
    for attachment in gpu.oversize.values():
        _weigh(attachment)


def _tolerate(gpu: GpuState) -> None:
    gpu.tolerated = gpu.held if gpu.held > gpu.capacity else 0
