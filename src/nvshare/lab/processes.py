"""Real processes as a backend: workload programs on a simulated or real card, under ``libnvshare.so`` or plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshare import config, native
from nvshare.client.connection import Connection
from nvshare.client.spawn import ensure_scheduler
from nvshare.lab.outcome import Outcome, Progress, RunPlan, TaskPlan, TaskResult, ignore_progress
from nvshare.lab.team import Member, Team

_UNSHARED = "it ran without nvshare: the scheduler never knew it (libnvshare.so was not loaded)"
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]  # so that children find this package in a source tree too


@dataclass(frozen=True)
class Place:
    """Where processes run. ``copied`` sums the driver's own counters of bytes copied either way, where it has any."""

    source: str
    title: str
    uuids: tuple[str, ...]
    socket: Path
    variables: Mapping[str, str]
    speed: float = 1.0
    copied: Callable[[], int] | None = None


class ProcessBackend:
    def __init__(self, place: Place) -> None:
        self._place = place
        self.source = place.source
        self.title = place.title
        self.gpus = len(place.uuids)

    def run(self, plan: RunPlan, progress: Progress = ignore_progress) -> Outcome:
        """Carry the plan out. ``SchedulerError``, ``NativeMissing`` or ``TeamStalled`` when that is not possible."""
        place = self._place
        if plan.shared:
            ensure_scheduler(place.socket, config.child_environment(place.variables))
        status_before = self._status() if plan.shared else None
        copied_before = place.copied() if place.copied else 0
        with Team(plan.tasks, place.speed, lambda task: self._environment(task, plan.shared)) as team:
            team.await_ready()
            team.go()
            team.await_results(progress)
            status = self._status() if plan.shared else None
            copied = place.copied() - copied_before if place.copied else None
            team.leave()
        for member in team.members:
            _require_shared(member, status)
        return Outcome(
            tasks=tuple(_result(member, status, place.uuids) for member in team.members),
            swapped_bytes=_swapped(copied, team.members, status_before, status),
            switches=_increase("switches", status_before, status),
            messages=tuple(f"{member.plan.name}: {member.error}" for member in team.members if member.error),
        )

    def _status(self) -> dict[str, Any]:
        with Connection(self._place.socket) as connection:
            return connection.status()

    def _environment(self, task: TaskPlan, shared: bool) -> dict[str, str]:
        variables = {
            **self._place.variables,
            "CUDA_VISIBLE_DEVICES": self._place.uuids[task.gpu],
            "PYTHONPATH": str(_PACKAGE_PARENT),
        }
        if shared:
            variables["LD_PRELOAD"] = config.preload_with(native.interposer())
            variables["NVSHARE_SOCK"] = str(self._place.socket)
            variables["NVSHARE_REQUIRE"] = "on"
        if task.mem_limit is not None:
            variables["NVSHARE_GPU_MEMORY_LIMIT"] = str(task.mem_limit)
        return config.child_environment(variables)


def _increase(counter: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> int:
    if before is None or after is None:
        return 0
    return int(after["counters"][counter]) - int(before["counters"][counter])


def _swapped(
    copied: int | None, members: list[Member], before: dict[str, Any] | None, after: dict[str, Any] | None
) -> int:
    """Bytes moved that no workload asked for: by the driver's counters, else by what the tasks told the scheduler."""
    if copied is None:
        return _increase("swapped_bytes", before, after)
    own: int = sum(member.result.get(way, 0) for member in members for way in ("copied_h2d", "copied_d2h"))
    return copied - own


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
    if status is not None and _ended_well(member) and not _client_of(member, status):
        member.error = _UNSHARED


def _ended_well(member: Member) -> bool:
    return bool(member.result.get("passed")) and member.process.returncode == 0


def _verdict(member: Member) -> str:
    if _ended_well(member) and member.error != _UNSHARED:
        return "PASS"
    return "OOM" if _OUT_OF_MEMORY in member.error else "FAIL"


def _client_of(member: Member, status: dict[str, Any] | None) -> dict[str, Any]:
    """By the id it was given, because a scheduler outside of our container knows it by another process number."""
    clients: list[dict[str, Any]] = status["clients"] if status else []
    key, value = ("id", member.client) if member.client else ("pid", member.process.pid)
    return next((client for client in clients if client[key] == value), {})
