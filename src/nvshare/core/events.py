"""What can happen to a scheduler. Every change of its state begins with one of these; time comes in with the event.

Times are seconds on any clock that only goes forward; sizes are bytes; a GPU is named by its UUID.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nvshare.core.policy.membership import Process
from nvshare.core.settings import Cores, Mode, Priority, SliceEnd, SwitchTime
from nvshare.core.sleep.state import Bar, Outcome


@dataclass(frozen=True)
class Event:
    now: float


@dataclass(frozen=True)
class GpuAdded(Event):
    """A card (or MIG instance) of this node. ``total`` is what the driver says it has."""

    gpu: str
    total: int
    name: str = ""
    declared: int | None = None  # what all tasks together may allocate; None: total less reserve and contexts
    contexts_inside: bool = False  # the declared size holds the contexts too


@dataclass(frozen=True)
class HeldGpu:
    """A GPU that a client uses, and what it says it already holds there (not zero only when it registers again)."""

    gpu: str
    allocated: int = 0
    resident: int = 0
    grant: int = 0


@dataclass(frozen=True)
class ClientRegistered(Event):
    """A process made its first context. The kernel says which ``process`` it is; the rest is what the process says."""

    client: int
    process: Process
    gpus: tuple[HeldGpu, ...]
    name: str = ""
    pod_name: str = ""  # counts only where the process is in a pod
    pod_namespace: str = ""
    can_swap: bool = False
    asleep: bool = False  # its contexts are on no card
    oversize: bool = False  # it may be larger than a card
    mem_limit: int | None = None  # start values from the environment, used where the group has none
    core_limit: Cores | None = None
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True)
class GpuAttached(Event):
    """A registered process made a context on further GPUs."""

    client: int
    gpus: tuple[HeldGpu, ...]


@dataclass(frozen=True)
class ClientGone(Event):
    """The process ended or its connection broke."""

    client: int


@dataclass(frozen=True)
class LockRequested(Event):
    """The client has work and no grant. Its GPUs form a gang: asking for one of them asks for all it has attached.
    A turn brings all the memory that the client has allocated."""

    client: int
    gpu: str


@dataclass(frozen=True)
class LockReleased(Event):
    client: int
    gpu: str
    grant: int
    stuck: bool = False  # the drain passed its deadline: the client's work still runs
    drain: float = 0.0  # seconds the drain took; only a modelled client says it


@dataclass(frozen=True)
class SliceRequested(Event):
    """The client holds the grant of this GPU and has work, but no slice."""

    client: int
    gpu: str


@dataclass(frozen=True)
class SliceOver(Event):
    """The client's gate is shut. Comes again, with ``pending`` 0 and the final figures, when all work has ended."""

    client: int
    gpu: str
    number: int
    used: float  # seconds with unfinished work, until now
    busy: float = 0.0  # part of it in which the GPU itself was at work for this client
    pending: float = 0.0  # seconds of work still in flight
    reason: SliceEnd = SliceEnd.ENDED
    wants: bool = False  # a submitter waits already


@dataclass(frozen=True)
class MemoryRequested(Event):
    client: int
    gpu: str
    request: int
    bytes: int
    stays: bool = False  # it can never be moved, whatever else the client can move


@dataclass(frozen=True)
class MemoryKept(Event):
    """Bytes that the client has already are to stay on the card for good; it waits for an answer."""

    client: int
    gpu: str
    request: int
    bytes: int


@dataclass(frozen=True)
class MemoryUpdated(Event):
    """``released`` is cumulative since registration: allocated = granted - released."""

    client: int
    gpu: str
    released: int
    resident: int
    host: int = 0
    pinned: int = 0
    applied: int = 0  # number of the last SetResidency that the client keeps to


@dataclass(frozen=True)
class SleepableSaid(Event):
    """The client says whether it can sleep. ``context``: bytes, from one that registered asleep; 0: not known."""

    client: int
    bar: Bar
    context: int = 0


@dataclass(frozen=True)
class SleepEnded(Event):
    """How an order to sleep ended. All but one outcome leave the client awake."""

    client: int
    order: int
    outcome: Outcome
    bar: Bar = Bar.NONE
    error: int = 0  # CUresult


@dataclass(frozen=True)
class WakeRequested(Event):
    """The client is asleep, and a thread of it wants the driver."""

    client: int
    order: int


@dataclass(frozen=True)
class WakeEnded(Event):
    """The client's contexts are back; with an error they are not, and it sleeps on."""

    client: int
    order: int
    error: int = 0  # CUresult


