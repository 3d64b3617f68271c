"""A scheduler on a stage: short verbs for events, a clock moved by hand, invariants checked at every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.policy.membership import Process
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Cores, Mode, Priority, Settings, SwitchTime
from nvshare.core.state import NO_TARGET

MIB = 1 << 20
GIB = 1 << 30
A, B = "GPU-a", "GPU-b"
CARD = 16 * GIB
HOLDER = Process(77, (77,))  # of leases

C = TypeVar("C", bound=c.Command)
MemoryAnswer = c.GrantMemory | c.DenyMemory | c.HoldMemory


@dataclass
class Memory:
    """What a client that can move its memory has on one card."""

    allocated: int = 0
    released: int = 0
    resident: int = 0
    target: int = NO_TARGET
    number: int = 0
    went_out: int = 0
    came_in: int = 0

    def tell(self, command: c.Command) -> None:
        if isinstance(command, c.SetResidency):
            self.target, self.number = command.target, command.number
        elif isinstance(command, c.GrantMemory):
            self.allocated += command.bytes
            if self.resident + command.bytes <= self.target:
                self.resident += command.bytes

    def move(self, chunk: int) -> int:
        """Towards the target, by a chunk at most; the bytes that moved."""
        if self.resident > self.target:
            moved = -min(chunk, self.resident - self.target)
            self.went_out -= moved
        else:
            moved = min(chunk, min(self.target, self.allocated) - self.resident)
            self.came_in += moved
        self.resident += moved
        return moved


def process_in(group: str, client: int) -> Process:
    """A process that belongs to this group once that is opened; without one, to itself."""
    kind, _, key = group.partition(":")
    if kind == "pod":
        return Process(client, (client,), pod=key)
    if kind == "run":
        return Process(client, (client, int(key)))
    if kind == "lease":
        return Process(client, (client, HOLDER.pid), lease=key)
    pid = int(key or client)
    return Process(pid, (pid,))


class Scene:
    def __init__(
        self,
        mode: Mode = Mode.AUTO,
        *,
        gpus: tuple[str, ...] = (A,),
        total: int = 16 * GIB,
        declared: int | None = None,
        quantum: float = 30.0,
        anti_thrash: bool = True,
        reserve_percent: int = 0,
        switch_time: SwitchTime = SwitchTime.FIXED,
        host_budget: int | None = None,
        demand: float | None = None,
        samples: bool = True,
    ) -> None:
        self.now = 0.0
        self.samples = samples  # whether a sample of the cards is taken as soon as it is ordered
        self.demand = demand  # of those who register, as if it had been measured before
        self.scheduler = Scheduler(
            Settings(
                mode=mode,
                switch_time=switch_time,
                quantum=quantum,
                anti_thrash=anti_thrash,
                reserve_percent=reserve_percent,
                host_budget=host_budget,
            )
        )
        self.memory: dict[tuple[int, str], Memory] = {}  # of those that can move it
        self.most_resident: dict[str, int] = dict.fromkeys(gpus, 0)
        self.grants: dict[tuple[int, str], int] = {}
        self.wake: float | None = None
        self.requests = 0
        for uuid in gpus:
            self.send(e.GpuAdded(0.0, uuid, total, "T4", declared))

    def send(self, event: e.Event) -> list[c.Command]:
        answer = self.scheduler.handle(event)
        self.scheduler.validate()
        for command in answer:
            if isinstance(command, c.Grant):
                self.grants[command.client, command.gpu] = command.grant
            elif isinstance(command, c.WakeAt):
                self.wake = command.at
            elif isinstance(command, (c.SetResidency, c.GrantMemory)):
                attachment = self.memory.get((command.client, command.gpu))
                if attachment is not None:
                    attachment.tell(command)
                    self._note_residents(command.gpu)
        for command in only(answer, c.SampleCards) if self.samples else ():
            answer = answer + self.send(e.CardsSampled(self.now, command.sample))
        return answer

    def _note_residents(self, gpu: str) -> None:
        now = sum(attachment.resident for (_, uuid), attachment in self.memory.items() if uuid == gpu)
        self.most_resident[gpu] = max(self.most_resident[gpu], now)

    def register(
        self,
        client: int,
        *gpus: str | e.HeldGpu,
        group: str = "",
        mem_limit: int | None = None,
        core_limit: Cores | int | str | None = None,
        priority: Priority = Priority.NORMAL,
        pod: str = "",
        can_swap: bool = False,
        oversize: bool = False,
    ) -> list[c.Command]:
        held = tuple(e.HeldGpu(gpu) if isinstance(gpu, str) else gpu for gpu in gpus or (A,))
        for gpu in held if can_swap else ():
            target = gpu.resident if gpu.resident < gpu.allocated else NO_TARGET
            self.memory[client, gpu.gpu] = Memory(gpu.allocated, 0, gpu.resident, target)
        if group.startswith("run:"):
            self.send(e.RunAwaited(self.now, process_in(f"process:{group[4:]}", client)))
        answer = self.send(
            e.ClientRegistered(
                self.now,
                client,
                process_in(group, client),
                held,
                name=f"task-{client}",
                pod_name=pod,
                pod_namespace="default" if pod else "",
                mem_limit=mem_limit,
                core_limit=cores(core_limit),
                priority=priority,
                can_swap=can_swap,
                oversize=oversize,
            )
        )
        if self.demand is not None:
            for attachment in self.scheduler._node.clients[client].gpus.values():
                attachment.demand = self.demand
        return answer

    def mover(self, client: int, *sizes: int, gpus: tuple[str, ...] = (A,), works: bool = False) -> list[c.Command]:
        """A client that can move its memory, with so much of it on each of its cards; the last answer."""
        answer = self.register(client, *gpus, can_swap=True)
        for gpu, size in zip(gpus, sizes, strict=True):
            self.allocate(client, size, gpu)
        return self.request(client, gpus[0]) if works else answer

    def tell_memory(self, client: int, gpu: str = A) -> list[c.Command]:
        """The client confirms its target and says what it has."""
        attachment = self.memory[client, gpu]
        host = attachment.allocated - attachment.resident
        return self.send(
            e.MemoryUpdated(
                self.now, client, gpu, attachment.released, attachment.resident, host, applied=attachment.number
            )
        )

    def free(self, client: int, size: int, gpu: str = A) -> list[c.Command]:
        """Gives memory back that is on the card."""
        attachment = self.memory[client, gpu]
        attachment.allocated -= size
        attachment.released += size
        attachment.resident = min(attachment.resident, attachment.allocated)
        return self.tell_memory(client, gpu)

    def move(self, client: int, chunk: int = GIB // 4, gpu: str = A) -> list[c.Command]:
        """One chunk towards the client's target."""
        self.memory[client, gpu].move(chunk)
        self._note_residents(gpu)
        return self.tell_memory(client, gpu)

    def move_all(self, chunk: int = GIB // 4) -> list[c.Command]:
        """Everybody moves chunk by chunk, in turn, until all have what they may; the answers, in order."""
        answers = []
        for client, gpu in self._movers():
            answers += self.tell_memory(client, gpu)
        busy = True
        while busy:
            busy = False
            for client, gpu in self._movers():
                attachment = self.memory[client, gpu]
                if attachment.resident != min(attachment.target, attachment.allocated):
                    busy = True
                    answers += self.move(client, chunk, gpu)
        return answers

    def _movers(self) -> Iterator[tuple[int, str]]:
        alive = {view.id for view in self.scheduler.snapshot(self.now).clients}
        return iter([key for key in self.memory if f"{key[0]:016x}" in alive])

    def attach(self, client: int, *gpus: str) -> list[c.Command]:
        return self.send(e.GpuAttached(self.now, client, tuple(e.HeldGpu(gpu) for gpu in gpus)))

    def gone(self, client: int) -> list[c.Command]:
        self.memory = {key: attachment for key, attachment in self.memory.items() if key[0] != client}
        return self.send(e.ClientGone(self.now, client))

    def request(self, client: int, gpu: str = A) -> list[c.Command]:
        return self.send(e.LockRequested(self.now, client, gpu))

    def release(
        self, client: int, gpu: str = A, *, grant: int | None = None, stuck: bool = False, drain: float = 0.0
    ) -> list[c.Command]:
        number = self.grants[client, gpu] if grant is None else grant
        return self.send(e.LockReleased(self.now, client, gpu, number, stuck, drain))

    def allocate(self, client: int, size: int, gpu: str = A, stays: bool = False) -> MemoryAnswer:
        self.requests += 1
        answer = self.send(e.MemoryRequested(self.now, client, gpu, self.requests, size, stays))
        return next(
            command for command in answer if isinstance(command, MemoryAnswer) and command.request == self.requests
        )

    def keep(self, client: int, size: int, gpu: str = A) -> c.KeepMemory | c.DenyMemory:
        self.requests += 1
        answer = self.send(e.MemoryKept(self.now, client, gpu, self.requests, size))
        return next(command for command in answer if isinstance(command, c.KeepMemory | c.DenyMemory))

    def report(self, client: int, released: int, resident: int = 0, host: int = 0, gpu: str = A) -> list[c.Command]:
        return self.send(e.MemoryUpdated(self.now, client, gpu, released, resident, host))

    def context(self, client: int, size: int, gpu: str = A) -> list[c.Command]:
        return self.send(e.ContextMeasured(self.now, client, gpu, size))

    def outsiders(self, *sizes: int | None, gpu: str = A) -> list[c.Command]:
        """Processes that are no clients have so much of the card from now on."""
        users = tuple(e.Unmanaged(2000 + index, f"outsider-{index}", size) for index, size in enumerate(sizes))
        return self.send(e.UnmanagedSeen(self.now, gpu, users))

    def change(self, **settings: object) -> list[c.Command]:
        return self.send(e.SettingsChanged(self.now, **settings))  # type: ignore[arg-type]

    def limit(self, group: str, **limits: object) -> list[c.Command]:
        return self.send(e.LimitsChanged(self.now, group, **with_cores(limits)))

    def pass_time(self, seconds: float) -> list[c.Command]:
        """Let time pass; the timer fires whenever the scheduler asked for it. All answers, in order."""
        until, answers = self.now + seconds, []
        while self.wake is not None and self.wake <= until:
            self.now, self.wake = max(self.now, self.wake), None
            answers += self.send(e.TimerFired(self.now))
        self.now = until
        return answers

    def state(self, client: int) -> str:
        clients = self.scheduler.snapshot(self.now).clients
        return next(view.state for view in clients if view.id == f"{client:016x}")

    def waiting_for(self, client: int, gpu: str = A) -> str | None:
        clients = self.scheduler.snapshot(self.now).clients
        view = next(view for view in clients if view.id == f"{client:016x}")
        return next(attachment.waiting_for for attachment in view.gpus if attachment.uuid == gpu)

    def gpu(self, uuid: str = A) -> dict[str, Any]:
        return next(view for view in self.scheduler.snapshot(self.now).to_dict()["gpus"] if view["uuid"] == uuid)


def cores(quota: Cores | int | str | None) -> Cores | None:
    """A quota from a cap, right or wrong, or from text."""
    if isinstance(quota, str):
        return Cores.parse(quota)
    return Cores(cap=quota) if isinstance(quota, int) else quota


def with_cores(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event, with a quota for a number or text."""
    return {name: cores(value) if name in ("cores", "core_limit") else value for name, value in fields.items()}


def pair(first: int = 12 * GIB, second: int = 12 * GIB, mode: Mode = Mode.AUTO) -> Scene:
    """Two that do not fit together: 1 runs, 2 waits."""
    scene = Scene(mode, declared=CARD)
    scene.mover(1, first, works=True)
    scene.mover(2, second, works=True)
    scene.move_all()
    return scene


def only(answer: list[c.Command], kind: type[C] | tuple[type[C], ...]) -> list[C]:
    return [command for command in answer if isinstance(command, kind)]


def granted(answer: list[c.Command]) -> list[tuple[int, str]]:
    return [(grant.client, grant.gpu) for grant in only(answer, c.Grant)]


def dropped(answer: list[c.Command]) -> list[tuple[int, str]]:
    return [(drop.client, drop.gpu) for drop in only(answer, c.Drop)]


def targets(answer: list[c.Command]) -> dict[int, int]:
    """The last target of each client that was sent one."""
    return {command.client: command.target for command in only(answer, c.SetResidency)}


def said(answer: list[c.Command], level: c.Level | None = None) -> list[str]:
    return [log.text for log in only(answer, c.Log) if level in (None, log.level)]


def to_clients(answer: list[c.Command]) -> list[c.Command]:
    for_the_shell = (c.Log, c.WakeAt, c.SampleCards, c.GroupAppeared, c.Registered)
    return [command for command in answer if not isinstance(command, for_the_shell)]
