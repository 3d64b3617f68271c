"""The life of a client's contexts: on its cards, on their way, or off them. One table says how it may change."""

from __future__ import annotations

import enum


class State(enum.Enum):
    AWAKE = "awake"
    LEAVING = "leaving"  # it is to sleep; its memory leaves the cards first
    ORDERED = "ordered"  # it was sent SLEEP
    ASLEEP = "asleep"  # its contexts are off all cards, and their room is free
    CALLED = "called"  # it is to wake; the room of its contexts is being made
    WAKING = "waking"  # it was sent WAKE


class Change(enum.Enum):
    CHOOSE = "choose"
    SPARE = "spare"  # the room is no longer needed, or it has work
    ORDER = "order"
    SLEEP = "sleep"
    STAY = "stay"  # it declined, the driver refused, or a thread wanted the driver
    CALL = "call"
    DISMISS = "dismiss"  # its turn has passed to another
    WAKE = "wake"
    RISE = "rise"
    FAIL = "fail"  # the driver could not restore it


_NEXT: dict[State, dict[Change, State]] = {
    State.AWAKE: {Change.CHOOSE: State.LEAVING},
    State.LEAVING: {Change.SPARE: State.AWAKE, Change.ORDER: State.ORDERED},
    State.ORDERED: {Change.SLEEP: State.ASLEEP, Change.STAY: State.AWAKE},
    State.ASLEEP: {Change.CALL: State.CALLED},
    State.CALLED: {Change.DISMISS: State.ASLEEP, Change.WAKE: State.WAKING},
    State.WAKING: {Change.RISE: State.AWAKE, Change.FAIL: State.ASLEEP},
}


class IllegalChange(Exception):
    """A client cannot change so. A fault of this program, whatever clients send."""


def table() -> dict[tuple[State, Change], State]:
    """All legal changes."""
    return {(state, change): after for state, row in _NEXT.items() for change, after in row.items()}


def after(state: State, change: Change) -> State:
    """``IllegalChange`` when there is no such change."""
    try:
        return _NEXT[state][change]
    except KeyError:
        raise IllegalChange(f"{change.name} of a client that is {state.name}") from None
