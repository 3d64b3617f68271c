"""Whose turn it is on a card, asked of the state as it is; ``turns.py`` carries it out. Changes nothing."""

from __future__ import annotations

from itertools import islice

from nvshare.core.memory.headroom import fixed, headroom, share
from nvshare.core.memory.policy.demand import compatible
from nvshare.core.memory.policy.queue import fitting_set
from nvshare.core.memory.residency import can_ever_run
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
    waiting = (
        attachment
        for attachment in gpu.queue.values()
        if can_ever_run(attachment.client) and not passed_over(attachment)
    )
    if serial:
        return list(islice(waiting, 1))
    here = headroom(gpu)
    fitting = fitting_set(
        waiting,
        lambda attachment: 0 if attachment.standing is Standing.DRAINING else share(attachment, here),
        here.free,
    )
    stuck = next((index for index, attachment in enumerate(fitting) if attachment.standing is Standing.STUCK), 0)
    fitting = fitting[:stuck] if stuck else fitting  # who fits beside a stuck one runs before that one's next turn
    return compatible(fitting, gpu.running.values())


def waiters(gpu: GpuState) -> tuple[list[Attachment], list[Attachment]]:
    """Those who wait and can run when others make room, and those who cannot; each in the order of arrival."""
    able: list[Attachment] = []
    unable: list[Attachment] = []
    for attachment in gpu.queue.values():
        (able if can_ever_run(attachment.client) and not passed_over(attachment) else unable).append(attachment)
    return able, unable


def passed_over(attachment: Attachment) -> bool:
    """It has used up its compute quota, and somebody waits who has not: memory that it cannot use goes to that one."""
    if not attachment.compute.throttled:
        return False
    return any(can_ever_run(other.client) and not other.compute.throttled for other in attachment.gpu.queue.values())


def has_room(settings: Settings, attachment: Attachment) -> bool:
    """Its turn has come on this card, or it would if the client waited there alone."""
    if attachment.standing is Standing.DRAINING:
        return False
    gpu = attachment.gpu
    if not gpu.turns:
        return True
    if gpu.queue:
        return attachment in chosen(settings, gpu)
    if settings.mode is Mode.SERIAL:
        return not (gpu.running or gpu.draining)
    here = headroom(gpu)
    return share(attachment, here) <= here.free and bool(compatible([attachment], gpu.running.values()))


def is_contended(settings: Settings, gpu: GpuState) -> bool:
    """Somebody waits who could run if a holder left."""
    next_ones = chosen(settings, gpu)
    return any(
        attachment not in next_ones and not attachment.compute.throttled and can_ever_run(attachment.client)
        for attachment in gpu.queue.values()
    )


def surplus(settings: Settings, gpu: GpuState) -> list[Attachment]:
    """The holders that have to leave: in turns the first ones that fit together stay, and one always can."""
    holders = list(gpu.running.values())
    if settings.mode is Mode.SERIAL:
        kept = holders[:1]
    else:
        here = headroom(gpu)
        kept = fitting_set(holders, lambda attachment: share(attachment, here), here.whole)
    return [
        attachment
        for attachment in holders
        if attachment not in kept or (gpu.pending and _has_more_than_its_share(attachment))
    ]


def _has_more_than_its_share(attachment: Attachment) -> bool:
    """One that may be larger than the card makes room when somebody asks for memory that must be there."""
    return attachment.client.oversize and attachment.held > fixed(attachment) + share(
        attachment, headroom(attachment.gpu)
    )
