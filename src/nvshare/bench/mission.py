"""The tests of the published table: which tasks, on how many GPUs, against which baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from nvshare.bench import survivor
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import PLAIN, Backend, Outcome, Progress, RunPlan, TaskPlan, ignore_progress
from nvshare.bench.workloads.spec import FLOAT_BYTES, WORKLOADS, Workload
from nvshare.gpu.profiles import Profile

TURNS = "turns"  # in a table of lengths: the tasks of tests that do not fit together
_ROUND_N = 100
_CALIBRATION = 100  # adds that tell how fast a card is
_HEADROOM = 0.98  # of what contexts leave of a card: a task sized to the last byte would measure rounding


@dataclass(frozen=True)
class Scenario:
    """``per_gpu`` tasks of one workload on each of ``gpus`` GPUs. The first is called ``nvshare-<pod>-1``.

    ``variant`` tells the rows of one test apart. ``in_turns``: the tasks do not fit together. ``at_life``: cards change
    hands every few milliseconds, which takes the host's own time, so a simulated node must not be faster than life.
    """

    test: int
    workload: str
    label: str
    pod: str
    per_gpu: int = 1
    gpus: int = 1
    mode: str = "auto"
    variant: str = ""
    in_turns: bool = False
    at_life: bool = False

    @property
    def shared(self) -> bool:
        return self.mode != PLAIN

    @property
    def name(self) -> str:
        return f"{self.test}{self.variant}"

    def title(self, node_gpus: int, workload: Workload) -> str:
        size = "" if workload.n == WORKLOADS[self.workload].n else f" of n = {workload.n}"
        if not self.shared:
            return f"{self.label}{size}, plain"
        gpus = min(self.gpus, node_gpus)
        tasks = self.per_gpu * gpus
        if tasks == 1:
            return f"{self.label}{size}, alone on a GPU"
        mode = f", {self.mode}" if self.in_turns or self.variant else ""
        return f"{tasks} {self.label}{size} on {gpus} GPU{'s' * (gpus > 1)}{mode}"

    def sized(self, room: int | None, lengths: Mapping[str, float]) -> Workload:
        """The workload as this scenario runs it. Where the contexts of so many processes leave less than one task has,
        tasks are as large as fits: no task can run that is larger than what is left of its card."""
        workload = WORKLOADS[self.workload].shortened(lengths.get(TURNS if self.in_turns else self.workload, 1.0))
        if not self.in_turns or room is None or workload.bytes <= room:
            return workload
        elements = room * _HEADROOM / workload.buffers / FLOAT_BYTES
        return replace(workload, n=int(math.sqrt(elements)) // _ROUND_N * _ROUND_N)

    def plan(self, node_gpus: int, workload: Workload) -> RunPlan:
        """Tasks spread over the GPUs in turn. A node with fewer GPUs gets fewer tasks, as many on each."""
        gpus = min(self.gpus, node_gpus)
        tasks = tuple(
            TaskPlan(f"nvshare-{self.pod}-{index + 1}", workload, index % gpus, seed=index + 1)
            for index in range(self.per_gpu * gpus)
        )
        return RunPlan(tasks, self.mode)


BASELINES: dict[str, Scenario] = {
    scenario.workload: scenario
    for scenario in (
        Scenario(0, "add", "add", "cross-gpu", mode=PLAIN),
        Scenario(0, "add-small", "small", "small", mode=PLAIN),
        Scenario(0, "add-idle-small", "idle-small", "idle-small", mode=PLAIN),
    )
}

_BUSY = replace(BASELINES["add-small"], test=4, mode="auto", per_gpu=2, gpus=2)
_IN_TURNS = replace(BASELINES["add"], test=2, mode="auto", per_gpu=2, gpus=2, in_turns=True)

SCENARIOS: tuple[Scenario, ...] = (
    replace(BASELINES["add"], test=1, mode="auto"),
    replace(_IN_TURNS, mode="serial", variant=" serial"),
    replace(_IN_TURNS, variant=" auto"),
    replace(_IN_TURNS, variant="x3", per_gpu=3, gpus=1),
    replace(_IN_TURNS, variant="x4", per_gpu=4, gpus=1),
    replace(BASELINES["add-small"], test=3, mode="auto"),
    replace(_BUSY, at_life=True),
    replace(_BUSY, mode="concurrent", variant=" concurrent"),  # as the driver shares a card
    replace(BASELINES["add-idle-small"], test=5, mode="auto"),
    replace(BASELINES["add-idle-small"], test=6, mode="auto", per_gpu=3, gpus=2),
)


def place_in_table(row: Row) -> int:
    """By which rows of several runs can be put into the order of the table."""
    return next((venue for venue, scenario in enumerate(SCENARIOS) if scenario.name == row.name), -1)


TESTS: tuple[int, ...] = tuple(sorted({0, *(scenario.test for scenario in SCENARIOS)}))


def make_row(
    test: int,
    title: str,
    workload: str,
    mode: str,
    outcome: Outcome,
    source: str,
    baseline_s: float | None,
    variant: str = "",
    in_turns: bool = False,
) -> Row:
    """A row from an outcome; ``baseline_s`` None: it is its own baseline. Tasks that were to fail do not count."""
    counted = [task for task in outcome.tasks if task.expected == "PASS"]
    durations = [task.loop_seconds for task in counted]
    duration = max(durations) if in_turns else fmean(durations)
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
        variant=variant,
        timeline=outcome.cards,
    )


class BaselineFailed(Exception):
    """A workload does not run here even without nvshare."""


Started = Callable[[Scenario], Progress]  # told when a scenario begins; gives what is to be told how far it is


@dataclass
class Mission:
    """Runs chosen tests on a backend, each baseline once. ``lengths`` holds a part of the iterations per workload, and
    under ``TURNS`` that of the tests in turns."""

    backend: Backend
    lengths: Mapping[str, float] = field(default_factory=dict)
    started: Started = lambda scenario: ignore_progress
    _baselines: dict[Workload, Row] = field(default_factory=dict)

    def rows(self, tests: Iterable[int], at_life: bool | None = None) -> list[Row]:
        """The chosen tests' rows, those of test 0 first; of them those that need the speed of life, or the others."""
        wanted = set(tests)
        chosen = [scenario for scenario in SCENARIOS if scenario.test in wanted and at_life in (None, scenario.at_life)]
        plain = [scenario for scenario in BASELINES.values() if 0 in wanted]
        return [self.baseline(scenario.sized(None, self.lengths)) for scenario in plain] + [
            self.run(scenario) for scenario in chosen
        ]

    def baseline(self, workload: Workload) -> Row:
        """The plain run of a workload; ``BaselineFailed`` when there is nothing to compare with."""
        if workload not in self._baselines:
            row = self._measure(BASELINES[workload.name], workload, None)
            if not row.passed:
                raise BaselineFailed(
                    f"{workload.name} fails without nvshare too: {'; '.join(row.messages) or 'it said nothing'}"
                )
            self._baselines[workload] = row
        return self._baselines[workload]

    def run(self, scenario: Scenario) -> Row:
        workload = scenario.sized(self.backend.room(scenario.per_gpu), self.lengths)
        return self._measure(scenario, workload, self.baseline(workload).duration_s)

    def survivors(self, profile: Profile | None) -> list[Row]:
        """One of two tasks that do not fit together goes, by itself and by SIGKILL: what becomes of the other. The
        link's own limit is known where the card's figures are."""
        its = self.baseline(replace(WORKLOADS[_IN_TURNS.workload], iterations=_CALIBRATION)).its
        workload = survivor.workload(its)
        alone = workload.iterations / its
        room = self.backend.room(tasks=2)
        limit = None if profile is None or room is None else max(0, 2 * workload.bytes - room) / profile.link_h2d
        rows = []
        for how, words in survivor.HOW.items():
            scenario = replace(_IN_TURNS, variant=f" {how}", gpus=1)
            outcome = self.backend.run(survivor.plan(how, workload), self.started(scenario))
            title = f"2 add on 1 GPU, one {words}"
            row = make_row(2, title, "add", "auto", outcome, self.backend.source, alone, f" {how}", True)
            seconds = survivor.judge(outcome, its)
            rows.append(replace(row, survivor_s=seconds, survivor_limit_s=limit))
        return rows

    def _measure(self, scenario: Scenario, workload: Workload, baseline_s: float | None) -> Row:
        backend = self.backend
        outcome = backend.run(scenario.plan(backend.gpus, workload), self.started(scenario))
        return make_row(
            scenario.test,
            scenario.title(backend.gpus, workload),
            scenario.workload,
            scenario.mode,
            outcome,
            backend.source,
            baseline_s,
            scenario.variant,
            scenario.in_turns,
        )


def compare_with_model(rows: Iterable[Row], model_rows: Iterable[Row]) -> list[Row]:
    """The rows with the model's ratios beside their own."""
    ratios = {(row.name, row.workload, row.mode): row.ratio for row in model_rows}
    return [replace(row, model_ratio=ratios.get((row.name, row.workload, row.mode))) for row in rows]


def shortening(profile: Profile, seconds: float, in_turns: float) -> dict[str, float]:
    """Parts of the iterations such that each workload's loop, alone on such a card, takes at most this long; and those
    of the tests in turns at most ``in_turns``, so that several turns happen."""
    parts: dict[str, float] = {}
    for name, workload in WORKLOADS.items():
        whole = workload.iterations * (profile.kernel_seconds(workload.kernel_bytes) + workload.sleep)
        parts[name] = min(1.0, seconds / whole)
        if name == _IN_TURNS.workload:
            parts[TURNS] = min(1.0, in_turns / whole)
    return parts
