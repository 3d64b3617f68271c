"""The tests of the published table: which tasks, on how many GPUs, against which baseline.

Test 2 (tasks that do not fit together) needs memory turns and is not here yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from nvshare.gpu.profiles import Profile
from nvshare.lab.outcome import Backend, Outcome, Progress, RunPlan, TaskPlan, TaskResult, ignore_progress
from nvshare.lab.workloads.spec import WORKLOADS


@dataclass(frozen=True)
class Scenario:
    """``per_gpu`` tasks of one workload on each of ``gpus`` GPUs. The first is called ``nvshare-<pod>-1``."""

    test: int
    workload: str
    label: str
    pod: str
    per_gpu: int = 1
    gpus: int = 1
    shared: bool = True

    @property
    def mode(self) -> str:
        return "auto" if self.shared else "plain"

    def title(self, node_gpus: int) -> str:
        if not self.shared:
            return f"{self.label}, plain"
        gpus = min(self.gpus, node_gpus)
        tasks = self.per_gpu * gpus
        return (
            f"{self.label}, alone on a GPU" if tasks == 1 else f"{tasks} {self.label} on {gpus} GPU{'s' * (gpus > 1)}"
        )

    def plan(self, node_gpus: int, shorten: Mapping[str, float]) -> RunPlan:
        """Tasks spread over the GPUs in turn. A node with fewer GPUs gets fewer tasks, as many on each."""
        gpus = min(self.gpus, node_gpus)
        workload = WORKLOADS[self.workload].shortened(shorten.get(self.workload, 1.0))
        tasks = tuple(
            TaskPlan(f"nvshare-{self.pod}-{index + 1}", workload, index % gpus, seed=index + 1)
            for index in range(self.per_gpu * gpus)
        )
        return RunPlan(tasks, self.shared)


BASELINES: dict[str, Scenario] = {
    scenario.workload: scenario
    for scenario in (
        Scenario(0, "add", "add", "cross-gpu", shared=False),
        Scenario(0, "add-small", "small", "small", shared=False),
        Scenario(0, "add-idle-small", "idle-small", "idle-small", shared=False),
    )
}

SCENARIOS: tuple[Scenario, ...] = (
    replace(BASELINES["add"], test=1, shared=True),
    replace(BASELINES["add-small"], test=3, shared=True),
    replace(BASELINES["add-small"], test=4, shared=True, per_gpu=2, gpus=2),
    replace(BASELINES["add-idle-small"], test=5, shared=True),
    replace(BASELINES["add-idle-small"], test=6, shared=True, per_gpu=3, gpus=2),
)

TESTS: tuple[int, ...] = (0, *(scenario.test for scenario in SCENARIOS))
NOT_YET: dict[int, str] = {
    2: "test 2 (4 add on 2 GPUs, which do not fit together) needs memory turns, which this version does not have yet",
}


@dataclass(frozen=True)
class Row:
    """One line of the result.

    ``duration_s`` is the mean over the tasks of their own loop, from the first add to the end of the last: the loop and
    not the process, because a shortened run would else measure how fast Python starts. ``ratio`` is ``duration_s`` over
    ``baseline_s``, the same of one plain task.
    """

    test: int
    title: str
    tasks: int
    gpus: int
    workload: str
    mode: str
    duration_s: float
    baseline_s: float
    ratio: float
    swapped_bytes: int
    switches: int
    source: str
    setup_s: float
    its: float  # of all tasks together
    details: tuple[TaskResult, ...] = ()
    messages: tuple[str, ...] = ()
    model_ratio: float | None = None  # what the model says of the same scenario, where the source is another

    @property
    def passed(self) -> bool:
        return all(task.status == task.expected for task in self.details)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_row(
    test: int, title: str, workload: str, mode: str, outcome: Outcome, source: str, baseline_s: float | None
) -> Row:
    """A row from an outcome; ``baseline_s`` None: it is its own baseline. Tasks that were to fail do not count."""
    counted = [task for task in outcome.tasks if task.expected == "PASS"]
    duration = fmean(task.loop_seconds for task in counted)
    baseline = duration if baseline_s is None else baseline_s
    return Row(
        test=test,
        title=title,
        tasks=len(outcome.tasks),
        gpus=len({task.gpu for task in outcome.tasks}),
        workload=workload,
        mode=mode,
        duration_s=duration,
        baseline_s=baseline,
        ratio=duration / baseline if baseline else 0.0,
        swapped_bytes=outcome.swapped_bytes,
        switches=outcome.switches,
        source=source,
        setup_s=fmean(task.seconds - task.loop_seconds for task in counted),
        its=sum(task.its for task in counted),
        details=outcome.tasks,
        messages=outcome.messages,
    )


class BaselineFailed(Exception):
    """A workload does not run here even without nvshare."""


Started = Callable[[Scenario], Progress]  # told when a scenario begins; gives what is to be told how far it is


@dataclass
class Mission:
    """Runs chosen tests on a backend, each baseline once. ``shorten`` holds a part of the iterations per workload."""

    backend: Backend
    shorten: Mapping[str, float] = field(default_factory=dict)
    started: Started = lambda scenario: ignore_progress
    _baselines: dict[str, Row] = field(default_factory=dict)

    def rows(self, tests: Iterable[int]) -> list[Row]:
        """The chosen tests' rows, those of test 0 first."""
        wanted = set(tests)
        chosen = [scenario for scenario in SCENARIOS if scenario.test in wanted]
        plain = [name for name in BASELINES if 0 in wanted]
        return [self.baseline(name) for name in plain] + [self.run(scenario) for scenario in chosen]

    def baseline(self, name: str) -> Row:
        """The plain run of a workload; ``BaselineFailed`` when there is nothing to compare with."""
        if name not in self._baselines:
            row = self._measure(BASELINES[name], None)
            if not row.passed:
                raise BaselineFailed(
                    f"{name} fails without nvshare too: {'; '.join(row.messages) or 'it said nothing'}"
                )
            self._baselines[name] = row
        return self._baselines[name]

    def run(self, scenario: Scenario) -> Row:
        return self._measure(scenario, self.baseline(scenario.workload).duration_s)

    def _measure(self, scenario: Scenario, baseline_s: float | None) -> Row:
        backend = self.backend
        outcome = backend.run(scenario.plan(backend.gpus, self.shorten), self.started(scenario))
        title = scenario.title(backend.gpus)
        return make_row(scenario.test, title, scenario.workload, scenario.mode, outcome, backend.source, baseline_s)


def compare_with_model(rows: Iterable[Row], model_rows: Iterable[Row]) -> list[Row]:
    """The rows with the model's ratios beside their own."""
    ratios = {(row.test, row.workload, row.mode): row.ratio for row in model_rows}
    return [replace(row, model_ratio=ratios.get((row.test, row.workload, row.mode))) for row in rows]


def shortening(profile: Profile, seconds: float) -> dict[str, float]:
    """Parts of the iterations such that each workload's loop, alone on such a card, takes at most this long."""
    parts: dict[str, float] = {}
    for name, workload in WORKLOADS.items():
        whole = workload.iterations * (profile.kernel_seconds(workload.kernel_bytes) + workload.sleep)
        parts[name] = min(1.0, seconds / whole)
    return parts
