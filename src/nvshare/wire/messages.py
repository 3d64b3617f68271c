"""Every message that crosses the scheduler's socket, defined once for Python.

``native/include/nvshare_protocol.h`` is the same definition for C; ``tests/integration/test_protocol_layout.py``
compiles that header and proves the two equal byte for byte. Values 1 to 14 are names that users already know; ours
begin at 15.

All integers are little-endian and naturally aligned; text is UTF-8 in fixed fields padded with zero bytes. A receiver
ignores bytes beyond the fields it knows, so a later minor release may append fields without a new version.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from nvshare.wire.layout import Fields, WithEntries
from nvshare.wire.layout import Message as Message  # noqa: PLC0414 (others know it from here)

MAGIC = 0x4853564E  # "NVSH" as little-endian bytes
VERSION = 1
HEADER = struct.Struct("<IHHII")  # magic, version, type, payload length, sequence
MAX_REQUEST = 64 * 1024  # largest payload the scheduler accepts
MAX_REPLY = 16 * 1024 * 1024  # largest payload a client accepts (status of a full node)
MAX_GPUS = 16  # GPUs one process may attach
MAX_PROCESSES = 4000  # of one SHARE_REPLY: what a client can read of it
ALL_GPUS = 0xFFFFFFFF


class MessageType(enum.IntEnum):
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


class ReleaseReason(enum.IntEnum):
    """Why a client gave up its grant."""

    TOLD = 0  # DROP_LOCK
    IDLE = 1  # nothing submitted or running for a while, and others wait
    ENDED = 2  # the quantum that came with the grant is over
    STUCK = 3  # the drain passed its deadline; the client's work is still running


class TurnReason(enum.IntEnum):
    """Why a compute turn is over."""

    ENDED = 0  # its time is used up
    IDLE = 1  # nothing to do for a while
    TOLD = 2  # END_TURN
    STUCK = 3  # what was submitted did not end in time; it runs on beside the others


class DenyReason(enum.IntEnum):
    """Why memory was denied."""

    QUOTA = 1
    CARD = 2
    HOST = 3


class RefusalCode(enum.IntEnum):
    VERSION = 1
    MALFORMED = 2
    UNKNOWN_GPU = 3
    LIMIT = 4


FLAG_CAN_SWAP = 1  # REGISTER: the client can move its memory to the host
FLAG_OVERSIZE = 2  # REGISTER: the client may be larger than the card; what it touches comes by itself
FLAG_EXCLUSIVE = 1  # LOCK_OK: nobody else runs on this GPU; keep little work in flight so that a drain is short
FLAG_CONTENDED = 2  # LOCK_OK: others wait; release as soon as idle

FLAG_STAYS = 1  # MEM_REQUEST: these bytes can never be moved
FLAG_COUNTED = 2  # MEM_REQUEST, with FLAG_STAYS: the client has these bytes already
FLAG_TURNS = 1  # TERMS: work on this GPU needs a compute turn; without it: the grant is enough
FLAG_ALONE = 1  # TURN_OK: nobody else runs on this GPU meanwhile, so what is measured is this client's own


@dataclass(frozen=True)
class GpuEntry(Fields):
    """One GPU of a client, repeated at the end of REGISTER and ATTACH; its place is the ``gpu`` of later messages."""

    uuid: str
    allocated: int = 0  # bytes held now (not zero only when a client registers again)
    resident: int = 0
    grant: int = 0  # grant number still held, 0 for none

    LAYOUT = (("uuid", "48s"), ("allocated", "Q"), ("resident", "Q"), ("grant", "Q"))


class _WithGpus(WithEntries):
    gpus: tuple[GpuEntry, ...]

    ENTRIES = ("gpus", "gpu_count", GpuEntry, range(1, MAX_GPUS + 1), "GPUs")

    @property
    def gpu_count(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True)
class Register(_WithGpus):
    """Client to scheduler, once per connection, when the process creates its first CUDA context.

    Names and limits are what the process says of itself (its environment); the scheduler believes the kernel instead
    where the two differ, and a limit from here never raises one set by an operator.
    """

    gpus: tuple[GpuEntry, ...]
    previous_id: int = 0  # id from an earlier connection of the same process, 0 for none
    mem_limit: int = 0  # bytes, 0 for none
    core_limit: int = 0  # percent, 0 for none
    priority: int = 0  # 0 normal, 1 high
    flags: int = 0
    name: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    library: str = ""

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


@dataclass(frozen=True)
class SchedOn(Message):
    """Scheduler to client: you are registered under this id, and your work is scheduled."""

    client_id: int
    flags: int = 0
    reserved: int = 0

    TYPE = MessageType.SCHED_ON
    LAYOUT = (("client_id", "Q"), ("flags", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class SchedOff(Message):
    """Scheduler to client: anti-thrash is off; run freely. From nvsharectl: switch it off."""

    client_id: int = 0
    flags: int = 0
    reserved: int = 0

    TYPE = MessageType.SCHED_OFF
    LAYOUT = (("client_id", "Q"), ("flags", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class ReqLock(Message):
    """Client to scheduler: I have work for this GPU and need so many bytes resident to do it."""

    gpu: int
    flags: int = 0
    need: int = 0

    TYPE = MessageType.REQ_LOCK
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("need", "Q"))


@dataclass(frozen=True)
class LockOk(Message):
    """Scheduler to client: run. Sent again with the same grant number when its terms change."""

    gpu: int
    grant: int
    flags: int = 0
    quantum_ms: int = 0  # the client ends its own turn after this; 0: when told
    running: int = 1

    TYPE = MessageType.LOCK_OK
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("grant", "Q"), ("quantum_ms", "I"), ("running", "I"))


@dataclass(frozen=True)
class DropLock(Message):
    """Scheduler to client: stop submitting, drain, answer LOCK_RELEASED within the deadline."""

    gpu: int
    grant: int
    deadline_ms: int = 0

    TYPE = MessageType.DROP_LOCK
    LAYOUT = (("gpu", "I"), ("deadline_ms", "I"), ("grant", "Q"))


@dataclass(frozen=True)
class LockReleased(Message):
    """Client to scheduler: my work on this GPU is drained (or, STUCK, could not be)."""

    gpu: int
    grant: int
    reason: int = 0
    occupied_us: int = 0
    drain_us: int = 0

    TYPE = MessageType.LOCK_RELEASED
    LAYOUT = (("gpu", "I"), ("reason", "I"), ("grant", "Q"), ("occupied_us", "Q"), ("drain_us", "Q"))


@dataclass(frozen=True)
class SetTq(Message):
    """nvsharectl to scheduler: fixed quantum in seconds."""

    seconds: int
    reserved: int = 0

    TYPE = MessageType.SET_TQ
    LAYOUT = (("seconds", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class MemUpdate(Message):
    """Client to scheduler: what became of the memory it was granted.

    ``released`` only grows (bytes given back since registration), so that it cannot race with grants under way:
    what a client has allocated is what it was granted less what it released.
    """

    gpu: int
    released: int
    resident: int
    host: int = 0
    pinned: int = 0  # part of resident that cannot be moved
    applied: int = 0  # number of the last RESIDENCY that the client keeps to
    reserved: int = 0

    TYPE = MessageType.MEM_UPDATE
    LAYOUT = (
        ("gpu", "I"),
        ("reserved", "I"),
        ("released", "Q"),
        ("resident", "Q"),
        ("host", "Q"),
        ("pinned", "Q"),
        ("applied", "Q"),
    )


@dataclass(frozen=True)
class WaitForMem(Message):
    """Scheduler to client: your request must wait; MEM_AVAILABLE or MEM_DENIED follows."""

    gpu: int
    request: int
    bytes: int

    TYPE = MessageType.WAIT_FOR_MEM
    LAYOUT = (("gpu", "I"), ("request", "I"), ("bytes", "Q"))


@dataclass(frozen=True)
class MemAvailable(Message):
    """Scheduler to client: your request is granted."""

    gpu: int
    request: int
    bytes: int

    TYPE = MessageType.MEM_AVAILABLE
    LAYOUT = (("gpu", "I"), ("request", "I"), ("bytes", "Q"))


@dataclass(frozen=True)
class PrepareSwapOut(Message):
    """Scheduler to client: so many bytes may have to leave the card when your turn ends; have buffers for them."""

    gpu: int
    bytes: int
    flags: int = 0

    TYPE = MessageType.PREPARE_SWAP_OUT
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("bytes", "Q"))


@dataclass(frozen=True)
class UpdateLimit(Message):
    """Scheduler to client: the memory quota of your group on this GPU, what is left of it, and the declared card."""

    gpu: int
    mem_limit: int  # bytes, 0 for none
    card: int  # bytes all tasks together may allocate
    reserved: int = 0

    TYPE = MessageType.UPDATE_LIMIT
    LAYOUT = (("gpu", "I"), ("reserved", "I"), ("mem_limit", "Q"), ("card", "Q"))


@dataclass(frozen=True)
class UpdateCoreLimit(Message):
    """Scheduler to client: your compute quota in percent of one GPU."""

    percent: int
    gpu: int = ALL_GPUS

    TYPE = MessageType.UPDATE_CORE_LIMIT
    LAYOUT = (("gpu", "I"), ("percent", "I"))


@dataclass(frozen=True)
class Refused(Message):
    """Scheduler to client, last message before it hangs up. Its layout never changes: any version can read it."""

    code: int
    reason: str
    version: int = VERSION

    TYPE = MessageType.REFUSED
    LAYOUT = (("version", "I"), ("code", "I"), ("reason", "256s"))


@dataclass(frozen=True)
class Attach(_WithGpus):
    """Client to scheduler: I now use these GPUs too (appended to the list of REGISTER)."""

    gpus: tuple[GpuEntry, ...]
    reserved: int = 0

    TYPE = MessageType.ATTACH
    LAYOUT = (("gpu_count", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class MemRequest(Message):
    """Client to scheduler: may I allocate so many bytes on this GPU?"""

    gpu: int
    request: int
    bytes: int
    flags: int = 0
    reserved: int = 0

    TYPE = MessageType.MEM_REQUEST
    LAYOUT = (("gpu", "I"), ("request", "I"), ("bytes", "Q"), ("flags", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class MemDenied(Message):
    """Scheduler to client: no; the application gets the CUDA out-of-memory error."""

    gpu: int
    request: int
    bytes: int
    limit: int
    reason: int
    reserved: int = 0

    TYPE = MessageType.MEM_DENIED
    LAYOUT = (("gpu", "I"), ("request", "I"), ("bytes", "Q"), ("limit", "Q"), ("reason", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class Usage(Message):
    """Client to scheduler: counters of this GPU, all but the window cumulative since registration."""

    gpu: int
    window: int  # pending-kernel window now
    occupied_us: int
    submissions: int
    swapped_out: int = 0
    swapped_in: int = 0

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
    """Scheduler to client: how many bytes you may have on this GPU from now on.

    Below what is resident: move the rest to the host, a chunk at a time, reporting each with MEM_UPDATE. Above: bring
    back what is missing. A client that holds a grant is never told less than it has allocated.
    """

    gpu: int
    number: int  # 1, 2, 3 ... per client and GPU; MEM_UPDATE echoes it
    target: int
    reserved: int = 0

    TYPE = MessageType.RESIDENCY
    LAYOUT = (("gpu", "I"), ("reserved", "I"), ("number", "Q"), ("target", "Q"))


@dataclass(frozen=True)
class Terms(Message):
    """Scheduler to client: how you run on this GPU while you hold its grant. Until told: freely.

    With ``FLAG_TURNS`` work needs a compute turn as well, and what is in flight stays within ``in_flight_us`` of GPU
    time, so that a turn ends soon after it is told to. Memory stays where it is, whoever's turn it is. Without the
    flag a turn under way is void: no TURN_OVER follows. Terms outlive the grant, not SCHED_OFF or the connection.
    """

    gpu: int
    flags: int = 0
    in_flight_us: int = 0
    reserved: int = 0

    TYPE = MessageType.TERMS
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("in_flight_us", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class ReqTurn(Message):
    """Client to scheduler: I hold the grant of this GPU and have work, but no compute turn. Sent once, and not after a
    TURN_OVER that said so already; perhaps while the work of the turn before is still in flight."""

    gpu: int
    flags: int = 0

    TYPE = MessageType.REQ_TURN
    LAYOUT = (("gpu", "I"), ("flags", "I"))


@dataclass(frozen=True)
class TurnOk(Message):
    """Scheduler to client: run for ``length_us``, counted from the moment the first TURN_OK with this number came; 0:
    until told. Sent again with the same number when the length or the flags change. A turn with a length ends early
    when the client is idle; one until told is kept."""

    gpu: int
    number: int
    flags: int = 0
    length_us: int = 0
    reserved: int = 0

    TYPE = MessageType.TURN_OK
    LAYOUT = (("gpu", "I"), ("flags", "I"), ("number", "Q"), ("length_us", "I"), ("reserved", "I"))


@dataclass(frozen=True)
class EndTurn(Message):
    """Scheduler to client: your turn is over now."""

    gpu: int
    number: int
    reserved: int = 0

    TYPE = MessageType.END_TURN
    LAYOUT = (("gpu", "I"), ("reserved", "I"), ("number", "Q"))


@dataclass(frozen=True)
class TurnOver(Message):
    """Client to scheduler: my gate is shut. Sent once or twice for a turn: while work of at most about ``pending_us``
    is still in flight, so that the next turn can begin without a gap; and, with ``pending_us`` 0 and the final figures,
    when all has ended or the client is given another turn before that. Work that does not end within a second is told
    of again every second, as STUCK: it runs on, and its client may have another turn meanwhile. The turns of a gang end
    together, each with a TURN_OVER of its own; so do they before LOCK_RELEASED."""

    gpu: int
    number: int
    reason: int = 0
    used_us: int = 0  # with unfinished work, gaps under a millisecond included, until now
    busy_us: int = 0  # part of it in which the GPU itself was at work for this client, as far as it was seen
    pending_us: int = 0
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
    """nvsharectl (or ``nvshare run``) to scheduler: a JSON object with ``op``; see docs/protocol.md."""

    TYPE = MessageType.CONTROL


@dataclass(frozen=True)
class ControlReply(_Json):
    """Scheduler to nvsharectl: a JSON object with ``ok`` and either the result or ``error``."""

    TYPE = MessageType.CONTROL_REPLY


@dataclass(frozen=True)
class Share(Message):
    """Any process to scheduler: what does the run, pod or task that I am in have of this GPU? Needs no REGISTER."""

    uuid: str

    TYPE = MessageType.SHARE
    LAYOUT = (("uuid", "48s"),)


@dataclass(frozen=True)
class ProcessEntry(Fields):
    """One process, repeated at the end of SHARE_REPLY."""

    pid: int  # as the one who asked sees it; 0 where it cannot
    allocated: int
    reserved: int = 0

    LAYOUT = (("pid", "I"), ("reserved", "I"), ("allocated", "Q"))


@dataclass(frozen=True)
class ShareReply(WithEntries):
    """Scheduler to whoever sent SHARE. ``card`` 0: it belongs to nobody that this scheduler knows."""

    card: int = 0  # bytes; the size of the card as its tasks see it
    used: int = 0  # bytes that all of its processes have allocated
    processes: tuple[ProcessEntry, ...] = ()
    reserved: int = 0

    TYPE = MessageType.SHARE_REPLY
    LAYOUT = (("card", "Q"), ("used", "Q"), ("process_count", "I"), ("reserved", "I"))
    ENTRIES = ("processes", "process_count", ProcessEntry, range(MAX_PROCESSES + 1), "processes")

    @property
    def process_count(self) -> int:
        return len(self.processes)


BY_TYPE: dict[int, type[Message]] = {kind.TYPE: kind for kind in Message.kinds()}
