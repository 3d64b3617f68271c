"""The life of a slice, the same on both sides of the socket.

``make generate`` writes this table for C (``native/client/slice_table.h``), and a test compares it with the diagram in
docs/compute.md.
"""

from __future__ import annotations

import enum


class State(enum.IntEnum):
    """What a client has on a card."""

    NONE = 0
    ASKED = 1  # it asked for a slice
    HELD = 2  # it has one and submits
    CLOSING = 3  # its gate is shut, and work of the slice is in flight


class Change(enum.IntEnum):
    ASK = 0
    GIVE = 1  # a slice, or another length of the one that is held
    CLOSE = 2  # the client submits no more
    END = 3  # all work of the slice has ended
    STICK = 4  # work does not end in time: it runs on, and nobody waits for it
    VOID = 5  # the grant or the need for slices is gone


_NEXT: dict[State, dict[Change, State]] = {
    State.NONE: {
        Change.ASK: State.ASKED,
        Change.GIVE: State.HELD,  # asked for before something made the request void
        Change.VOID: State.NONE,
    },
    State.ASKED: {Change.ASK: State.ASKED, Change.GIVE: State.HELD, Change.VOID: State.NONE},
    State.HELD: {
        Change.ASK: State.HELD,  # it did not know
        Change.GIVE: State.HELD,
        Change.CLOSE: State.CLOSING,
        Change.END: State.NONE,
        Change.STICK: State.NONE,
        Change.VOID: State.NONE,
    },
    State.CLOSING: {
        Change.ASK: State.CLOSING,  # said again with the end
        Change.GIVE: State.CLOSING,  # too late
        Change.CLOSE: State.CLOSING,
        Change.END: State.NONE,
        Change.STICK: State.NONE,
        Change.VOID: State.NONE,
    },
}


class IllegalChange(Exception):
    """A slice cannot change so. A fault of this program, whatever clients send."""


def table() -> dict[tuple[State, Change], State]:
    """All legal changes."""
    return {(state, change): after for state, row in _NEXT.items() for change, after in row.items()}


def after(state: State, change: Change) -> State:
    """``IllegalChange`` when there is no such change."""
    try:
        return _NEXT[state][change]
    except KeyError:
        raise IllegalChange(f"{change.name} of a slice that is {state.name}") from None
