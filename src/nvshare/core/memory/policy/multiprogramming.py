"""Degree of multiprogramming: do the clients of a card run side by side, or in turns?

Guarantees: outside serial mode nobody takes turns while all memory is on the card, or can be. In serial mode one client
runs at a time. Memory that does not fit cannot be used at once, so concurrent mode takes turns then, like auto mode.
"""

from __future__ import annotations

from nvshare.core.settings import Mode, Settings

MIB = 1 << 20


def takes_turns(mode: Mode, asked: int, limit: int, missing: bool) -> bool:
    """``asked``: bytes that clients have and wait for. ``limit``: bytes that may be on the card. ``missing``: some
    client lacks memory on the card. Bytes that were adopted beyond a card's declared size, but are all on the card,
    need no turns."""
    return mode is Mode.SERIAL or (missing and asked > limit)


def explain(settings: Settings, asked: int, capacity: int, turns: bool) -> str:
    """Why the card is run the way it is, for people. ``turns``: what ``takes_turns`` says."""
    if not settings.anti_thrash:
        return "anti-thrash is off: all run freely"
    if settings.mode is Mode.SERIAL:
        return "serial mode: one task at a time"
    sizes = f"{asked // MIB} > {capacity // MIB} MB"
    if turns:
        too = "; concurrent mode takes turns too then" if settings.mode is Mode.CONCURRENT else ""
        return f"memory does not fit ({sizes}){too}"
    if settings.mode is Mode.CONCURRENT:
        return "concurrent mode: all at once"
    if asked <= capacity:
        return f"memory fits ({asked // MIB} <= {capacity // MIB} MB)"
    return f"memory is over the card's size ({sizes}) but all of it is on the card"
