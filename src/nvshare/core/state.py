"""What the scheduler knows: cards, clients, groups, and each client's attachment to each card.

Plain data, which changes only inside ``Scheduler.handle``. The ledger (``memory/ledger.py``) books bytes and targets,
``memory/turns.py`` changes standings and queues, ``memory/residency.py`` keeps the requests that wait for room,
``members.py`` what processes have opened, ``awaited_facts.py`` what waits for facts, ``scheduler.py`` and ``limits.py``
clients and their groups. Compute slices and sleep have a state of their own beside it: ``compute/state.py`` and
``sleep/state.py``.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass, field

from nvshare.core.commands import Command
from nvshare.core.compute.state import AttachmentCompute, CardCompute
from nvshare.core.events import ClientRegistered, Event, MemoryRequested, Unmanaged
from nvshare.core.memory.policy.quantum import REMEMBERED
from nvshare.core.policy.membership import Opened, Process, lease_group
from nvshare.core.policy.precedence import Layers
from nvshare.core.settings import SIZE_MAX, Cores, DenyReason, Priority, Settings
from nvshare.core.sleep.lifecycle import State
from nvshare.core.sleep.state import Sleep

STORY_LENGTH = 40  # events remembered for the message of a broken invariant
UNLIMITED = Cores()
DEMAND_UNKNOWN = 1.0  # of a client that was not measured yet
NO_TARGET = SIZE_MAX  # the target of a client that was never sent one: all that it is granted


class Standing(enum.Enum):
    """A client's standing on one card. Waiting is not a standing: a client waits for all of its cards at once."""

    IDLE = "idle"
    RUNNING = "running"  # holds a grant
    DRAINING = "draining"  # told to stop; the card is not given away until it answers or its deadline passes
    STUCK = "stuck"  # its drain passed the deadline: its work runs on, and nobody waits for it


@dataclass(slots=True, eq=False)
class Attachment:
    """One client on one card."""

    client: Client
    gpu: GpuState
    standing: Standing = Standing.IDLE
    grant: int = 0  # number of the grant that is held, being drained or stuck; 0 when idle
    exclusive: bool = False  # the terms last sent with that grant
    contended: bool = False
    quantum: float | None = None

    granted: int = 0  # bytes, since registration
    released: int = 0  # bytes, since registration
    allocated: int = 0  # always granted - released
    resident: int = 0
    host: int = 0
    pinned: int = 0
    context: int = 0  # as it was measured last while it was on the card
    context_here: int = 0  # of it
    asked_memory: bool = False  # it asked for memory, or had some when it registered
    prepared: int = 0  # the most bytes of any PrepareSwapOut it was sent
    wanted: int = 0  # bytes of its requests that wait for an answer

    target: int = NO_TARGET  # bytes it may have on the card, as it was last sent
    number: int = 0  # of that target; 0: it was never sent one
    applied: int = 0  # number of the target it says it keeps to
    earlier: list[tuple[int, int]] = field(default_factory=list)  # older targets it may keep to: number, bytes
    arrived: bool = True  # nothing of what its target allows is missing
    held: int = 0  # the most it can have on the card, whatever is still on its way
    confirm_by: float | None = None  # while others wait for it to keep to its target
    silent: bool = False  # it did not do so in time: it is planned around until it reports again
    had: int = 0  # bytes it can have on the card while it is silent

    occupied: float = 0.0
    demand: float = DEMAND_UNKNOWN  # part of the card's time it uses when nothing keeps it from doing so
    measured_at: float = 0.0  # when that was measured last, less all the time the client had waited by then
    submissions: int = 0
    window: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    switches: int = 0  # how often it took the card over from another client, in turns
    denied: int = 0  # requests for memory that were refused
    drain_timeouts: int = 0  # drains that passed their deadline
    compute: AttachmentCompute = field(default_factory=AttachmentCompute)

    @property
    def need(self) -> int:
        """Bytes that must be on the card for it to run."""
        return self.need_with(0)

    def need_with(self, more: int) -> int:
        """The need after ``more`` bytes of growth: all it has allocated. For a client that may be larger than the card,
        at most what fits beside memory that others never move."""
        size = self.allocated + more
        if not self.client.oversize:
            return size
        others = (attachment for attachment in self.gpu.attachments.values() if attachment is not self)
        return min(size, max(self.lasting, self.gpu.capacity - sum(attachment.lasting for attachment in others)))

    @property
    def lasting(self) -> int:
        """Bytes that stay on the card whatever happens."""
        return min(self.pinned, self.allocated) if self.client.can_swap else self.allocated

    @property
    def whole(self) -> bool:
        """All it needs is on the card and may stay there."""
        return self.arrived and self.target >= self.need and self.client.sleep.is_here

    @property
    def movable_context(self) -> int:
        """Bytes of its context that count on the card only while it runs: the client is asleep, or can be told so."""
        if not self.gpu.holds_contexts:
            return 0
        client = self.client
        return self.context if client.sleep.state is State.ASLEEP or client.gives_way else 0

    def changed(self) -> None:
        """Bytes or standing of the client on this card changed, and with them whether it can sleep."""
        self.gpu.changed()
        for other in self.client.gpus.values():
            other.gpu.changed()

    @property
    def bound(self) -> int:
        """The bytes it may have on the card once it keeps to its target."""
        return min(self.target, self.allocated)


