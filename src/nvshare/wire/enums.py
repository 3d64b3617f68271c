"""The enumerations of the protocol. ``messages.py`` offers them too; ``make generate`` writes them for C."""

from __future__ import annotations

import enum


class MessageType(enum.IntEnum):
    """What a payload is. Users know the names of 1 to 14. A receiver skips a type that it does not know."""

    REGISTER = 1
    SCHED_ON = 2
    SCHED_OFF = 3
    REQ_LOCK = 4
    LOCK_OK = 5
    DROP_LOCK = 6
    LOCK_RELEASED = 7
    SET_TQ = 8
    MEM_UPDATE = 9
    WAIT_FOR_MEM = 10
    MEM_AVAILABLE = 11
    PREPARE_SWAP_OUT = 12
    UPDATE_LIMIT = 13
    UPDATE_CORE_LIMIT = 14
    REFUSED = 15
    ATTACH = 16
    MEM_REQUEST = 17
    MEM_DENIED = 18
    USAGE = 19
    CONTROL = 20
    CONTROL_REPLY = 21
    RESIDENCY = 22
    TERMS = 23
    REQ_TURN = 24
    TURN_OK = 25
    END_TURN = 26
    TURN_OVER = 27
    SHARE = 28
    SHARE_REPLY = 29
    SLEEPABLE = 30
    SLEEP = 31
    SLEPT = 32
    REQ_WAKE = 33
    WAKE = 34
    AWAKE = 35


class ReleaseReason(enum.IntEnum):
    """Why a client gives up its grant."""

    TOLD = 0  # it was sent DROP_LOCK
    IDLE = 1  # it has submitted nothing and run nothing for a while, and others wait
    ENDED = 2  # the quantum that came with the grant is over
    STUCK = 3  # the drain passed its deadline: the client's work still runs


class TurnReason(enum.IntEnum):
    """Why a slice is over."""

    ENDED = 0  # its time is used up
    IDLE = 1  # the client has had nothing to do for a while
    TOLD = 2  # it was sent END_TURN
    STUCK = 3  # work did not end in time; it runs on beside the work of others


class DenyReason(enum.IntEnum):
    """What stands against a memory request."""

    QUOTA = 1  # the memory quota of the client's group
    CARD = 2  # the card: what cannot move leaves too little room
    HOST = 3  # the host: it has no room for what would have to leave the card


class RefusalCode(enum.IntEnum):
    """Why the scheduler ends a connection."""

    VERSION = 1  # the client speaks another VERSION; it does not try again
    MALFORMED = 2  # a message does not parse, or cannot be meant
    UNKNOWN_GPU = 3  # the scheduler does not have this GPU
    LIMIT = 4  # too many connections, or the core expelled the client


class BarReason(enum.IntEnum):
    """Why a client cannot sleep."""

    NONE = 0  # it can
    DRIVER = 1  # the driver has no checkpoint calls
    MANAGED = 2  # the process has managed memory
    IPC = 3  # memory is shared with another process, or exported
    MPS = 4  # the process runs under MPS
    GRAPHICS = 5  # external or mapped memory of a graphics API
    UNGATED = 6  # the program has driver functions that do not pass the gate
    DEBUGGER = 7  # a debugger or profiler is attached
    PINNED = 8  # memory that cannot leave the card
    CONTEXTS = 9  # contexts of a kind that the driver cannot restore


class SleptOutcome(enum.IntEnum):
    """How a SLEEP ended. After all but the first the client is awake, with its contexts where they were."""

    ASLEEP = 0  # the contexts are off all cards
    DECLINED = 1  # the client cannot sleep: nothing was tried
    FAILED = 2  # the driver refused
    WOKE = 3  # a thread wanted the driver before the lock: nothing was tried
