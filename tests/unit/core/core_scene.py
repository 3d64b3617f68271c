"""A scheduler on a stage: short verbs for events, a clock moved by hand, invariants checked at every step."""

from __future__ import annotations

from typing import TypeVar

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.scheduler import Scheduler
from nvshare.core.settings import Mode, Priority, Settings, SwitchTime

MIB = 1 << 20
GIB = 1 << 30
A, B = "GPU-a", "GPU-b"

C = TypeVar("C", bound=c.Command)


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
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(
            Settings(
                mode=mode,
                switch_time=SwitchTime.FIXED,
                quantum=quantum,
                anti_thrash=anti_thrash,
                reserve_percent=reserve_percent,
            )
        )
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
        return answer

    def register(
        self,
        client: int,
        *gpus: str | e.HeldGpu,
        group: str = "",
        mem_limit: int | None = None,
        core_limit: int | None = None,
        priority: Priority = Priority.NORMAL,
        pod: str = "",
    ) -> list[c.Command]:
        held = tuple(e.HeldGpu(gpu) if isinstance(gpu, str) else gpu for gpu in gpus or (A,))
        return self.send(
            e.ClientRegistered(
                self.now,
                client,
                group or f"process:{client}",
                held,
                pid=1000 + client,
                name=f"task-{client}",
                pod_name=pod,
                pod_namespace="default" if pod else "",
                mem_limit=mem_limit,
                core_limit=core_limit,
                priority=priority,
            )
        )

    def attach(self, client: int, *gpus: str) -> list[c.Command]:
        return self.send(e.GpuAttached(self.now, client, tuple(e.HeldGpu(gpu) for gpu in gpus)))

    def gone(self, client: int) -> list[c.Command]:
        return self.send(e.ClientGone(self.now, client))

    def request(self, client: int, gpu: str = A, need: int = 0) -> list[c.Command]:
        return self.send(e.LockRequested(self.now, client, gpu, need))

    def release(
        self, client: int, gpu: str = A, *, grant: int | None = None, stuck: bool = False, drain: float = 0.0
    ) -> list[c.Command]:
        number = self.grants[client, gpu] if grant is None else grant
        return self.send(e.LockReleased(self.now, client, gpu, number, stuck, drain))

    def allocate(self, client: int, size: int, gpu: str = A) -> c.Command:
        self.requests += 1
        answer = self.send(e.MemoryRequested(self.now, client, gpu, self.requests, size))
        return only(answer, (c.GrantMemory, c.DenyMemory))[0]

    def report(self, client: int, released: int, resident: int = 0, host: int = 0, gpu: str = A) -> list[c.Command]:
        return self.send(e.MemoryUpdated(self.now, client, gpu, released, resident, host))

    def context(self, client: int, size: int, gpu: str = A) -> list[c.Command]:
        return self.send(e.ContextMeasured(self.now, client, gpu, size))

    def change(self, **settings: object) -> list[c.Command]:
        return self.send(e.SettingsChanged(self.now, **settings))  # type: ignore[arg-type]

    def limit(self, group: str, **limits: object) -> list[c.Command]:
        return self.send(e.LimitsChanged(self.now, group, **limits))  # type: ignore[arg-type]

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

    def gpu(self, uuid: str = A) -> dict[str, object]:
        return next(view for view in self.scheduler.snapshot(self.now).to_dict()["gpus"] if view["uuid"] == uuid)


def only(answer: list[c.Command], kind: type[C] | tuple[type[C], ...]) -> list[C]:
    return [command for command in answer if isinstance(command, kind)]


def granted(answer: list[c.Command]) -> list[tuple[int, str]]:
    return [(grant.client, grant.gpu) for grant in only(answer, c.Grant)]


def dropped(answer: list[c.Command]) -> list[tuple[int, str]]:
    return [(drop.client, drop.gpu) for drop in only(answer, c.Drop)]


def said(answer: list[c.Command], level: c.Level | None = None) -> list[str]:
    return [log.text for log in only(answer, c.Log) if level in (None, log.level)]


def to_clients(answer: list[c.Command]) -> list[c.Command]:
    return [command for command in answer if not isinstance(command, (c.Log, c.WakeAt))]
