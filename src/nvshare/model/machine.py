"""The client's state machine, ``native/client``: the same object code that decides inside ``libnvshare.so``.

Names and values are those of ``native/client/client.h``; a test compares them. Times are nanoseconds.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from typing import NamedTuple

from nvshare import native

MAX_ACTIONS = 128
STORY_BYTES = 2048


class EventType(enum.IntEnum):
    CONTROL = 0
    LOST = 1
    CARD = 2
    GRANT = 3
    DROP = 4
    TERMS = 5
    GIVE = 6
    END = 7
    WANT = 8
    WORK = 9
    IDLE = 10
    PENDING = 11
    ENDED = 12
    PLACE = 13
    DRAINED = 14
    TIME = 15
    SLEEP = 16
    WAKE = 17
    CALL = 18
    HELD = 19
    LEFT = 20
    ROOM = 21
    RETURNED = 22


class Do(enum.IntEnum):
    SET_GATE = 0
    SEND_REQ_LOCK = 1
    SEND_RELEASED = 2
    SEND_REQ_TURN = 3
    SEND_TURN_OVER = 4
    BEGIN_SLICE = 5
    WATCH_IDLE = 6
    CLOSE_SLICE = 7
    COUNT_USED = 8
    COUNT_BY = 9
    TAKE_GRANT = 10
    DRAIN_TURN = 11
    LOOK_DRAINED = 12
    OPEN_MEMORY = 13
    SHUT_MEMORY = 14
    FREE_MEMORY = 15
    TELL_STUCK = 16
    REPORT = 17
    SET_ENTRY = 18
    LOOK_HELD = 19
    LEAVE_CARDS = 20
    RETURN_TO_CARDS = 21
    LOOK_ROOM = 22
    SEND_SLEPT = 23
    SEND_REQ_WAKE = 24
    SEND_AWAKE = 25


class Gate(enum.IntEnum):
    """OPEN and PACED let submissions through, SHUT waits for a turn, REST for a slice."""

    OPEN = 0
    PACED = 1
    SHUT = 2
    REST = 3


class Entry(enum.IntEnum):
    """Calls pass, wait until all are out, wait while the contexts are away, or get an error."""

    OPEN = 0
    HELD = 1
    SHUT = 2
    BROKEN = 3


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("card", ctypes.c_uint32),
        ("now", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("at", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("patience", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("waits", ctypes.c_uint32),
        ("names", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class _Action(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("card", ctypes.c_uint32),
        ("number", ctypes.c_uint64),
        ("at", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("reason", ctypes.c_uint32),
        ("gate", ctypes.c_uint32),
        ("wants", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class _Actions(ctypes.Structure):
    _fields_ = (
        ("wake_at", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("list", _Action * MAX_ACTIONS),
    )


class _Seen(ctypes.Structure):
    _fields_ = (("samples", ctypes.c_uint64), ("in_flight", ctypes.c_uint64), ("marked", ctypes.c_bool))


class Action(NamedTuple):
    type: Do
    card: int
    number: int
    at: int
    used: int
    length: int
    reason: int
    gate: int
    wants: bool


@functools.cache
def library() -> ctypes.CDLL:
    """``native.NativeMissing`` when it was not built."""
    path = native.client_machine()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise native.NativeMissing(f"{path} cannot be loaded ({error}); run: make native") from error
    loaded.nvs_client_size.restype = ctypes.c_size_t
    loaded.nvs_client_handle.restype = None
    loaded.nvs_client_story.restype = None
    loaded.nvs_bill_busy.restype = ctypes.c_uint64
    loaded.nvs_bill_busy.argtypes = (ctypes.POINTER(_Seen), ctypes.c_uint64)
    return loaded


class Machine:
    """One client. ``feed`` an event, carry out what comes back, in order; ``wake_at`` says when TIME is due."""

    def __init__(self) -> None:
        self._library = library()
        self._state = ctypes.create_string_buffer(self._library.nvs_client_size())
        self._event = _Event()
        self._actions = _Actions()
        self._handle = self._library.nvs_client_handle
        self._arguments = self._state, ctypes.byref(self._event), ctypes.byref(self._actions)
        self.wake_at = 0  # 0: not before something else happens

    def feed(
        self,
        kind: EventType,
        now: int,
        *,
        card: int = 0,
        number: int = 0,
        at: int = 0,
        length: int = 0,
        patience: int = 0,
        flags: int = 0,
        waits: int = 0,
    ) -> list[Action]:
        event = self._event
        event.type, event.card, event.now = kind, card, now
        event.number, event.at, event.length, event.patience = number, at, length, patience
        event.flags, event.waits = flags, waits
        self._handle(*self._arguments)
        self.wake_at = self._actions.wake_at
        found = self._actions.list
        return [
            Action(
                Do(one.type), one.card, one.number, one.at, one.used, one.length, one.reason, one.gate, bool(one.wants)
            )
            for one in (found[index] for index in range(self._actions.count))
        ]

    @property
    def story(self) -> str:
        """The recent events and changes, for people."""
        text = ctypes.create_string_buffer(STORY_BYTES)
        self._library.nvs_client_story(self._state, text, ctypes.c_size_t(STORY_BYTES))
        return text.value.decode()


def busy_part(in_flight: int, used: int) -> int:
    """The part of what was used in which the card was at work for this client, when work was in flight for so long."""
    seen = _Seen(0, in_flight, True)
    return int(library().nvs_bill_busy(ctypes.byref(seen), used))
