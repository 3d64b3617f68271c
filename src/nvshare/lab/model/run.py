"""The model as a backend: one node of equal cards, one run at a time, every run from a fresh start."""

from __future__ import annotations

import uuid

from nvshare.core.settings import Mode, Settings
from nvshare.gpu.profiles import Profile
from nvshare.lab.model.card import Card
from nvshare.lab.model.engine import Engine
from nvshare.lab.model.link import Path, Plain, Shared
from nvshare.lab.model.shell import Shell
from nvshare.lab.model.task import Barrier, Task
from nvshare.lab.outcome import Outcome, Progress, RunPlan, TaskPlan, TaskResult, ignore_progress

_FIRST_CLIENT = 0xA000_0000_0000_0001  # ids look like real ones and are the same in every run


def _card_uuid(profile: Profile, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'nvshare model {profile.name} {index}')}"


class ModelBackend:
    """Deterministic: the same plan gives the same outcome to the last digit."""

    source = "model"

    def __init__(self, gpus: int, profile: Profile, mode: Mode = Mode.AUTO) -> None:
        self.gpus = gpus
        self.title = f"{gpus} x {profile.name} (model)"
        self._profile = profile
        self._mode = mode

    def run(self, plan: RunPlan, progress: Progress = ignore_progress) -> Outcome:
        engine = Engine()
        cards = [Card(engine, _card_uuid(self._profile, index), self._profile) for index in range(self.gpus)]
        shell = Shell(engine, Settings(mode=self._mode))
        for card in cards:
            shell.add_card(card.uuid, self._profile.memory_bytes, self._profile.name)
        begin, end = Barrier(len(plan.tasks)), Barrier(len(plan.tasks))
        tasks: list[Task] = []
        for index, planned in enumerate(plan.tasks):
            card, client = cards[planned.gpu], _FIRST_CLIENT + index
            path: Path = Shared(engine, shell, card, client, planned) if plan.shared else Plain(card, client)
            task = Task(engine, card, path, client, planned.workload, planned.seed)
            engine.start(task.run(begin, end))
            tasks.append(task)
        engine.run()
        progress(1.0)
        copied = sum(card.copied_bytes for card in cards)
        return Outcome(
            tasks=tuple(
                _result(planned, task, cards[planned.gpu], _FIRST_CLIENT + index if plan.shared else 0)
                for index, (planned, task) in enumerate(zip(plan.tasks, tasks, strict=True))
            ),
            swapped_bytes=copied - sum(task.times.copied_bytes for task in tasks),
            switches=shell.snapshot().counters.switches,
        )


def _result(planned: TaskPlan, task: Task, card: Card, client: int) -> TaskResult:
    times = task.times
    return TaskResult(
        name=planned.name,
        client=f"{client:016x}" if client else "",
        gpu=card.uuid,
        status="OOM" if times.out_of_memory else "PASS",
        expected=planned.expected,
        seconds=times.setup + times.loop,
        loop_seconds=times.loop,
        its=planned.workload.iterations / times.loop if times.loop else 0.0,
        window=times.window,
    )
