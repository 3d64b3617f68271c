"""The scheduler's state at one moment, as ``status`` shows it. Plain frozen data; views are functions over it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from nvshare.core.memory.headroom import oversubscribed
from nvshare.core.memory.policy.quantum import explain, quantum
from nvshare.core.memory.selection import can_ever_run, reason
from nvshare.core.policy.precedence import Layers
from nvshare.core.sleep.lifecycle import State
from nvshare.core.sleep.sleepers import barred
from nvshare.core.state import Attachment, Client, GpuState, Group, Lease, Node, Standing

VERSION = 1  # of this layout
GIB = 1 << 30
WINDOWS = (1.0, 10.0, 60.0)  # seconds over which delivered time is shown


@dataclass(frozen=True)
class SettingsView:
    mode: str
    anti_thrash: bool
    switch_time: str
    quantum_s: float
    max_runtime_s: float
    operator: tuple[str, ...]  # of "mode", "anti_thrash" and "quantum": what an operator changed


@dataclass(frozen=True)
class SwitchView:
    """What the last switch of the card took."""

    bytes_out: int
    bytes_in: int
    seconds: float  # from the end of the turn before, its drain included
    stall_s: float  # part of it in which no client had the card


@dataclass(frozen=True)
class UnmanagedView:
    """A process on the card that is no client."""

    pid: int  # 0 where it has no number here
    name: str
    bytes: int | None  # None where the driver does not tell


@dataclass(frozen=True)
class GpuView:
    uuid: str
    name: str
    total: int
    declared: int | None
    capacity: int
    allocated: int
    resident: int
    contexts: int
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    policy: str  # "free" or "turns"
    quantum_s: float  # of a turn that would begin now
    reason: str
    quantum_reason: str
    stall_s: float  # of a typical switch
    last_switch: SwitchView | None
    requested: int  # bytes of requests that wait for room on the card
    unmanaged: tuple[UnmanagedView, ...]
    contexts_inside: bool  # the declared size holds the contexts too


@dataclass(frozen=True)
class ClientGpuView:
    uuid: str
    allocated: int
    resident: int
    host: int
    pinned: int
    context: int
    occupied_s: float
    demand: float  # part of the card's time it uses when nothing keeps it from doing so
    submissions: int
    window: int
    swapped_out: int
    swapped_in: int
    waiting_for: str | None  # in words: whose turn, or what must arrive
    target: int  # bytes it may have on the card now, at most what it has allocated
    moving: int  # bytes on their way to or from the card
    requested: int  # bytes of its requests that wait for room on the card
    mode: str  # "free", "compute turns" or "memory turns"
    kind: str  # as measured: "busy", "launch-bound" or "unknown"
    quota: int  # percent of the card's time, of its group
    floor_in_force: int  # percent of the card's time that its group is guaranteed; below ``core_floor`` without room
    scaled_quota: float  # the same, scaled to what the active groups leave
    delivered: tuple[float, ...]  # part of the last 1, 10 and 60 s in which it had unfinished work there
    waiting_for_turn: str | None  # in words: why it has no compute slice although it asks for one
    waited_s: dict[str, float]  # in all, by what it waited for: "memory" (its turn), "slice" or "quota"
    switches: int  # how often it took the card over from another client, in turns
    denied: int  # its requests for memory that were refused
    drain_timeouts: int  # its drains that passed their deadline


@dataclass(frozen=True)
class ClientView:
    id: str
    pid: int
    name: str
    pod: str
    namespace: str
    group: str
    priority: str
    mem_limit: int | None
    core_limit: int
    core_floor: int
    state: str
    gpus: tuple[ClientGpuView, ...]
    sleep: str  # "awake", "leaving", "ordered", "asleep", "called" or "waking"
    cannot_sleep: str | None  # why, in words


@dataclass(frozen=True)
class GroupView:
    id: str
    label: str
    mem_limit: int | None
    mem_limit_from: str | None  # "annotation", "operator", "gpumem" (of pods), "run" (or lease), "environment"
    core_limit: int
    core_floor: int
    core_floor_in_force: dict[str, int]  # by card; less than ``core_floor`` where other floors leave no room
    core_limit_from: str | None
    priority: str
    priority_from: str | None
    clients: tuple[str, ...]
    allocated: dict[str, int]


@dataclass(frozen=True)
class DeniedView:
    """The last request for memory that was refused."""

    gpu: str
    bytes: int
    limit: int
    reason: str  # "quota", "card" or "host"


@dataclass(frozen=True)
class LeaseView:
    id: str
    label: str
    pid: int
    state: str  # "waiting", "held" or "quarantined"
    reason: str | None  # why it is kept although its holder is gone
    gpus: tuple[str, ...]
    mem: int | None
    cores: int | None
    core_floor: int
    count: int
    denied: DeniedView | None


@dataclass(frozen=True)
class CountersView:
    grants: int
    drops: int
    switches: int
    memory_granted: int
    memory_denied: int
    expelled: int
    swapped_bytes: int


@dataclass(frozen=True)
class Snapshot:
    version: int
    settings: SettingsView
    gpus: tuple[GpuView, ...]
    clients: tuple[ClientView, ...]
    groups: tuple[GroupView, ...]
    leases: tuple[LeaseView, ...]
    counters: CountersView

    def to_dict(self) -> dict[str, Any]:
        """The JSON of docs/architecture.md: lists for tuples, ids as 16 hex digits."""
        return {name: _plain(value) for name, value in vars(self).items()}


def take(node: Node, now: float) -> Snapshot:
    """The state as it is. A query, like everything here."""
    settings = node.settings
    return Snapshot(
        version=VERSION,
        settings=SettingsView(
            settings.mode.value,
            settings.anti_thrash,
            settings.switch_time.value,
            settings.quantum,
            settings.max_runtime,
            _changed(node),
        ),
        gpus=tuple(_gpu(node, gpu) for gpu in node.gpus.values()),
        clients=tuple(_client(node, client, now) for client in node.clients.values()),
        groups=tuple(_group(group) for group in node.groups.values()),
        leases=tuple(_lease(node, lease) for lease in node.leases.values()),
        counters=CountersView(**asdict(node.counters)),
    )


def _changed(node: Node) -> tuple[str, ...]:
    started_with = node.configured.operable()
    return tuple(name for name, value in node.settings.operable().items() if value != started_with[name])


@dataclass(frozen=True)
class Share:
    """What a group has of one card."""

    card: int  # bytes; the size of the card as its tasks see it
    allocated: dict[int, int]  # bytes by client


def share(node: Node, name: str, uuid: str) -> Share | None:
    """None where there is no such group or card."""
    group, gpu = node.groups.get(name), node.gpus.get(uuid)
    if group is None or gpu is None:
        return None
    quota = group.mem_limit.effective
    attachments = (gpu.attachments.get(client) for client in group.clients)
    return Share(
        gpu.announced if quota is None else min(quota, gpu.announced),
        {attachment.client.id: attachment.allocated for attachment in attachments if attachment is not None},
    )


def _gpu(node: Node, gpu: GpuState) -> GpuView:
    return GpuView(
        uuid=gpu.uuid,
        name=gpu.name,
        total=gpu.total,
        declared=gpu.declared,
        capacity=gpu.capacity,
        allocated=gpu.allocated,
        resident=gpu.resident,
        contexts=gpu.contexts,
        running=_ids(gpu.running),
        waiting=_ids(gpu.queue),
        policy="turns" if gpu.turns and node.settings.anti_thrash else "free",
        quantum_s=quantum(node.settings, gpu.stall),
        reason=reason(node.settings, gpu),
        quantum_reason=explain(node.settings, gpu.stall),
        stall_s=gpu.stall,
        last_switch=_switch(gpu),
        requested=gpu.wanted,
        unmanaged=tuple(UnmanagedView(user.pid, user.name, user.bytes) for user in gpu.unmanaged),
        contexts_inside=gpu.contexts_inside,
    )


def _switch(gpu: GpuState) -> SwitchView | None:
    last = gpu.last_switch
    return None if last is None else SwitchView(last.out, last.into, last.seconds, last.stall)


def _client(node: Node, client: Client, now: float) -> ClientView:
    group = client.group
    namespace, name = client.pod
    return ClientView(
        id=client.hex,
        pid=client.pid,
        name=client.name,
        pod=name,
        namespace=namespace,
        group=group.id,
        priority=group.rank.name.lower(),
        mem_limit=group.mem_limit.effective,
        core_limit=group.core_percent,
        core_floor=group.cores.floor,
        state=_state(node, client),
        gpus=tuple(_client_gpu(node, attachment, now) for attachment in client.gpus.values()),
        sleep=client.sleep.state.value,
        cannot_sleep=barred(client) if client.sleep.is_here else None,
    )


def _state(node: Node, client: Client) -> str:
    if not node.settings.anti_thrash:
        return "free"
    standings = {attachment.standing for attachment in client.gpus.values()}
    for standing in (Standing.STUCK, Standing.DRAINING, Standing.RUNNING):
        if standing in standings:
            return str(standing.value)
    if client.ticket:
        return "waiting"
    return "asleep" if client.sleep.state in (State.ASLEEP, State.CALLED, State.WAKING) else "idle"


def _client_gpu(node: Node, attachment: Attachment, now: float) -> ClientGpuView:
    return ClientGpuView(
        uuid=attachment.gpu.uuid,
        allocated=attachment.allocated,
        resident=attachment.resident,
        host=attachment.host,
        pinned=attachment.pinned,
        context=attachment.context_here,
        occupied_s=attachment.occupied,
        demand=round(attachment.demand, 3),
        submissions=attachment.submissions,
        window=attachment.window,
        swapped_out=attachment.swapped_out,
        swapped_in=attachment.swapped_in,
        waiting_for=_waiting_for(attachment, now),
        target=attachment.bound,
        moving=0 if attachment.whole and not attachment.earlier else abs(attachment.resident - attachment.bound),
        requested=attachment.wanted,
        mode=_mode(node, attachment),
        kind=attachment.compute.kind.value,
        quota=attachment.client.group.core_percent,
        floor_in_force=attachment.client.group.floor_on(attachment.gpu.uuid),
        scaled_quota=round(_scaled_quota(attachment), 1),
        delivered=tuple(round(attachment.compute.delivered.over(seconds, now), 4) for seconds in WINDOWS),
        waiting_for_turn=_waiting_for_slice(attachment, now),
        waited_s=_waited(attachment, now),
        switches=attachment.switches,
        denied=attachment.denied,
        drain_timeouts=attachment.drain_timeouts,
    )


def _waited(attachment: Attachment, now: float) -> dict[str, float]:
    compute = attachment.compute
    for_slice = compute.waiting_ready(now)
    waited = {
        "memory": attachment.client.waiting(now),
        "slice": for_slice,
        "quota": max(0.0, compute.waiting(now) - for_slice),
    }
    return {reason: round(seconds, 6) for reason, seconds in waited.items()}


def _mode(node: Node, attachment: Attachment) -> str:
    if attachment.gpu.turns and node.settings.anti_thrash:
        return "memory turns"
    return "compute turns" if attachment.compute.in_slices else "free"


def _scaled_quota(attachment: Attachment) -> float:
    """Quotas are scaled where compute slices divide a card. Freely, and in memory turns, they are only caps."""
    account = attachment.gpu.compute.accounts.get(attachment.client.group.id)
    scales = attachment.compute.in_slices and not attachment.gpu.turns
    return account.share * 100 if scales and account is not None else float(attachment.client.group.core_percent)


def _waiting_for_slice(attachment: Attachment, now: float) -> str | None:
    """Why a client that asks for a compute slice has none."""
    state, card = attachment.compute, attachment.gpu.compute
    if state.again:
        return "the end of its own work"
    if not state.asks:
        return None
    holder = card.exclusive
    if state.ready_since is None or holder is None:
        return f"its quota of {attachment.client.group.core_percent} %"
    left = "" if holder.end is None else f", {max(0.0, holder.end - now) * 1000:.0f} ms more"
    return f"compute turn of {holder.attachment.client.hex}{left}"


def _waiting_for(attachment: Attachment, now: float) -> str | None:
    """What keeps a client that waits from this card, in words; None when nothing here does."""
    gpu, client = attachment.gpu, attachment.client
    if attachment.wanted:
        return f"{_size(attachment.wanted)} it asked for to get room"
    if not client.ticket:
        return None
    if attachment.standing is Standing.DRAINING:
        return "its own drain"
    if attachment.silent or client.sleep.late:
        return "an answer of its process, which does not react"
    if client.sleep.fault and not client.sleep.is_here:
        return f"nvsharectl wake: the driver could not restore it (error {client.sleep.fault})"
    if not can_ever_run(client):
        if oversubscribed(gpu) and not attachment.whole:
            outside = f" ({_size(gpu.unmanaged_bytes)} of it outside nvshare)" if gpu.unmanaged_bytes else ""
            return f"room beside memory that cannot be moved{outside}"
        return None
    for ahead in (*gpu.running.values(), *gpu.draining.values()) if gpu.turns else ():
        return f"turn of {ahead.client.hex}{_at_most(ahead.client, now)}"
    for ahead in gpu.queue.values() if gpu.turns else ():
        if ahead is attachment:
            break
        if can_ever_run(ahead.client):
            return f"turn of {ahead.client.hex}, which is next"
    if not client.sleep.is_here:
        return "its context to come back" if client.sleep.state is State.WAKING else "room for its context"
    return None if attachment.whole else f"{_size(max(0, attachment.allocated - attachment.resident))} to arrive"


def _at_most(client: Client, now: float) -> str:
    end = client.turn_end if client.drain_by is None else client.drain_by
    return "" if end is None else f", at most {max(0.0, end - now):.0f} s"


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.0f} MiB"


def _group(group: Group) -> GroupView:
    return GroupView(
        id=group.id,
        label=group.label if group.pod is None else "/".join(group.pod),
        mem_limit=group.mem_limit.effective,
        mem_limit_from=_origin(group, group.mem_limit),
        core_limit=group.core_percent,
        core_floor=group.cores.floor,
        core_floor_in_force=_floors(group),
        core_limit_from=_origin(group, group.core_limit),
        priority=group.rank.name.lower(),
        priority_from=_origin(group, group.priority),
        clients=_ids(group.clients),
        allocated=dict(group.allocated),
    )


def _floors(group: Group) -> dict[str, int]:
    return {uuid: group.floor_on(uuid) for uuid in dict.fromkeys((*group.cards, *group.floors))}


def _origin(group: Group, layers: Layers[Any]) -> str | None:
    """Who set a quota, as people call it."""
    opened = "gpumem" if group.id.startswith("pod:") else "run"
    return opened if layers.origin == "opened" else layers.origin


def _lease(node: Node, lease: Lease) -> LeaseView:
    group = node.groups.get(lease.group)
    denied = group.denied if group is not None else None
    state = "waiting" if lease.id in node.lease_queue else "held" if lease.quarantine is None else "quarantined"
    return LeaseView(
        id=lease.id,
        label=lease.label,
        pid=lease.pid,
        state=state,
        reason=lease.quarantine,
        gpus=tuple(lease.reserved),
        mem=lease.mem,
        cores=None if lease.cores is None else lease.cores.cap,
        core_floor=0 if lease.cores is None else lease.cores.floor,
        count=lease.count,
        denied=None
        if denied is None
        else DeniedView(denied.gpu, denied.bytes, denied.limit, denied.reason.name.lower()),
    )


def _ids(clients: dict[int, Any]) -> tuple[str, ...]:
    return tuple(f"{client:016x}" for client in clients)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return dict(value)
    return {name: _plain(entry) for name, entry in vars(value).items()} if is_dataclass(value) else value
