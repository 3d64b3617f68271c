"""Every message that crosses the scheduler's socket. This module is the one definition of the protocol.

``make generate`` writes the same for C to ``native/include/nvshare_protocol.h``: constants, enumerations, and a struct
for each message with its docstring and the comments of its fields. docs/protocol.md says what may change between
releases.

All integers are little-endian and naturally aligned; text is UTF-8 in fixed fields padded with zero bytes. A receiver
ignores bytes beyond the fields it knows. The wire says *lock* for a turn and *turn* for a slice (docs/glossary.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from nvshare.wire.enums import BarReason as BarReason  # noqa: PLC0414
from nvshare.wire.enums import DenyReason as DenyReason  # noqa: PLC0414
from nvshare.wire.enums import MessageType as MessageType  # noqa: PLC0414
from nvshare.wire.enums import RefusalCode as RefusalCode  # noqa: PLC0414
from nvshare.wire.enums import ReleaseReason as ReleaseReason  # noqa: PLC0414
from nvshare.wire.enums import SleptOutcome as SleptOutcome  # noqa: PLC0414
from nvshare.wire.enums import TurnReason as TurnReason  # noqa: PLC0414
from nvshare.wire.layout import Fields, WithEntries
from nvshare.wire.layout import Message as Message  # noqa: PLC0414 (others know it from here)

MAGIC = 0x4853564E  # "NVSH" as little-endian bytes
VERSION = 1  # of the frame and of the rules in docs/protocol.md; the two sides of a connection have the same one
MAX_REQUEST = 64 * 1024  # the largest payload that the scheduler and libnvshare.so accept, in bytes
MAX_REPLY = 16 * 1024 * 1024  # the largest payload that nvsharectl accepts: the status of a full node
MAX_GPUS = 16  # the GPUs that one process may attach
MAX_PROCESSES = 4000  # the entries of one SHARE_REPLY, which stays below MAX_REQUEST
ALL_GPUS = 0xFFFFFFFF  # as the gpu of a message from the scheduler: each GPU that the client has attached


FLAG_CAN_SWAP = 1  # REGISTER: the client can move its memory to the host
FLAG_OVERSIZE = 2  # REGISTER: the client may be larger than the card and runs with as much of its memory there as fits
FLAG_ASLEEP = 4  # REGISTER: the client's contexts are off its cards; it never registers on the way out or in
FLOOR_SHIFT = 8  # REGISTER: the 7 bits of the flags from this one on are the percent that is guaranteed; 0: nothing
FLAG_EXCLUSIVE = 1  # LOCK_OK: no other client runs on this GPU; keep little work in flight, so that a drain is short
FLAG_CONTENDED = 2  # LOCK_OK: others wait; release as soon as idle
FLAG_STAYS = 1  # MEM_REQUEST: these bytes can never be moved
FLAG_COUNTED = 2  # MEM_REQUEST, with FLAG_STAYS: the client has these bytes already
FLAG_TURNS = 1  # TERMS: work on this GPU needs a slice; without this flag the grant is enough


@dataclass(frozen=True)
class Header(Fields):
    """The header of a frame. The payload follows."""

    type: int
    length: int  # of the payload, in bytes
    sequence: int  # 1, 2, 3 ... per connection and direction
    magic: int = MAGIC
    version: int = VERSION

    LAYOUT = (("magic", "I"), ("version", "H"), ("type", "H"), ("length", "I"), ("sequence", "I"))


HEADER = Header.STRUCT


@dataclass(frozen=True)
class GpuEntry(Fields):
    """One GPU of a client, at the end of REGISTER and ATTACH. Later messages name it by its index there."""

    uuid: str
    allocated: int = 0  # bytes held now; not zero only when the process registers again
    resident: int = 0  # bytes of them on the card
    grant: int = 0  # number of the grant that the client still holds; 0: none

    LAYOUT = (("uuid", "48s"), ("allocated", "Q"), ("resident", "Q"), ("grant", "Q"))


class _WithGpus(WithEntries):
    gpus: tuple[GpuEntry, ...]

    ENTRIES = ("gpus", "gpu_count", GpuEntry, range(1, MAX_GPUS + 1), "GPUs")

    @property
    def gpu_count(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True)
class Register(_WithGpus):
    """Client to scheduler, once per connection: the process makes its first CUDA context.

    Names and limits are what the process says of itself, from its environment. Where the kernel says otherwise the
    scheduler believes the kernel. A limit from here never raises one that an operator set.
    """

    gpus: tuple[GpuEntry, ...]
    previous_id: int = 0  # id from an earlier connection of the same process; 0: none
    mem_limit: int = 0  # bytes; 0: none
    core_limit: int = 0  # percent; 0: none
    priority: int = 0  # 0: normal, 1: high
    flags: int = 0
    name: str = ""  # of the program
    pod_name: str = ""
    pod_namespace: str = ""
    library: str = ""  # release of libnvshare.so

    TYPE = MessageType.REGISTER
    LAYOUT = (
        ("previous_id", "Q"),
        ("mem_limit", "Q"),
        ("core_limit", "I"),
        ("priority", "I"),
        ("flags", "I"),
        ("gpu_count", "I"),
        ("name", "32s"),
        ("pod_name", "256s"),
        ("pod_namespace", "64s"),
        ("library", "16s"),
    )

    @property
    def core_floor(self) -> int:
        """Percent. REGISTER cannot grow, for entries follow. The previous release sends these bits as zero and reads
        none of them."""
        return self.flags >> FLOOR_SHIFT & 0x7F


@dataclass(frozen=True)
class SchedOn(Message):
    """Scheduler to client: the client is registered under this id, and needs a grant to run. From nvsharectl: switch
    anti-thrash on."""

    client_id: int

    TYPE = MessageType.SCHED_ON
    LAYOUT = (("client_id", "Q"), ("reserved", "8x"))


@dataclass(frozen=True)
class SchedOff(Message):
    """Scheduler to client: the client is registered under this id, and runs freely, since anti-thrash is off. From
    nvsharectl: switch anti-thrash off."""

    client_id: int = 0

    TYPE = MessageType.SCHED_OFF
    LAYOUT = (("client_id", "Q"), ("reserved", "8x"))


@dataclass(frozen=True)
class ReqLock(Message):
    """Client to scheduler: the client has work for this GPU and no grant."""

    gpu: int

    TYPE = MessageType.REQ_LOCK
    LAYOUT = (("gpu", "I"), ("reserved", "12x"))


@dataclass(frozen=True)
class LockOk(Message):
    """Scheduler to client: run. The same grant number again: only flags and quantum changed."""

    gpu: int
    grant: int
    flags: int = 0
    quantum_ms: int = 0  # the client ends its turn after this, counted from the first LOCK_OK; 0: when told

    TYPE = MessageType.LOCK_OK
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("grant", "Q"), ("quantum_ms", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class DropLock(Message):
    """Scheduler to client: stop submitting, drain, and answer LOCK_RELEASED within the deadline."""

    gpu: int
    grant: int
    deadline_ms: int = 0

    TYPE = MessageType.DROP_LOCK
    LAYOUT = (("gpu", "I"), ("deadline_ms", "I"), ("grant", "Q"))


@dataclass(frozen=True)
class LockReleased(Message):
    """Client to scheduler: the gate is shut and the client's work on this GPU has ended. With the reason STUCK the work
    runs on."""

    gpu: int
    grant: int
    reason: int = 0  # ReleaseReason

    TYPE = MessageType.LOCK_RELEASED
    LAYOUT = (("gpu", "I"), ("reason", "I"), ("grant", "Q"), ("reserved", "16x"))


@dataclass(frozen=True)
class SetTq(Message):
    """nvsharectl to scheduler: use this fixed quantum."""

    seconds: int

    TYPE = MessageType.SET_TQ
    LAYOUT = (("seconds", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class MemUpdate(Message):
    """Client to scheduler: what became of the memory that the client was granted.

    What a client has allocated is what it was granted less what it released. ``released`` only grows, so that no order
    of messages can make the two sides disagree.
    """

    gpu: int
    released: int  # bytes given back since registration
    resident: int  # bytes on the card
    host: int = 0  # bytes in host memory
    pinned: int = 0  # the part of resident that cannot move
    applied: int = 0  # number of the last RESIDENCY that the client keeps to

    TYPE = MessageType.MEM_UPDATE
    LAYOUT = (
        ("gpu", "I"),
        ("reserved", "4x"),
        ("released", "Q"),
        ("resident", "Q"),
        ("host", "Q"),
        ("pinned", "Q"),
        ("applied", "Q"),
    )


@dataclass(frozen=True)
class WaitForMem(Message):
    """Scheduler to client: the memory request waits for room; MEM_AVAILABLE or MEM_DENIED follows."""

    gpu: int
    request: int

    TYPE = MessageType.WAIT_FOR_MEM
    LAYOUT = (("gpu", "I"), ("request", "I"), ("reserved", "8x"))


@dataclass(frozen=True)
class MemAvailable(Message):
    """Scheduler to client: the memory request is granted."""

    gpu: int
    request: int

    TYPE = MessageType.MEM_AVAILABLE
    LAYOUT = (("gpu", "I"), ("request", "I"), ("reserved", "8x"))


@dataclass(frozen=True)
class PrepareSwapOut(Message):
    """Scheduler to client: this many bytes may have to leave the card when the client's turn ends. The client allocates
    host memory for them meanwhile."""

    gpu: int
    bytes: int

    TYPE = MessageType.PREPARE_SWAP_OUT
    LAYOUT = (("gpu", "I"), ("reserved", "4x"), ("bytes", "Q"))


@dataclass(frozen=True)
class UpdateLimit(Message):
    """Scheduler to client: the memory quota of the client's group on this GPU, and the declared size of the card."""

    gpu: int
    mem_limit: int  # bytes; 0: none
    card: int  # bytes that all tasks together may allocate

    TYPE = MessageType.UPDATE_LIMIT
    LAYOUT = (("gpu", "I"), ("reserved", "4x"), ("mem_limit", "Q"), ("card", "Q"))


