"""Quantum of round-robin turns.

Guarantees: a turn lasts at most ``max_runtime`` while others wait. A quantum that follows from the cost of a switch
keeps that cost to 2 % of the time and lasts at least ``multiplier`` times as long, where ``max_runtime`` allows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvshare.core.settings import QUANTUM_MIN, Settings, SwitchTime

SWITCH_SHARE = 0.02  # part of the time that switching may take
AUTO_FLOOR = 2.0  # seconds; below it, waking up and refilling caches would show
REMEMBERED = 6  # switches


def quantum(settings: Settings, stall: float) -> float:
    """Seconds of a turn on a card whose switches keep it from working for ``stall`` seconds each."""
    if settings.switch_time is SwitchTime.FIXED:
        return max(QUANTUM_MIN, min(settings.quantum, settings.max_runtime))
    wanted = max(settings.multiplier * stall, stall / SWITCH_SHARE, AUTO_FLOOR)
    return min(wanted, settings.max_runtime)


def explain(settings: Settings, stall: float) -> str:
    """Why the quantum is as long as it is, for people."""
    if settings.switch_time is SwitchTime.FIXED:
        return "fixed"
    if quantum(settings, stall) == settings.max_runtime:
        return f"the longest allowed; a switch stalls the card for {stall:.3f} s"
    if quantum(settings, stall) == AUTO_FLOOR:
        return f"the shortest; a switch stalls the card for {stall:.3f} s"
    if settings.multiplier * stall >= stall / SWITCH_SHARE:
        return f"{settings.multiplier:g} x the stall of a switch ({stall:.3f} s)"
    return f"a switch stalls the card for {stall:.3f} s, {SWITCH_SHARE:.0%} of the time at most"


def longest_turn(settings: Settings) -> float:
    """The longest a client may delay those behind it: its quantum, whatever its switches cost, and its drain."""
    bound = settings.max_runtime if settings.switch_time is SwitchTime.AUTO else quantum(settings, 0.0)
    return bound + settings.drain_deadline


def typical(stalls: Sequence[float]) -> float:
    """Seconds in which a switch keeps a card from working, by the last ones: their mean without the longest. A switch
    that something else held up, as the first often is, would make the turns after it too long."""
    if len(stalls) < 2:
        return stalls[0] if stalls else 0.0
    return (sum(stalls) - max(stalls)) / (len(stalls) - 1)