@dataclass(frozen=True)
class Headroom:
    """The part of a card's capacity that memory which moves may use."""

    size: int
    free: int  # what clients that run or drain leave of it
    enough_for_each: bool  # the whole of it is enough for each client alone


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request for memory that waits until others have made room."""

    attachment: Attachment
    number: int
    size: int
    stays: bool = False


@dataclass(frozen=True)
class WaitingRegistration:
    """A registration that waits for the facts of its pod."""

    event: ClientRegistered
    by: float  # when it goes on without them


@dataclass(slots=True, eq=False)
class FirstRequests:
    """The first requests of a client on a card, which wait for a sample of the cards."""

    attachment: Attachment
    sample: int  # number of the sample that was ordered for them
    by: float  # when they are answered without it
    events: list[MemoryRequested] = field(default_factory=list)  # by arrival


@dataclass(frozen=True)
class Switch:
    """What it took to hand a card from one client to another."""

    out: int  # bytes that left the card
    into: int  # bytes that came
    seconds: float  # from the end of the turn before, its drain included
    stall: float  # seconds in which nobody had the card


@dataclass(slots=True, eq=False)
class Client:
    """One process. Its cards form a gang: they are asked for, granted and dropped together."""

    id: int
    group: Group
    process: Process = Process()  # noqa: RUF009 (frozen)
    name: str = ""
    pod_name: str = ""  # as the client says
    pod_namespace: str = ""
    can_swap: bool = False
    oversize: bool = False  # it may be larger than a card: what is not there comes when it is touched
    gpus: dict[str, Attachment] = field(default_factory=dict)  # in UUID order

    ticket: int = 0  # number in the order of arrival while it waits, 0 when it does not
    asked: bool = False  # it waits because it asked; False: because it is stuck and must be brought back into turns
    parked: bool = False  # its waiting was logged
    seen: bool = False  # it was granted before
    asked_at: float = 0.0  # when it began to wait
    waited: float = 0.0  # seconds in all that it waited before that
    start_by: float = 0.0  # while it waits: the latest moment its turn begins, by the bound the queue guarantees
    start_by_late: float = 0.0  # the scheduler's accumulated timer lateness when start_by was computed

    turn_start: float = 0.0
    turn_end: float | None = None  # None: until the scheduler ends it
    drain_by: float | None = None  # while draining
    turn: int = 0  # number of its latest turn, in the order in which turns began
    left: int = 0  # number of the event that ended its latest turn; 0: it never had one
    sleep: Sleep = field(default_factory=Sleep)

    def active(self, now: float) -> float:
        """A clock that stands still while the client waits."""
        return now - self.waiting(now)

    def waiting(self, now: float) -> float:
        """Seconds in all that it waited for its turn."""
        return self.waited + (now - self.asked_at if self.ticket else 0.0)

    @property
    def may_sleep(self) -> bool:
        """It says that it can sleep, and all of its memory can leave its cards."""
        if not (self.sleep.able and self.can_swap) or self.oversize:
            return False
        return not any(one.lasting for one in self.gpus.values())

    @property
    def can_sleep(self) -> bool:
        """It can be told to sleep once it has no turn: it answers, and its work ends."""
        return self.may_sleep and not any(one.silent or one.standing is Standing.STUCK for one in self.gpus.values())

    @property
    def gives_way(self) -> bool:
        """It can sleep, and is told to where others need the room of its contexts."""
        return self.sleep.allowed and self.can_sleep

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def hex(self) -> str:
        return f"{self.id:016x}"

    @property
    def pod(self) -> tuple[str, str]:
        """Namespace and name of its pod: as the Kubernetes API has it, else as the client says."""
        return self.group.pod or (self.pod_namespace, self.pod_name)


@dataclass(slots=True)
class Reserved:
    """What leases have reserved of one card: percent of its time, bytes, and how many leases there are."""

    cores: int = 0  # the floor of each, without one its cap
    bytes: int = 0
    leases: int = 0


@dataclass(slots=True, eq=False)
class Lease:
    """A reservation on cards for one holder and the processes below it. It waits while it has reserved nothing."""

    id: str
    label: str
    holder: Process
    mem: int | None
    cores: Cores | None
    count: int  # cards
    among: tuple[str, ...]  # those it may have
    reserved: dict[str, Reserved] = field(default_factory=dict)  # by card
    quarantine: str | None = None  # its holder is gone, but not everything of it: what is left, in words

    @property
    def group(self) -> str:
        return lease_group(self.id)

    @property
    def pid(self) -> int:
        return self.holder.pid

    @property
    def held(self) -> bool:
        """It was granted, and its holder is there."""
        return bool(self.reserved) and self.quarantine is None


@dataclass(slots=True, eq=False)
class GpuState:
    """One card (or MIG instance) and its queue. ``running`` and ``queue`` are ordered: by grant and by arrival."""

    uuid: str
    total: int
    name: str = ""
    declared: int | None = None
    contexts_inside: bool = False  # the declared size holds the contexts too
    capacity: int = 0  # bytes all clients together may have allocated
    announced: int = 0  # the capacity clients were last told
    tolerated: int = 0  # what was held when adoption or a shrinking card went beyond the capacity

    attachments: dict[int, Attachment] = field(default_factory=dict)
    running: dict[int, Attachment] = field(default_factory=dict)
    draining: dict[int, Attachment] = field(default_factory=dict)
    stuck: dict[int, Attachment] = field(default_factory=dict)
    queue: dict[int, Attachment] = field(default_factory=dict)
    called: Client | None = None  # the sleeper for whose context room is made
    gangs: dict[int, None] = field(default_factory=dict)  # clients here that have other cards too; in order of arrival
    lacking: dict[int, Attachment] = field(default_factory=dict)  # clients whose memory is not wholly on the card
    silent: dict[int, Attachment] = field(default_factory=dict)  # clients that do not answer
    oversize: dict[int, Attachment] = field(default_factory=dict)  # clients that may be larger than the card
    pending: list[HeldRequest] = field(default_factory=list)  # by arrival
    headroom: Headroom | None = None  # as computed last; None after a change
    turns: bool = False  # clients take turns here; False: they run freely side by side

    allocated: int = 0
    allocated_running: int = 0  # part of it that belongs to those running
    resident: int = 0
    held: int = 0
    wanted: int = 0
    host: int = 0
    contexts: int = 0  # bytes that are on the card
    contexts_away: int = 0  # of clients that sleep
    overdrawn: int = 0  # bytes of contexts beyond all that the card has for them
    largest_context: int = 0  # ever measured here
    expecting: set[int] = field(default_factory=set)  # clients that are about to make a context
    unmanaged: tuple[Unmanaged, ...] = ()  # processes here that are no clients
    unmanaged_bytes: int = 0  # that they have, as far as is known

    stall: float = 0.0  # seconds in which a typical switch keeps the card from working
    stalls: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # of the last switches
    last_holder: int = 0
    vacant_since: float = 0.0  # while no client runs or drains: since when
    ended_at: float = 0.0  # when a turn last began to end
    moved_out: int = 0  # bytes since the last switch
    moved_in: int = 0
    last_switch: Switch | None = None
    compute: CardCompute = field(default_factory=CardCompute)
    reserved: Reserved = field(default_factory=Reserved)  # by leases
    claimants: dict[str, Group] = field(default_factory=dict)  # groups that are here, in order of arrival

    def changed(self) -> None:
        """Bytes, standings or clients on this card changed: what follows from them has to be computed anew."""
        self.headroom = None

    @property
    def holds_contexts(self) -> bool:
        """Contexts and memory share the capacity: no size was declared, or one that holds contexts too."""
        return self.declared is None or self.contexts_inside

    @property
    def is_physical(self) -> bool:
        """What contexts and unmanaged processes take counts."""
        return self.holds_contexts or self.unmanaged_bytes > 0

    @property
    def demand(self) -> int:
        """Bytes that clients have and ask for; with the contexts of sleepers, where contexts share the capacity."""
        return self.allocated + self.wanted + (self.contexts_away if self.holds_contexts else 0)


@dataclass(frozen=True)
class Denied:
    """A request for memory that was refused."""

    gpu: str
    bytes: int
    limit: int
    reason: DenyReason


@dataclass(slots=True, eq=False)
class Group:
    """The owner of quotas: a pod, an ``nvshare run``, or a lone process. Memory quotas hold per card."""

    id: str
    label: str = ""
    pod: tuple[str, str] | None = None  # namespace and name, of a pod that the Kubernetes API has told of
    opened: bool = False  # it outlives its clients
    mem_limit: Layers[int] = field(default_factory=Layers)
    core_limit: Layers[Cores] = field(default_factory=Layers)
    priority: Layers[Priority] = field(default_factory=Layers)
    clients: dict[int, Client] = field(default_factory=dict)
    cards: Counter[str] = field(default_factory=Counter)  # how many of its clients use each; none without
    floors: dict[str, int] = field(default_factory=dict)  # percent in force, by card
    missed: dict[str, int] = field(default_factory=dict)  # by card: a floor that found no room there, as was logged
    allocated: dict[str, int] = field(default_factory=dict)  # bytes of all its clients, by card
    denied: Denied | None = None  # the last request of its clients that was refused

    @property
    def known(self) -> bool:
        """It is a pod of which the Kubernetes API has told, and which is still there."""
        return self.pod is not None and self.opened

    @property
    def cores(self) -> Cores:
        return self.core_limit.effective or UNLIMITED

    @property
    def core_percent(self) -> int:
        """Its cap."""
        return self.cores.cap

    def floor_on(self, gpu: str) -> int:
        """The floor in force on this card, in percent; less than ``cores.floor`` where other floors leave no room."""
        return self.floors.get(gpu, 0)

    @property
    def rank(self) -> Priority:
        return self.priority.effective or Priority.NORMAL

    @property
    def spans_cards(self) -> bool:
        """Its work may wait for other cards, in one process or between several (a job with a process per card)."""
        return len(self.cards) > 1

    @property
    def title(self) -> str:
        """How log lines name it: ``pod <namespace>/<name>``, ``run <label>``, ``process <pid>``."""
        kind, _, key = self.id.partition(":")
        claimed = (client.pod for client in self.clients.values())
        namespace, name = self.pod or next(claimed, ("", ""))
        if kind == "pod" and name:
            return f"pod {namespace}/{name}"
        return f"{kind} {self.label or key}"


@dataclass(slots=True)
class Counters:
    grants: int = 0
    drops: int = 0
    switches: int = 0
    memory_granted: int = 0
    memory_denied: int = 0
    expelled: int = 0
    swapped_bytes: int = 0


@dataclass(slots=True, eq=False)
class Node:
    """All of it, plus the commands of the event that is being handled."""

    settings: Settings
    now: float = 0.0
    gpus: dict[str, GpuState] = field(default_factory=dict)  # in UUID order
    clients: dict[int, Client] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    opened: dict[int, Opened] = field(default_factory=dict)  # by process
    pods_named: dict[str, str] = field(default_factory=dict)  # "namespace/name" -> group, of the pods that are known
    pods_listed: bool = False  # a pod watch has told of all pods of the node
    registering: dict[int, WaitingRegistration] = field(default_factory=dict)  # by client, in order of arrival
    first_requests: dict[tuple[int, str], FirstRequests] = field(default_factory=dict)  # by client and card, as above
    samples_ordered: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)  # waiting, held and quarantined
    lease_queue: dict[str, Lease] = field(default_factory=dict)  # those that wait, by arrival
    leases_awaited: float | None = None  # until then those of an earlier scheduler come back first
    counters: Counters = field(default_factory=Counters)
    commands: list[Command] = field(default_factory=list)
    shifted: list[Attachment] = field(default_factory=list)  # whose grant began or ended; compute slices follow
    story: deque[tuple[Event, list[Command]]] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
    configured: Settings = field(init=False)  # what it was started with

    def __post_init__(self) -> None:
        self.configured = self.settings

    def knows_pod(self, group: str) -> bool:
        """Whether the Kubernetes API has told of the pod that is this group."""
        found = self.groups.get(group)
        return found is not None and found.known
