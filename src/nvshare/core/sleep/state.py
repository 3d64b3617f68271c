"""What the scheduler knows about the sleep of one client. ``sleepers.py`` changes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvshare.core.sleep.lifecycle import State


class Bar(enum.IntEnum):
    """Why a client cannot sleep."""

    NONE = 0
    DRIVER = 1
    MANAGED = 2
    IPC = 3
    MPS = 4
    GRAPHICS = 5
    UNGATED = 6
    DEBUGGER = 7
    PINNED = 8
    CONTEXTS = 9
    OTHER = 255  # a reason that this release does not know


WORDS = {
    Bar.DRIVER: "the driver cannot checkpoint a process (release 570 and later can)",
    Bar.MANAGED: "it has managed memory",
    Bar.IPC: "it shares memory with another process",
    Bar.MPS: "it runs under MPS",
    Bar.GRAPHICS: "it uses memory of a graphics API",
    Bar.UNGATED: "its program calls the driver past nvshare",
    Bar.DEBUGGER: "a debugger or profiler is attached",
    Bar.PINNED: "it has memory that cannot leave the card",
    Bar.CONTEXTS: "it has contexts that the driver cannot restore",
    Bar.OTHER: "its library says why, and this scheduler is too old to know",
}


class Why(enum.Enum):
    """Who wants a client to sleep, where no room is needed."""

    OPERATOR = "operator"
    IDLE = "idle"


class Outcome(enum.IntEnum):
    """How an order to sleep ended."""

    ASLEEP = 0
    DECLINED = 1
    FAILED = 2
    WOKE = 3


@dataclass(slots=True, eq=False)
class Sleep:
    state: State = State.AWAKE
    bar: Bar | None = None  # None: the client never said that it can sleep
    allowed: bool = False  # the settings let it be told without an operator
    why: Why | None = None  # until it sleeps, or has work
    order: int = 0  # number of the last SLEEP; 0: none since it registered
    answer_by: float | None = None  # while ordered or waking
    late: bool = False  # it did not answer by then: it is planned around until it does
    fault: int = 0  # CUresult of what the driver refused last; 0: nothing
    spared_until: float | None = None  # it wanted the driver when it was told to sleep
    active_at: float = 0.0  # when it last did something

    @property
    def able(self) -> bool:
        """As far as it says, and has shown."""
        return self.bar is Bar.NONE and not self.fault and not self.late and self.spared_until is None

    @property
    def is_here(self) -> bool:
        """Its contexts are on its cards, and stay there for now."""
        return self.state in (State.AWAKE, State.LEAVING)

    @property
    def moves(self) -> bool:
        """Its contexts are about to leave or to come."""
        return self.state not in (State.AWAKE, State.ASLEEP) and not self.late

    @property
    def lost(self) -> bool:
        """It neither runs nor lets others wait for it: its contexts did not come back, or it does not answer."""
        return not self.is_here and (self.late or self.fault != 0)
