"""The ledger of memory: every byte granted, adopted or released is booked here, on client, card and group alike."""

from __future__ import annotations

from nvshare.core.policy.capacity import capacity
from nvshare.core.settings import Settings
from nvshare.core.state import Attachment, GpuState, Standing


def grant(place: Attachment, size: int) -> None:
    """Book bytes that admission let through; they count from now on, whether or not the client has used them yet."""
    place.granted += size
    _book(place, size)


def adopt(place: Attachment, allocated: int, resident: int) -> None:
    """Book what a client held before it registered, be it more than the card has: it exists."""
    place.granted += allocated
    _book(place, allocated)
    _set_resident(place, resident)
    _tolerate(place.gpu)


def report(place: Attachment, released: int, resident: int, host: int, pinned: int) -> None:
    """Book a client's report; the caller has checked that it is possible."""
    given_back = released - place.released
    if given_back:
        place.released = released
        _book(place, -given_back)
        _tolerate(place.gpu)
    _set_resident(place, resident)
    place.gpu.host += host - place.host
    place.host = host
    place.pinned = pinned


def measure_context(place: Attachment, size: int, settings: Settings) -> None:
    place.gpu.contexts += size - place.context
    place.context = size
    recompute_capacity(place.gpu, settings)


def forget(place: Attachment, settings: Settings) -> None:
    """The client is gone from this card, and all it had with it."""
    report(place, place.granted, 0, 0, 0)
    measure_context(place, 0, settings)
    sums = place.client.group.allocated
    if sums.get(place.gpu.uuid) == 0:
        del sums[place.gpu.uuid]


def recompute_capacity(gpu: GpuState, settings: Settings) -> None:
    gpu.capacity = capacity(gpu.total, gpu.declared, settings.reserve_percent, gpu.contexts)
    _tolerate(gpu)


def _book(place: Attachment, delta: int) -> None:
    place.allocated += delta
    place.gpu.allocated += delta
    if place.standing is Standing.RUNNING:
        place.gpu.allocated_running += delta
    sums = place.client.group.allocated
    sums[place.gpu.uuid] = sums.get(place.gpu.uuid, 0) + delta


def _set_resident(place: Attachment, resident: int) -> None:
    place.gpu.resident += resident - place.resident
    place.resident = resident


def _tolerate(gpu: GpuState) -> None:
    gpu.tolerated = gpu.allocated if gpu.allocated > gpu.capacity else 0