@dataclass(frozen=True)
class UpdateCoreLimit(Message):
    """Scheduler to client: the compute quota of the client's group, the same on each GPU."""

    percent: int
    gpu: int = ALL_GPUS

    TYPE = MessageType.UPDATE_CORE_LIMIT
    LAYOUT = (("gpu", "I"), ("percent", "I"))


@dataclass(frozen=True)
class Refused(Message):
    """Scheduler to its peer, as the last message of a connection. Its layout is the same in each VERSION."""

    code: int  # RefusalCode
    reason: str
    version: int = VERSION  # of the scheduler

    TYPE = MessageType.REFUSED
    LAYOUT = (("version", "I"), ("code", "I"), ("reason", "256s"))


@dataclass(frozen=True)
class Attach(_WithGpus):
    """Client to scheduler: the client uses these GPUs too. They are appended to the list of REGISTER."""

    gpus: tuple[GpuEntry, ...]

    TYPE = MessageType.ATTACH
    LAYOUT = (("gpu_count", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class MemRequest(Message):
    """Client to scheduler: may the client allocate this many bytes on this GPU?"""

    gpu: int
    request: int  # a number that the answer repeats
    bytes: int
    flags: int = 0

    TYPE = MessageType.MEM_REQUEST
    LAYOUT = (("gpu", "I"), ("request", "I"), ("bytes", "Q"), ("flags", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class MemDenied(Message):
    """Scheduler to client: the memory request is denied. The application gets the CUDA out-of-memory error."""

    gpu: int
    request: int
    reason: int  # DenyReason

    TYPE = MessageType.MEM_DENIED
    LAYOUT = (("gpu", "I"), ("request", "I"), ("reserved", "16x"), ("reason", "I"), ("reserved_end", "4x"))


@dataclass(frozen=True)
class Usage(Message):
    """Client to scheduler: counters of this GPU since registration, and the window as it is now."""

    gpu: int
    window: int  # the most submissions that may be in flight
    occupied_us: int  # time with unfinished work
    submissions: int
    swapped_out: int = 0  # bytes
    swapped_in: int = 0  # bytes

    TYPE = MessageType.USAGE
    LAYOUT = (
        ("gpu", "I"),
        ("window", "I"),
        ("occupied_us", "Q"),
        ("submissions", "Q"),
        ("swapped_out", "Q"),
        ("swapped_in", "Q"),
    )


@dataclass(frozen=True)
class Residency(Message):
    """Scheduler to client: how many bytes the client may have on this GPU from now on.

    Below what is resident: the client moves the rest to the host, a chunk at a time, and reports each with MEM_UPDATE.
    Above: it brings back what is missing. The target of a client with a grant is never below what it has allocated.
    """

    gpu: int
    number: int  # 1, 2, 3 ... per client and GPU; MEM_UPDATE repeats it
    target: int  # bytes

    TYPE = MessageType.RESIDENCY
    LAYOUT = (("gpu", "I"), ("reserved", "4x"), ("number", "Q"), ("target", "Q"))


@dataclass(frozen=True)
class Terms(Message):
    """Scheduler to client: how the client runs on this GPU while it holds the grant. Before the first TERMS: freely.

    With FLAG_TURNS work needs a slice too, and work in flight stays within ``in_flight_us``, so that a slice ends soon
    after END_TURN. Memory stays where it is. Without the flag a slice that the client has is void, and no TURN_OVER
    follows. Terms outlive the grant; they end with SCHED_OFF and with the connection.
    """

    gpu: int
    flags: int = 0
    in_flight_us: int = 0  # GPU time; 0: no bound

    TYPE = MessageType.TERMS
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("in_flight_us", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class ReqTurn(Message):
    """Client to scheduler: the client holds the grant of this GPU and has work, but no slice.

    Sent once for each slice, and not after a TURN_OVER that said it already. Work of the slice before may still be in
    flight.
    """

    gpu: int

    TYPE = MessageType.REQ_TURN
    LAYOUT = (("gpu", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class TurnOk(Message):
    """Scheduler to client: here is a slice. The same number again: its length changed.

    A slice with a length ends early when the client has been idle for ``patience_us``. A slice without one lasts until
    END_TURN.
    """

    gpu: int
    number: int
    length_us: int = 0  # counted from the first TURN_OK with this number; 0: until told
    patience_us: int = 0  # 0: a millisecond

    TYPE = MessageType.TURN_OK
    LAYOUT = (("gpu", "I"), ("reserved", "4x"), ("number", "Q"), ("length_us", "I"), ("patience_us", "I"))


@dataclass(frozen=True)
class EndTurn(Message):
    """Scheduler to client: the slice is over now."""

    gpu: int
    number: int

    TYPE = MessageType.END_TURN
    LAYOUT = (("gpu", "I"), ("reserved", "4x"), ("number", "Q"))


@dataclass(frozen=True)
class TurnOver(Message):
    """Client to scheduler: the client's gate is shut, and its slice is over.

    Sent once or twice for a slice. The first time work is still in flight, so that the next slice can begin without a
    gap. The last time ``pending_us`` is 0 and the figures are final: all work has ended, or the client is given another
    slice before that. Work that does not end within a second is reported every second with the reason STUCK: it runs
    on, and its client may have another slice meanwhile. The slices of a gang end together, each with a TURN_OVER of its
    own, and before LOCK_RELEASED.
    """

    gpu: int
    number: int
    reason: int = 0  # TurnReason
    used_us: int = 0  # time with unfinished work so far, including gaps below a millisecond
    busy_us: int = 0  # the part of it in which the GPU was seen at work for this client
    pending_us: int = 0  # about what is still in flight; 0: nothing, and this is the last TURN_OVER of the slice
    wants: int = 0  # 1: a submitter waits already; counts as REQ_TURN

    TYPE = MessageType.TURN_OVER
    LAYOUT = (
        ("gpu", "I"),
        ("reason", "I"),
        ("number", "Q"),
        ("used_us", "Q"),
        ("busy_us", "Q"),
        ("pending_us", "I"),
        ("wants", "I"),
    )


@dataclass(frozen=True)
class _Json(Message):
    body: bytes

    LAYOUT = ()

    def pack(self) -> bytes:
        return self.body

    @classmethod
    def unpack(cls, payload: bytes) -> Message:
        return cls(bytes(payload))


@dataclass(frozen=True)
class Control(_Json):
    """nvsharectl or ``nvshare run`` to scheduler: a JSON object with ``op``; see docs/protocol.md."""

    TYPE = MessageType.CONTROL


@dataclass(frozen=True)
class ControlReply(_Json):
    """Scheduler to the sender of CONTROL: a JSON object with ``ok`` and either the result or ``error``."""

    TYPE = MessageType.CONTROL_REPLY


@dataclass(frozen=True)
class Share(Message):
    """Any process to scheduler: what does the group of this process have of this GPU? Needs no REGISTER."""

    uuid: str

    TYPE = MessageType.SHARE
    LAYOUT = (("uuid", "48s"),)


@dataclass(frozen=True)
class ProcessEntry(Fields):
    """One process, at the end of SHARE_REPLY."""

    pid: int  # as the asking process sees it; 0: it cannot
    allocated: int  # bytes

    LAYOUT = (("pid", "I"), ("reserved", "4x"), ("allocated", "Q"))


@dataclass(frozen=True)
class ShareReply(WithEntries):
    """Scheduler to the sender of SHARE."""

    card: int = 0  # bytes: the size of the card as the asking process's group sees it; 0: the scheduler knows no group
    used: int = 0  # bytes that all processes of the group have allocated
    processes: tuple[ProcessEntry, ...] = ()

    TYPE = MessageType.SHARE_REPLY
    LAYOUT = (("card", "Q"), ("used", "Q"), ("process_count", "I"), ("reserved", "4x"))
    ENTRIES = ("processes", "process_count", ProcessEntry, range(MAX_PROCESSES + 1), "processes")

    @property
    def process_count(self) -> int:
        return len(self.processes)


@dataclass(frozen=True)
class Sleepable(Message):
    """Client to scheduler: can the client sleep? Sent after each REGISTER, and when the answer changes.

    A client that never sends it is never sent SLEEP.
    """

    bar: int = 0  # BarReason
    context: int = 0  # bytes, from a client that registered asleep: as SLEEP said it; 0: not known

    TYPE = MessageType.SLEEPABLE
    LAYOUT = (("bar", "I"), ("reserved", "4x"), ("context", "Q"))


@dataclass(frozen=True)
class Sleep(Message):
    """Scheduler to client: take your contexts off all cards. The client has no grant, and its targets are 0."""

    order: int  # 1, 2, 3 ... per registration; the answers repeat it
    lock_ms: int  # the time-out of the driver's lock
    context: int = 0  # bytes that the client's context takes on a card at most; 0: not known

    TYPE = MessageType.SLEEP
    LAYOUT = (("order", "Q"), ("lock_ms", "I"), ("reserved", "4x"), ("context", "Q"))


@dataclass(frozen=True)
class Slept(Message):
    """Client to scheduler: how the SLEEP with this number ended."""

    order: int
    outcome: int = 0  # SleptOutcome
    bar: int = 0  # BarReason, with DECLINED
    error: int = 0  # CUresult, with FAILED

    TYPE = MessageType.SLEPT
    LAYOUT = (("order", "Q"), ("outcome", "I"), ("bar", "I"), ("error", "I"), ("reserved", "4x"))


@dataclass(frozen=True)
class ReqWake(Message):
    """Client to scheduler: the client is asleep, and a thread of it wants the driver."""

    order: int  # of the SLEEP; 0: the client registered asleep

    TYPE = MessageType.REQ_WAKE
    LAYOUT = (("order", "Q"),)


@dataclass(frozen=True)
class Wake(Message):
    """Scheduler to client: the room of your contexts is reserved on all your cards: restore and unlock."""

    order: int  # of the SLEEP; 0: the client registered asleep

    TYPE = MessageType.WAKE
    LAYOUT = (("order", "Q"),)


@dataclass(frozen=True)
class Awake(Message):
    """Client to scheduler: the contexts are back. With an error they are not: the client stays asleep, and tries again
    only after another WAKE."""

    order: int
    error: int = 0  # CUresult of the restore

    TYPE = MessageType.AWAKE
    LAYOUT = (("order", "Q"), ("error", "I"), ("reserved", "4x"))


BY_TYPE: dict[int, type[Message]] = {kind.TYPE: kind for kind in Message.kinds()}
