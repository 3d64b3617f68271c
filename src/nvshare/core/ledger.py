"""The ledger of memory: every byte granted, adopted, released or promised is booked here, on client, card and group.

``held`` is the heart of it: the most that a client can have on a card by all that it was ever told and said, be it
still on its way. A lowered target frees nothing until the client says that it keeps to it; a raised one takes its bytes
at once. So no two clients are ever told to use the same byte.
"""

from __future__ import annotations

from nvshare.core.policy.capacity import capacity
from nvshare.core.settings import Settings
from nvshare.core.state import Attachment, GpuState, Standing


def grant(place: Attachment, size: int) -> None:
    """Book bytes that admission let through; they count from now on, whether or not the client has used them yet."""
    place.granted += size
    _book(place, size)
    _weigh(place)
    _weigh_oversize(place.gpu)


def adopt(place: Attachment, allocated: int, resident: int) -> None:
    """Book what a client held before it registered, be it more than the card has: it exists. It may keep on the card
    what it has there."""
    place.granted += allocated
    _book(place, allocated)
    place.gpu.resident += resident
    place.resident = resident
    if place.client.can_swap and resident < allocated:
        place.target = resident
        place.arrived = False
    if place.client.oversize:
        place.gpu.oversize[place.client.id] = place
    _weigh(place)
    _weigh_oversize(place.gpu)
    _tolerate(place.gpu)


def report(place: Attachment, released: int, resident: int, host: int, pinned: int, applied: int = 0) -> None:
    """Book a client's report; the caller has checked that it is possible."""
    gpu = place.gpu
    given_back = released - place.released
    if given_back:
        place.released = released
        _book(place, -given_back)
        place.earlier = [(number, min(size, place.allocated)) for number, size in place.earlier]
    moved = resident - place.resident
    if moved:
        if moved > 0:
            gpu.moved_in += moved if not place.whole else 0
        else:
            gpu.moved_out += max(0, -moved - given_back)
        gpu.resident += moved
        place.resident = resident
    gpu.host += host - place.host
    place.host = host
    place.pinned = pinned
    if applied > place.applied:
        place.applied = applied
        place.earlier = [older for older in place.earlier if older[0] >= applied]
    if not place.arrived and place.applied == place.number and resident >= place.need:
        place.arrived = True
    _weigh(place)
    _weigh_oversize(gpu)
    _tolerate(gpu)


def keep(place: Attachment, size: int) -> None:
    """So much more of what the client has stays on the card whatever happens."""
    place.pinned += size
    _weigh(place)
    _weigh_oversize(place.gpu)
    _tolerate(place.gpu)


def retarget(place: Attachment, target: int) -> int:
    """Book a new target, and give it its number. What was granted before it may still become resident under the
    older ones, what is granted later cannot: the client hears of both in this order."""
    place.earlier.append((place.number, place.bound))
    place.number += 1
    place.target = target
    _weigh(place)
    return place.number


def expect_context(place: Attachment, settings: Settings) -> None:
    """A process needs some of the card before it can ask for anything: as much as the largest one here, until measured.
    Others make room for it."""
    gpu = place.gpu
    if gpu.is_physical and gpu.largest_context:
        measure_context(place, gpu.largest_context, settings)
        gpu.expecting.add(place.client.id)


def silence(place: Attachment, silent: bool) -> None:
    """Of a client that does not answer what it had on the card counts. What it was promised beyond that is given to
    others; should it come for it all the same, it finds the card full and waits."""
    place.had = place.held if place.held > place.bound else place.resident
    place.silent = silent
    if silent:
        place.gpu.silent[place.client.id] = place
    else:
        del place.gpu.silent[place.client.id]
    _weigh(place)
    _tolerate(place.gpu)


def measure_context(place: Attachment, size: int, settings: Settings) -> None:
    gpu = place.gpu
    gpu.expecting.discard(place.client.id)
    gpu.contexts += size - place.context
    place.context = size
    gpu.largest_context = max(gpu.largest_context, size)
    recompute_capacity(gpu, settings)


def forget(place: Attachment, settings: Settings) -> None:
    """The client is gone from this card, and all it had with it."""
    gpu = place.gpu
    report(place, place.granted, 0, 0, 0)
    gpu.lacking.pop(place.client.id, None)
    gpu.oversize.pop(place.client.id, None)
    gpu.silent.pop(place.client.id, None)
    measure_context(place, 0, settings)
    sums = place.client.group.allocated
    if sums.get(gpu.uuid) == 0:
        del sums[gpu.uuid]


def recompute_capacity(gpu: GpuState, settings: Settings) -> None:
    gpu.capacity = capacity(gpu.total, gpu.declared, settings.reserve_percent, gpu.contexts, gpu.unmanaged_bytes)
    gpu.room = None
    _weigh_oversize(gpu)
    _tolerate(gpu)


def _book(place: Attachment, delta: int) -> None:
    place.allocated += delta
    place.gpu.allocated += delta
    if place.standing is Standing.RUNNING:
        place.gpu.allocated_running += delta
    sums = place.client.group.allocated
    sums[place.gpu.uuid] = sums.get(place.gpu.uuid, 0) + delta


def _weigh(place: Attachment) -> None:
    """Compute anew what the client can have on the card, and whether something of it is missing there."""
    gpu, allocated = place.gpu, place.allocated
    if place.silent:
        held = min(place.had, allocated)
    elif place.target >= allocated and not place.earlier:
        held = allocated
    else:
        held = min(allocated, max(place.resident, place.target, *(size for _, size in place.earlier), 0))
    if place.target < place.need:
        place.arrived = False
    elif place.client.oversize and place.resident >= place.need:
        place.arrived = True  # others took less room than before
    gpu.room = None
    gpu.held += held - place.held
    place.held = held
    if place.whole:
        gpu.lacking.pop(place.client.id, None)
    else:
        gpu.lacking[place.client.id] = place


def _weigh_oversize(gpu: GpuState) -> None:
    """What a client that may be larger than the card needs of it depends on the others."""
    for place in gpu.oversize.values():
        _weigh(place)


def _tolerate(gpu: GpuState) -> None:
    gpu.tolerated = gpu.held if gpu.held > gpu.capacity else 0
