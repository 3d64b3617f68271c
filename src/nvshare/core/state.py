"""What the scheduler knows: cards, clients, groups, and each client's place on each card.

Plain data. Bytes change only in ``ledger.py``, standings and queues only in ``turns.py``, membership only in
``scheduler.py``; all of them only inside ``Scheduler.handle``.

Where later parts will live: a card's memory planner reads ``Attachment.need`` and ``resident`` and decides who is on
the card; compute turns (enforcement of ``core_limit`` and ``priority``) bill ``Attachment.occupied`` against the
group's quota per card, beside ``GpuState.running``, without touching the queue of memory turns.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from nvshare.core.commands import Command
from nvshare.core.events import Event
from nvshare.core.policy.precedence import Layers
from nvshare.core.settings import Priority, Settings

STORY_LENGTH = 40  # events remembered for the message of a broken invariant
CORE_LIMIT_DEFAULT = 100


class Standing(enum.Enum):
    """A client's standing on one card. Waiting is not a standing: a client waits for all of its cards at once."""

    IDLE = "idle"
    RUNNING = "running"  # holds a grant
    DRAINING = "draining"  # told to stop; the card is not given away until it answers or its deadline passes
    STUCK = "stuck"  # could not stop: its work runs on, time-sliced, and nobody waits for it


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
    need: int = 0  # bytes the client says must be resident for it to work

    granted: int = 0  # bytes, since registration
    released: int = 0  # bytes, since registration
    allocated: int = 0  # always granted - released
    resident: int = 0
    host: int = 0
    pinned: int = 0
    context: int = 0

    occupied: float = 0.0
    submissions: int = 0
    window: int = 0
    swapped_out: int = 0
    swapped_in: int = 0


@dataclass(slots=True, eq=False)
class Client:
    """One process. Its cards form a gang: they are asked for, granted and dropped together."""

    id: int
    group: Group
    pid: int = 0
    name: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    can_swap: bool = False
    gpus: dict[str, Attachment] = field(default_factory=dict)  # in UUID order

    ticket: int = 0  # place in the order of arrival while it waits, 0 when it does not
    asked: bool = False  # it waits because it asked; False: because it is stuck and must be brought back into turns
    parked: bool = False  # its waiting was logged
    seen: bool = False  # it was granted before
    start_by: float = 0.0  # while it waits: the latest moment its turn begins, by the bound the queue guarantees
    start_by_late: float = 0.0  # the scheduler's accumulated timer lateness when start_by was computed

    turn_start: float = 0.0
    turn_end: float | None = None  # None: until told
    drain_by: float | None = None  # while draining

    @property
    def hex(self) -> str:
        return f"{self.id:016x}"


@dataclass(slots=True, eq=False)
class GpuState:
    """One card (or MIG instance) and its queue. ``running`` and ``queue`` are ordered: by grant and by arrival."""

    uuid: str
    total: int
    name: str = ""
    declared: int | None = None
    capacity: int = 0  # bytes all clients together may have allocated
    announced: int = 0  # the capacity clients were last told
    tolerated: int = 0  # what was allocated when adoption or a shrinking card went beyond the capacity

    attachments: dict[int, Attachment] = field(default_factory=dict)
    running: dict[int, Attachment] = field(default_factory=dict)
    draining: dict[int, Attachment] = field(default_factory=dict)
    stuck: dict[int, Attachment] = field(default_factory=dict)
    queue: dict[int, Attachment] = field(default_factory=dict)
    turns: bool = False  # clients take turns here; False: they run freely side by side

    allocated: int = 0
    allocated_running: int = 0  # part of it that belongs to those running
    resident: int = 0
    host: int = 0
    contexts: int = 0

    stall: float = 0.0  # moving average of what a switch keeps the card from working, seconds
    last_holder: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The owner of quotas: a pod, an ``nvshare run``, or a lone process. Memory quotas hold per card."""

    id: str
    label: str = ""
    opened: bool = False  # it outlives its clients
    mem_limit: Layers[int] = field(default_factory=Layers)
    core_limit: Layers[int] = field(default_factory=Layers)
    priority: Layers[Priority] = field(default_factory=Layers)
    clients: dict[int, Client] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)  # bytes of all its clients, by card

    @property
    def core_percent(self) -> int:
        value = self.core_limit.effective
        return CORE_LIMIT_DEFAULT if value is None else value

    @property
    def rank(self) -> Priority:
        return self.priority.effective or Priority.NORMAL

    @property
    def title(self) -> str:
        """How log lines name it: ``pod <namespace>/<name>``, ``run <label>``, ``process <pid>``."""
        kind, _, key = self.id.partition(":")
        member = next(iter(self.clients.values()), None)
        if kind == "pod" and member is not None and member.pod_name:
            return f"pod {member.pod_namespace}/{member.pod_name}"
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
    counters: Counters = field(default_factory=Counters)
    commands: list[Command] = field(default_factory=list)
    story: deque[tuple[Event, list[Command]]] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
