"""Whose turn it is on a card, asked of the state as it is; ``turns.py`` carries it out. Changes nothing."""

from __future__ import annotations

from itertools import islice

from nvshare.core.policy.demand import compatible
from nvshare.core.policy.multiprogramming import fixed, room, share
from nvshare.core.policy.queue import fitting_set
from nvshare.core.residency import can_ever_run
from nvshare.core.settings import Mode, Settings
from nvshare.core.state import Attachment, GpuState, Standing


def chosen(settings: Settings, gpu: GpuState) -> list[Attachment]:
    """The waiters whose turn it is: as many from the front of the queue as fit, with their memory and their demand for
    compute, beside those who run or are on their way out. One that could not run now even with the card to itself does
    not hold the others up."""
    if not gpu.turns:
        return list(gpu.queue.values())
    serial = settings.mode is Mode.SERIAL
    if serial and (gpu.running or gpu.draining):
        return []
    waiting = (place for place in gpu.queue.values() if can_ever_run(place.client) and not passed_over(place))
    if serial:
        return list(islice(waiting, 1))
    here = room(gpu)
    fitting = fitting_set(
        waiting, lambda place: 0 if place.standing is Standing.DRAINING else share(place, here), here.free
    )
    stuck = next((index for index, place in enumerate(fitting) if place.standing is Standing.STUCK), 0)
    fitting = fitting[:stuck] if stuck else fitting  # who fits beside a stuck one runs before that one's next turn
    return compatible(fitting, gpu.running.values())


def waiters(gpu: GpuState) -> tuple[list[Attachment], list[Attachment]]:
    """Those who wait and can run when others make room, and those who cannot; each in the order of arrival."""
    able: list[Attachment] = []
    unable: list[Attachment] = []
    for place in gpu.queue.values():
        (able if can_ever_run(place.client) and not passed_over(place) else unable).append(place)
    return able, unable


def passed_over(place: Attachment) -> bool:
    """It has used up its compute quota, and somebody waits who has not: memory that it cannot use goes to that one."""
    if not place.compute.throttled:
        return False
    return any(can_ever_run(other.client) and not other.compute.throttled for other in place.gpu.queue.values())


def has_room(settings: Settings, place: Attachment) -> bool:
    """Its turn has come on this card, or it would if the client waited there alone."""
    if place.standing is Standing.DRAINING:
        return False
    gpu = place.gpu
    if not gpu.turns:
        return True
    if gpu.queue:
        return place in chosen(settings, gpu)
    if settings.mode is Mode.SERIAL:
        return not (gpu.running or gpu.draining)
    here = room(gpu)
    return share(place, here) <= here.free and bool(compatible([place], gpu.running.values()))


def is_contended(settings: Settings, gpu: GpuState) -> bool:
    """Somebody waits who could run if a holder left."""
    next_ones = chosen(settings, gpu)
    return any(
        place not in next_ones and not place.compute.throttled and can_ever_run(place.client)
        for place in gpu.queue.values()
    )


def surplus(settings: Settings, gpu: GpuState) -> list[Attachment]:
    """The holders that have to leave: in turns the first ones that fit together stay, and one always can."""
    holders = list(gpu.running.values())
    if settings.mode is Mode.SERIAL:
        kept = holders[:1]
    else:
        here = room(gpu)
        kept = fitting_set(holders, lambda place: share(place, here), here.whole)
    return [place for place in holders if place not in kept or (gpu.pending and _has_more_than_its_share(place))]


def _has_more_than_its_share(place: Attachment) -> bool:
    """One that may be larger than the card makes room when somebody asks for memory that must be there."""
    return place.client.oversize and place.held > fixed(place) + share(place, room(place.gpu))
