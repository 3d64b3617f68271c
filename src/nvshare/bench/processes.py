"""Real processes as a backend: workload programs on a simulated or real card, under ``libnvshare.so`` or plain."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshare import config, native
from nvshare.bench.history import CardHistory, Recorder
from nvshare.bench.outcome import Outcome, Progress, RunPlan, TaskPlan, TaskResult, Timeline, ignore_progress
from nvshare.bench.switches import PERIOD, SwitchWatch
from nvshare.bench.team import Member, Team
from nvshare.client.connection import Connection, SchedulerError
from nvshare.client.spawn import IDLE_EXIT, PROGRAM, ensure_scheduler, is_running
from nvshare.gpu.profiles import Profile

_UNSHARED = "it ran without nvshare: the scheduler never knew it (libnvshare.so was not loaded)"
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]  # so that children find this package in a source tree too


@dataclass(frozen=True)
class Venue:
    """Where processes run. ``copied`` tells the driver's own counters of bytes copied to the cards and from them, where
    it has any; ``profile`` what the cards can do, where that is known; ``card`` NVML's name of them, if all are alike;
    ``card_memory`` what the scheduler declares; ``scheduler`` what Python runs as one where none answers, which
    ``starting`` hears of before."""

    source: str
    title: str
    uuids: tuple[str, ...]
    socket: Path
    variables: Mapping[str, str]
    speed: float = 1.0
    copied: Callable[[], tuple[int, int]] | None = None
    profile: Profile | None = None
    card: str = ""
    card_memory: int | None = None
    idle_exit: float = IDLE_EXIT
    scheduler: tuple[str, ...] = PROGRAM
    starting: Callable[[], None] = lambda: None

    def plain_environment(self, gpu: int = 0) -> dict[str, str]:
        """Of a process on one card, without nvshare."""
        return config.child_environment(self._shown(gpu))

    def shared_environment(self, gpu: int = 0) -> dict[str, str]:
        """Of a process on one card, under nvshare."""
        shared = {
            "LD_PRELOAD": config.preload_with(native.interposer()),
            "NVSHARE_SOCK": str(self.socket),
            "NVSHARE_REQUIRE": "on",
        }
        return config.child_environment({**self._shown(gpu), **shared})

    def _shown(self, gpu: int) -> dict[str, str]:
        path = ":".join(filter(None, [str(_PACKAGE_PARENT), config.child_environment({}).get("PYTHONPATH")]))
        return {**self.variables, "CUDA_VISIBLE_DEVICES": self.uuids[gpu], "PYTHONPATH": path}

    def ensure_scheduler(self) -> bool:
        """Return once the scheduler of this place answers; True when it had to be started. ``SchedulerError`` when it
        cannot run."""
        environment = config.child_environment(self.variables)
        if not is_running(self.socket):
            self.starting()
        return ensure_scheduler(
            self.socket, environment, card_memory=self.card_memory, idle_exit=self.idle_exit, program=self.scheduler
        )

    @contextlib.contextmanager
    def set_to(self, mode: str, quantum: float | None = None) -> Iterator[None]:
        """Its scheduler in this mode, with turns so long, and afterwards as it was."""
        with Connection(self.socket) as connection:
            before = connection.status()["settings"]
            connection.request("set", mode=mode, **({} if quantum is None else {"quantum": quantum}))
        try:
            yield
        finally:
            with contextlib.suppress(SchedulerError), Connection(self.socket) as connection:
                connection.request(
                    "set", mode=before["mode"], quantum=before["quantum_s"], switch_time=before["switch_time"]
                )


class ProcessBackend:
    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self.source = venue.source
        self.title = venue.title
        self.gpus = len(venue.uuids)

    def room(self, tasks: int) -> int | None:
        venue = self._venue
        if venue.card_memory is not None or venue.profile is None:
            return venue.card_memory
        return venue.profile.memory_bytes - tasks * venue.profile.context_bytes

    def run(self, plan: RunPlan, progress: Progress = ignore_progress) -> Outcome:
        """Carry the plan out. ``SchedulerError``, ``NativeMissing`` or ``TeamStalled`` when that is not possible."""
        if not plan.shared:
            return self._run(plan, progress)
        self._venue.ensure_scheduler()
        with self._venue.set_to(plan.mode, plan.quantum):
            return self._run(plan, progress)

    def _run(self, plan: RunPlan, progress: Progress) -> Outcome:
        venue = self._venue
        status_before = self._status() if plan.shared else None
        copied_before = self._copied()
        recorder = Recorder()
        with Team(plan.tasks, venue.speed, lambda task: self._environment(task, plan.shared)) as team:
            team.await_ready()
            set_up = self._copied()
            watch = SwitchWatch(self._status, recorder.looked) if plan.shared else None
            with watch or contextlib.nullcontext():
                team.go()
                team.await_results(progress)
            status = self._status() if plan.shared else None
            copied = self._copied()
            team.leave()
        own = _own_copies(team.members)
        for member in team.members:
            _require_shared(member, status)
        return Outcome(
            tasks=tuple(_result(member, status, venue.uuids) for member in team.members),
            swapped_bytes=(
                _increase("swapped_bytes", status_before, status)
                if copied is None or copied_before is None
                else sum(copied) - sum(copied_before) - own.into - own.out_of
            ),
            switches=_increase("switches", status_before, status),
            messages=tuple(f"{member.plan.name}: {member.error}" for member in team.members if member.error),
            timelines={member.plan.name: self._timeline(member, team.began) for member in team.members},
            turns=watch.turns(copied, set_up, own.checked, venue.speed) if watch is not None else None,
            cards=self._history(team, status, recorder) if plan.shared else (),
        )

    def _history(self, team: Team, status: dict[str, Any] | None, recorder: Recorder) -> tuple[CardHistory, ...]:
        names = {_client_of(member, status).get("id") or member.client: member.plan.name for member in team.members}
        longest = max(float(member.result.get("loop_seconds", 0.0)) for member in team.members)
        ended = team.began + longest / self._venue.speed
        return recorder.cards(self._venue.uuids, names, team.began, ended, self._venue.speed, PERIOD)

    def _copied(self) -> tuple[int, int] | None:
        """To the cards and from them, so far."""
        return self._venue.copied() if self._venue.copied else None

    def _timeline(self, member: Member, began: float) -> Timeline:
        speed = self._venue.speed
        marks = tuple(((at - began) * speed, done) for at, done in member.result.get("marks", ()))
        return Timeline(marks, None if member.ended_at is None else (member.ended_at - began) * speed)

    def _status(self) -> dict[str, Any]:
        with Connection(self._venue.socket) as connection:
            return connection.status()

    def _environment(self, task: TaskPlan, shared: bool) -> dict[str, str]:
        venue = self._venue
        environment = venue.shared_environment(task.gpu) if shared else venue.plain_environment(task.gpu)
        if task.mem_limit is not None:
            environment["NVSHARE_GPU_MEMORY_LIMIT"] = str(task.mem_limit)
        return environment


def _increase(counter: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> int:
    if before is None or after is None:
        return 0
    return int(after["counters"][counter]) - int(before["counters"][counter])


@dataclass(frozen=True)
class _Copies:
    """Bytes that the workloads copied themselves; ``checked`` of them after the loops, to look at the results."""

    into: int
    out_of: int

    @property
    def checked(self) -> tuple[int, int]:
        return 0, self.out_of


def _own_copies(members: list[Member]) -> _Copies:
    def total(way: str) -> int:
        return sum(int(member.result.get(way, 0)) for member in members)

    return _Copies(total("copied_h2d"), total("copied_d2h"))


def _result(member: Member, status: dict[str, Any] | None, uuids: tuple[str, ...]) -> TaskResult:
    result = member.result
    client = _client_of(member, status)
    on_gpu: dict[str, Any] = next(iter(client.get("gpus", ())), {})
    return TaskResult(
        name=member.plan.name,
        client=client.get("id", ""),
        gpu=result.get("uuid", uuids[member.plan.gpu]),
        status=_verdict(member),
        expected=member.plan.expected,
        seconds=result.get("seconds", 0.0),
        loop_seconds=result.get("loop_seconds", 0.0),
        its=result.get("its", 0.0),
        window=on_gpu.get("window"),
        occupied=on_gpu.get("occupied_s"),
    )


def _require_shared(member: Member, status: dict[str, Any] | None) -> None:
    """A task of a shared run that went well without the scheduler knowing it went well for the wrong reason."""
    if status is not None and _ended_well(member) and not member.client and not _client_of(member, status):
        member.error = _UNSHARED


def _ended_well(member: Member) -> bool:
    return bool(member.result.get("passed")) and member.process.returncode == 0


def _verdict(member: Member) -> str:
    if member.plan.killed_at is not None and member.process.returncode == -signal.SIGKILL:
        return "KILLED"
    if _ended_well(member) and member.error != _UNSHARED:
        return "PASS"
    return "OOM" if _OUT_OF_MEMORY in member.error else "FAIL"


def _client_of(member: Member, status: dict[str, Any] | None) -> dict[str, Any]:
    """By the id it was given, because a scheduler outside of our container knows it by another process number."""
    clients: list[dict[str, Any]] = status["clients"] if status else []
    key, value = ("id", member.client) if member.client else ("pid", member.process.pid)
    return next((client for client in clients if client[key] == value), {})
