"""What a scheduler wants done. The shell (daemon or model) carries commands out in order and never decides anything."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvshare.core.settings import DenyReason


@dataclass(frozen=True)
class Command:
    pass


@dataclass(frozen=True)
class SchedOn(Command):
    client: int


@dataclass(frozen=True)
class SchedOff(Command):
    client: int


@dataclass(frozen=True)
class Grant(Command):
    """LOCK_OK. Issued again with the same number when its terms change, or when the client asks for what it has."""

    client: int
    gpu: str
    grant: int
    exclusive: bool = False
    contended: bool = False
    quantum: float | None = None  # seconds from the first grant with this number, while contended; None: until told


@dataclass(frozen=True)
class Drop(Command):
    """DROP_LOCK. The deadline is in seconds from now."""

    client: int
    gpu: str
    grant: int
    deadline: float


@dataclass(frozen=True)
class SetTerms(Command):
    """TERMS: how the client runs while it holds the grant: in slices, with so many seconds of work in flight, or
    freely. Freely makes a slice that it has void."""

    client: int
    gpu: str
    slices: bool
    in_flight: float = 0.0


@dataclass(frozen=True)
class GiveSlice(Command):
    """TURN_OK. Issued again with the same number when its length changes, counted from the first."""

    client: int
    gpu: str
    number: int
    length: float | None  # seconds; None: until told
    patience: float = 0.001  # seconds without work after which a slice with a length ends


@dataclass(frozen=True)
class EndSlice(Command):
    """END_TURN."""

    client: int
    gpu: str
    number: int


@dataclass(frozen=True)
class GrantMemory(Command):
    client: int
    gpu: str
    request: int
    bytes: int


@dataclass(frozen=True)
class KeepMemory(Command):
    """MEM_AVAILABLE for bytes that the client has already: they may stay on the card for good."""

    client: int
    gpu: str
    request: int
    bytes: int


@dataclass(frozen=True)
class HoldMemory(Command):
    """WAIT_FOR_MEM: the answer comes later."""

    client: int
    gpu: str
    request: int
    bytes: int


@dataclass(frozen=True)
class DenyMemory(Command):
    client: int
    gpu: str
    request: int
    bytes: int
    limit: int
    reason: DenyReason


@dataclass(frozen=True)
class SetResidency(Command):
    """RESIDENCY: the bytes that the client may have on the card from now on."""

    client: int
    gpu: str
    number: int
    target: int


@dataclass(frozen=True)
class PrepareSwapOut(Command):
    """PREPARE_SWAP_OUT: so many bytes may have to leave the card when the client's turn ends."""

    client: int
    gpu: str
    bytes: int


@dataclass(frozen=True)
class GoToSleep(Command):
    """SLEEP: take your contexts off all cards. The driver's lock may take so many seconds."""

    client: int
    order: int
    lock: float
    context: int  # bytes that its context takes on a card at most; 0: not known


@dataclass(frozen=True)
class WakeUp(Command):
    """WAKE: the room of the client's contexts is reserved on all its cards."""

    client: int
    order: int


@dataclass(frozen=True)
class SetLimit(Command):
    """UPDATE_LIMIT: the group's memory quota on this GPU (None: none) and the declared card."""

    client: int
    gpu: str
    mem_limit: int | None
    card: int


@dataclass(frozen=True)
class SetCoreLimit(Command):
    client: int
    percent: int


class Fault(enum.Enum):
    """What kind of rule a client broke."""

    MALFORMED = "malformed"
    UNKNOWN_GPU = "unknown GPU"
    LIMIT = "limit"


@dataclass(frozen=True)
class Expel(Command):
    """The client broke the rules; its connection is closed with this reason. The scheduler has forgotten it already."""

    client: int
    reason: str
    fault: Fault = Fault.LIMIT


@dataclass(frozen=True)
class Refuse(Command):
    """The registration is impossible, and nothing of it was taken in; its connection is closed with this reason."""

    client: int
    reason: str
    fault: Fault = Fault.LIMIT


@dataclass(frozen=True)
class AwaitPod(Command):
    """The registration waits; nothing more is read from this client until ``Registered``."""

    client: int


@dataclass(frozen=True)
class Registered(Command):
    """The last command of a registration. Nothing is sent to the client for it."""

    client: int
    group: str


@dataclass(frozen=True)
class RegisterAgain(Command):
    """The client belongs to another group now: its connection is closed, and it comes back."""

    client: int


@dataclass(frozen=True)
class SampleCards(Command):
    """Look at what processes take on the cards, and answer with ``CardsSampled``. Ignored while a look is on its way:
    the scheduler orders again what that one does not cover."""

    sample: int


@dataclass(frozen=True)
class GroupAppeared(Command):
    """A group is there (again): what an operator set for it before the scheduler was restarted counts."""

    group: str
    owner: int | None  # the process that says the group is its own; None: the kernel says whose it is


@dataclass(frozen=True)
class RunGranted(Command):
    """The answer to ``RunOpened``."""

    pid: int
    inside: str | None  # the group whose quotas count instead


@dataclass(frozen=True)
class LeaseGranted(Command):
    """The answer to ``LeaseRequested``, at once or later. Cards by UUID, the least loaded first."""

    lease: str
    gpus: tuple[str, ...]
    group: str
    inside: str | None  # the group whose quotas count instead


@dataclass(frozen=True)
class LeaseRefused(Command):
    """It can never be granted, or no longer; the scheduler has forgotten it."""

    lease: str
    reason: str


@dataclass(frozen=True)
class LeasesAwaitedNoMore(Command):
    """Who held a lease under an earlier scheduler has it again, or has lost it."""


@dataclass(frozen=True)
class WakeAt(Command):
    """Send ``TimerFired`` at this time. A later one replaces an earlier one."""

    at: float | None


class Level(enum.Enum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"


@dataclass(frozen=True)
class Log(Command):
    level: Level
    text: str
