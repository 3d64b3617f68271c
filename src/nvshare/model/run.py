"""The model as a backend: one node of equal cards, one run at a time, every run from a fresh start."""

from __future__ import annotations

import uuid
from dataclasses import replace

from nvshare.bench.history import CardHistory, Recorder
from nvshare.bench.outcome import Outcome, Progress, RunPlan, TaskPlan, TaskResult, Timeline, ignore_progress
from nvshare.core.settings import Mode, Settings, SwitchTime
from nvshare.gpu.profiles import Profile
from nvshare.model.card import Card
from nvshare.model.engine import Engine
from nvshare.model.link import Path, Plain, Shared
from nvshare.model.shell import Shell
from nvshare.model.task import Barrier, Task
from nvshare.model.watch import HistoryWatch, SwitchWatch

_DRIVER_TIMES = (
    "launch_overhead",
    "host_register_per_gib",
    "host_alloc_per_gib",
    "mem_create",
    "mem_map",
    "mem_set_access",
    "mem_unmap",
    "mem_release",
)
_FIRST_CLIENT = 0xA000_0000_0000_0001  # ids look like real ones and are the same in every run


def card_uuid(profile: Profile, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'nvshare model {profile.name} {index}')}"


def _hastened(profile: Profile, speed: float) -> Profile:
    """The same card, so many times as fast in all it does."""
    fast = profile.scaled(link=speed, kernel=1 / speed)
    return replace(fast, **{field: getattr(profile, field) / speed for field in _DRIVER_TIMES})


def _settings(plan: RunPlan) -> Settings:
    settings = Settings(mode=Mode(plan.mode)) if plan.shared else Settings()
    if plan.quantum is None:
        return settings
    return replace(settings, switch_time=SwitchTime.FIXED, quantum=plan.quantum)


class ModelBackend:
    """Deterministic: the same plan gives the same outcome to the last digit.

    ``speed`` makes cards and pauses so many times as fast and all results as many times as long, as a simulated node of
    that speed: what the scheduler and the library take is not made faster, nor is the scheduler's clock.
    """

    source = "model"

    def __init__(self, gpus: int, profile: Profile, *, declared: int | None = None, speed: float = 1.0) -> None:
        self.gpus = gpus
        self.title = f"{gpus} x {profile.name} (model)"
        self._profile = _hastened(profile, speed)
        self._declared = declared
        self._speed = speed

    def room(self, tasks: int) -> int | None:
        if self._declared is not None:
            return self._declared
        return self._profile.memory_bytes - tasks * self._profile.context_bytes

    def run(self, plan: RunPlan, progress: Progress = ignore_progress) -> Outcome:
        engine = Engine()
        cards = [Card(engine, card_uuid(self._profile, index), self._profile) for index in range(self.gpus)]
        paths: list[tuple[Card, Path]] = []

        def moved(gpu: str) -> tuple[int, int]:
            movers = [path.mover.moved for card, path in paths if card.uuid == gpu and isinstance(path, Shared)]
            return sum(mover.out_bytes for mover in movers), sum(mover.in_bytes for mover in movers)

        watch = SwitchWatch(self._profile, moved)
        recorder = Recorder()
        shell = Shell(engine, _settings(plan), watch, HistoryWatch(recorder))
        for card in cards:
            shell.add_card(card.uuid, self._profile.memory_bytes, self._profile.name, self._declared)
        begin, end = Barrier(len(plan.tasks)), Barrier(len(plan.tasks))
        tasks: list[Task] = []
        for index, planned in enumerate(plan.tasks):
            card, client = cards[planned.gpu], _FIRST_CLIENT + index
            path: Path = Shared(engine, shell, card, client, planned) if plan.shared else Plain(card, client)
            task = Task(engine, card, path, client, self._planned(planned))
            task.start(begin, end)
            paths.append((card, path))
            tasks.append(task)
        engine.run()
        progress(1.0)
        copied = sum(card.copied_bytes for card in cards)
        return Outcome(
            tasks=tuple(
                self._result(planned, task, cards[planned.gpu], _FIRST_CLIENT + index if plan.shared else 0)
                for index, (planned, task) in enumerate(zip(plan.tasks, tasks, strict=True))
            ),
            swapped_bytes=copied - sum(task.times.copied_bytes for task in tasks),
            switches=shell.snapshot().counters.switches,
            timelines={planned.name: self._timeline(task) for planned, task in zip(plan.tasks, tasks, strict=True)},
            turns=watch.since(tasks[0].times.began, self._speed) if plan.shared else None,
            cards=self._history(plan, tasks, cards, recorder) if plan.shared else (),
        )

    def _history(
        self, plan: RunPlan, tasks: list[Task], cards: list[Card], recorder: Recorder
    ) -> tuple[CardHistory, ...]:
        for index, card in enumerate(cards):
            room = self.room(sum(planned.gpu == index for planned in plan.tasks))
            recorder.capacity(card.uuid, room or self._profile.memory_bytes)
        names = {f"{_FIRST_CLIENT + index:016x}": planned.name for index, planned in enumerate(plan.tasks)}
        began = tasks[0].times.began
        ended = max(began + task.times.loop for task in tasks)
        return recorder.cards([card.uuid for card in cards], names, began, ended, self._speed)

    def _planned(self, planned: TaskPlan) -> TaskPlan:
        workload = planned.workload
        return replace(planned, workload=replace(workload, sleep=workload.sleep / self._speed))

    def _timeline(self, task: Task) -> Timeline:
        times, speed = task.times, self._speed
        ended = None if times.ended is None else (times.ended - times.began) * speed
        return Timeline(tuple((at * speed, done) for at, done in times.marks), ended)

    def _result(self, planned: TaskPlan, task: Task, card: Card, client: int) -> TaskResult:
        times = task.times
        loop = times.loop * self._speed
        return TaskResult(
            name=planned.name,
            client=f"{client:016x}" if client else "",
            gpu=card.uuid,
            status="KILLED" if times.killed else "OOM" if times.out_of_memory else "PASS",
            expected=planned.expected,
            seconds=times.setup * self._speed + loop,
            loop_seconds=loop,
            its=planned.workload.iterations / loop if loop else 0.0,
            window=times.window,
        )