@dataclass(frozen=True)
class SleepOrdered(Event):
    """An operator puts a client to sleep."""

    client: int


@dataclass(frozen=True)
class WakeOrdered(Event):
    """An operator wakes a client."""

    client: int


@dataclass(frozen=True)
class ContextMeasured(Event):
    """What NVML says a client's process takes on a card beyond what it allocated."""

    client: int
    gpu: str
    bytes: int


@dataclass(frozen=True)
class Unmanaged:
    """A process on a card that is no client: what it has there cannot be planned, only planned around."""

    pid: int  # 0 where it has no number here
    name: str
    bytes: int | None  # None where the driver does not tell


@dataclass(frozen=True)
class UnmanagedSeen(Event):
    """Everybody on a card who is no client, as of now."""

    gpu: str
    users: tuple[Unmanaged, ...]


@dataclass(frozen=True)
class UsageReported(Event):
    """Counters of one client on one GPU, cumulative since registration (the window: now)."""

    client: int
    gpu: str
    occupied: float  # seconds with unfinished work on the GPU
    submissions: int
    window: int
    swapped_out: int = 0
    swapped_in: int = 0


@dataclass(frozen=True)
class SettingsChanged(Event):
    """An operator's change; None leaves a setting as it is."""

    mode: Mode | None = None
    anti_thrash: bool | None = None
    switch_time: SwitchTime | None = None
    quantum: float | None = None
    max_runtime: float | None = None


@dataclass(frozen=True)
class SettingsReset(Event):
    """What operators changed is again as the scheduler was started."""


@dataclass(frozen=True)
class CardsSampled(Event):
    """A sample of what processes take on the cards was taken; what it showed came before this as other events."""

    sample: int  # the number of the latest ``SampleCards`` before it began


@dataclass(frozen=True)
class RunOpened(Event):
    """``nvshare run``: a process opened a group for itself and all processes below it, until ``RunClosed``."""

    process: Process
    label: str = ""
    mem_limit: int | None = None
    core_limit: Cores | None = None
    priority: Priority | None = None


@dataclass(frozen=True)
class RunAwaited(Event):
    """A process that had a run before the scheduler was restarted will open it again. It groups the processes below it
    until then as after it."""

    process: Process


@dataclass(frozen=True)
class RunClosed(Event):
    """The run of a process is over, whether or not it was opened again."""

    pid: int


@dataclass(frozen=True)
class Pod:
    """A pod of this node as the Kubernetes API describes it."""

    uid: str
    namespace: str
    name: str
    gpumem: int | None = None  # bytes, from its resources
    mem: int | None = None  # bytes, from its annotation
    cores: Cores | None = None  # from its annotations


@dataclass(frozen=True)
class PodSeen(Event):
    """The pod watch tells of a pod, for the first time or because something changed."""

    pod: Pod


@dataclass(frozen=True)
class PodGone(Event):
    uid: str


@dataclass(frozen=True)
class PodsListed(Event):
    """The pod watch has told of all pods of this node, and tells of each further one soon after it is there."""


@dataclass(frozen=True)
class LimitsChanged(Event):
    """An operator's change of one group's quotas. Fields named in ``clear`` go back to their default."""

    group: str
    mem_limit: int | None = None
    core_limit: Cores | None = None
    priority: Priority | None = None
    clear: frozenset[str] = field(default_factory=frozenset)
    kept: bool = False  # it was set before a restart: a floor that finds no room now waits instead of being refused


@dataclass(frozen=True)
class LeasesAwaited(Event):
    """Leases were held under an earlier scheduler: their holders come back before others are served."""


@dataclass(frozen=True)
class LeaseRequested(Event):
    """A process wants a reservation on cards for its processes, which form the group ``lease:<id>``."""

    lease: str
    holder: Process
    label: str = ""
    mem: int | None = None  # bytes, on each of its cards
    cores: Cores | None = None  # on each of them
    count: int = 1  # different cards
    among: tuple[str, ...] | None = None  # those it may have; None: any
    held: tuple[str, ...] = ()  # what it had under an earlier scheduler and has on, or loses


@dataclass(frozen=True)
class LeaseReleased(Event):
    """The holder of a lease is gone. ``left``: what of it is still there, in words; its place is kept until this comes
    again with nothing left."""

    lease: str
    left: str = ""


@dataclass(frozen=True)
class TimerFired(Event):
    """The time of an earlier ``WakeAt`` has come (or any other moment: a timer that fires early does no harm)."""
