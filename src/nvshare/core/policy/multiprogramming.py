"""Degree of multiprogramming: do the clients of a card run side by side or in turns, and how much of the card is one
client's turn.

Guarantees: in auto mode nobody takes turns while all memory is on the card; in concurrent mode nobody ever does; in
serial mode one client's turn is the whole card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvshare.core.settings import Mode, Settings

if TYPE_CHECKING:
    from nvshare.core.state import Attachment, GpuState

MIB = 1 << 20


def takes_turns(settings: Settings, gpu: GpuState) -> bool:
    """In auto mode turns begin when memory does not fit *and* some of it lies on the host: bytes that were adopted
    beyond a card's declared size but are all on the card need no turns."""
    if settings.mode is Mode.SERIAL:
        return True
    return settings.mode is Mode.AUTO and gpu.host > 0 and gpu.allocated > gpu.capacity


def turn_share(settings: Settings, place: Attachment) -> int:
    """What this client's turn takes of the card: at least 1, at most all of ``card_share``."""
    whole = card_share(settings, place.gpu)
    return whole if settings.mode is Mode.SERIAL else max(1, min(place.need or place.allocated, whole))


def card_share(settings: Settings, gpu: GpuState) -> int:
    return 1 if settings.mode is Mode.SERIAL else max(1, gpu.capacity)


def free_share(settings: Settings, gpu: GpuState) -> int:
    """What of the card is not used by those who run or drain; a stuck client uses nothing, or all would wait for it."""
    if settings.mode is Mode.SERIAL:
        return 0 if gpu.running or gpu.draining else 1
    used = sum(turn_share(settings, place) for places in (gpu.running, gpu.draining) for place in places.values())
    return max(0, card_share(settings, gpu) - used)


def reason(settings: Settings, gpu: GpuState) -> str:
    """Why the card is run the way it is, for people."""
    if not settings.anti_thrash:
        return "anti-thrash is off: all run freely"
    if settings.mode is Mode.SERIAL:
        return "serial mode: one task at a time"
    if settings.mode is Mode.CONCURRENT:
        return "concurrent mode: all at once"
    allocated, capacity = gpu.allocated // MIB, gpu.capacity // MIB
    if gpu.allocated <= gpu.capacity:
        return f"memory fits ({allocated} <= {capacity} MB)"
    if takes_turns(settings, gpu):
        return f"memory does not fit ({allocated} > {capacity} MB)"
    return f"memory is over the card's size ({allocated} > {capacity} MB) but all of it is on the card"
