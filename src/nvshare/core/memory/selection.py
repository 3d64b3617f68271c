"""Whose turn it is on a card, and who can run there at all, asked of the state. These functions are queries.

``turns.py`` carries the answers out. The rules are in ``policy/``: ``multiprogramming.py`` says whether there are
turns, ``queue.py`` and ``demand.py`` how many of the waiters run together.
"""

from __future__ import annotations

from itertools import islice

from nvshare.core.memory.headroom import demand, fixed, headroom, limit, oversubscribed, share
from nvshare.core.memory.policy import multiprogramming
from nvshare.core.memory.policy.demand import compatible
from nvshare.core.memory.policy.queue import fitting_set
from nvshare.core.settings import Mode, Settings
from nvshare.core.state import Attachment, Client, GpuState, Standing


def takes_turns(settings: Settings, gpu: GpuState) -> bool:
    """Whether the clients of a card have to take turns, as its memory is now."""
    asked, missing = gpu.demand, bool(gpu.lacking or gpu.pending)
    if asked <= gpu.capacity:  # and so not more than the limit, which takes longer to compute
        return settings.mode is Mode.SERIAL
    return multiprogramming.takes_turns(settings.mode, asked, limit(gpu), missing)


def reason(settings: Settings, gpu: GpuState) -> str:
    """Why the card is run the way it is, for people."""
    turns = takes_turns(settings, gpu)
    return multiprogramming.explain(settings, gpu.demand, gpu.capacity, turns)


def chosen(settings: Settings, gpu: GpuState) -> list[Attachment]:
    """The waiters whose turn it is: as many from the front of the queue as fit, with their memory and their demand for
    compute, beside the clients that run or drain. A waiter that could not run now even with the card to itself does not
    hold the others up."""
    if not gpu.turns:
        return list(gpu.queue.values())
    serial = settings.mode is Mode.SERIAL
    if serial and (gpu.running or gpu.draining):
        return []
    waiting = (
        attachment
        for attachment in gpu.queue.values()
        if can_ever_run(attachment.client) and not is_overtaken(attachment)
    )
    if serial:
        return list(islice(waiting, 1))
    here = headroom(gpu)
    fitting = fitting_set(
        waiting,
        lambda attachment: 0 if attachment.standing is Standing.DRAINING else share(attachment, here),
        here.free,
    )
    first_stuck = next((index for index, each in enumerate(fitting) if each.standing is Standing.STUCK), 0)
    if first_stuck:  # the clients that fit beside a stuck one run before its next turn
        fitting = fitting[:first_stuck]
    return fitting[: _compatible(fitting, gpu)] if fitting else fitting


def waiters(gpu: GpuState) -> tuple[list[Attachment], list[Attachment]]:
    """The waiters that can run when others make room, and those that cannot; each in the order of arrival."""
    able: list[Attachment] = []
    unable: list[Attachment] = []
    for attachment in gpu.queue.values():
        (able if can_ever_run(attachment.client) and not is_overtaken(attachment) else unable).append(attachment)
    return able, unable


def can_ever_run(client: Client) -> bool:
    """On each of its cards the client's memory is there already, or fits beside what cannot be moved there now."""
    if client.sleep.lost:
        return False
    for attachment in client.gpus.values():
        if attachment.silent:
            return False
        if attachment.whole or not oversubscribed(attachment.gpu):
            continue
        here = headroom(attachment.gpu)
        if not here.enough_for_each and demand(attachment) > here.size:
            return False
    return True


def is_overtaken(attachment: Attachment) -> bool:
    """Other waiters go first: this client has no compute credit to use the memory with, and one of them has some."""
    if not attachment.compute.throttled:
        return False
    return any(can_ever_run(other.client) and not other.compute.throttled for other in attachment.gpu.queue.values())


def may_begin(settings: Settings, attachment: Attachment) -> bool:
    """The client's turn has come on this card, or would if the client waited there alone."""
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
    return share(attachment, here) <= here.free and bool(_compatible([attachment], gpu))


def is_contended(settings: Settings, gpu: GpuState) -> bool:
    """A waiter could run if a holder left."""
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
        kept = fitting_set(holders, lambda attachment: share(attachment, here), here.size)
    return [
        attachment
        for attachment in holders
        if attachment not in kept or (gpu.pending and _has_more_than_its_share(attachment))
    ]


def _compatible(waiting: list[Attachment], gpu: GpuState) -> int:
    """How many of these, from the first on, may run beside the holders as far as compute goes."""
    return compatible(
        [attachment.demand for attachment in waiting], [attachment.demand for attachment in gpu.running.values()]
    )


def _has_more_than_its_share(attachment: Attachment) -> bool:
    """A client that may be larger than the card makes room when another asks for memory that must be there."""
    return attachment.client.oversize and attachment.held > fixed(attachment) + share(
        attachment, headroom(attachment.gpu)
    )
