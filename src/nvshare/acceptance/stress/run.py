"""A whole stress test: load, launch configurations and faults; afterwards everything must be as before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from nvshare.acceptance.exit_code import passed
from nvshare.acceptance.finding import Finding, Verdict
from nvshare.acceptance.runner import Check, run
from nvshare.acceptance.stress import configurations, faults
from nvshare.acceptance.stress.load import Outcome, carry_out
from nvshare.acceptance.stress.scene import Scene
from nvshare.acceptance.stress.verdicts import balance, clean_shutdown, launch_configurations, process_set, success_rate
from nvshare.launch.supervised import Supervised

TOLERANCE = 64 << 20  # bytes of a card that drivers may keep or others may take meanwhile
_SHUTDOWN = 5.0  # seconds for the last contexts to go
_SKIPPED = Verdict("not looked at", None)


@dataclass(frozen=True)
class Plan:
    workers: int
    duration: float = 60.0
    memory: int = 256 << 20  # bytes per worker
    stress: bool = True
    launch: bool = True
    faults: bool = False
    min_success: float = 100.0
    min_launch: float = 100.0


@dataclass(frozen=True)
class Report:
    """``launches`` says what was wrong with each launch configuration; empty: nothing."""

    title: str
    plan: Plan
    cards: tuple[str, ...]
    verdicts: tuple[Finding, ...]
    load: Outcome | None
    launches: dict[str, str]
    faults: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        return passed((*self.verdicts, *self.faults))

    def to_dict(self) -> dict[str, Any]:
        load = self.load
        return {
            "title": self.title,
            "passed": self.passed,
            "plan": asdict(self.plan),
            "cards": list(self.cards),
            "verdicts": [{"name": one.check, "passed": one.ok, "detail": one.seen} for one in self.verdicts],
            "figures": {} if load is None else asdict(load.figures),
            "workers": [] if load is None else load.workers,
            "launches": self.launches,
            "faults": [
                {"name": one.check, "survived": one.ok, "detail": one.seen, "seconds": one.seconds}
                for one in self.faults
            ],
            "occupied": [] if load is None else load.occupied,
            "timeline": [] if load is None else [asdict(card) for card in load.cards],
        }


@dataclass(frozen=True)
class Watchers:
    """Called as the test goes on: at each phase, after each check, when a worker has started."""

    phase: Callable[[str], None] = lambda name: None
    step: Callable[[str], None] = lambda name: None
    worker: Callable[[int, Supervised], None] = lambda number, process: None


def carry_out_plan(title: str, plan: Plan, scene: Scene, watchers: Watchers = Watchers()) -> Report:
    def findings(checks: Iterable[Check[Scene]]) -> Iterable[Finding]:
        for finding in run(checks, scene):
            watchers.step(finding.check)
            yield finding

    before = scene.state()
    load = None
    if plan.stress:
        watchers.phase(f"stress: {plan.workers} workers for {plan.duration:g} s")
        load = carry_out(scene, plan.workers, plan.duration, plan.memory, watchers.worker)
    launches: dict[str, str] = {}
    if plan.launch:
        watchers.phase("launch configurations")
        launches = {one.check: "" if one.ok else one.seen for one in findings(configurations.checks(scene))}
    made: tuple[Finding, ...] = ()
    if plan.faults:
        watchers.phase("faults")
        made = tuple(findings(faults.checks()))
    after = scene.restored(before, TOLERANCE, _SHUTDOWN)
    verdicts = {
        "success rate": _SKIPPED if load is None else success_rate(load.workers, plan.min_success),
        "launch configurations": launch_configurations(launches, plan.min_launch) if plan.launch else _SKIPPED,
        "processes at baseline": process_set(before, after),
        "balance over cards": _SKIPPED if load is None else balance(load.workers, scene.cards.allowed),
        "clean shutdown": clean_shutdown(before, after, TOLERANCE),
    }
    judged = tuple(Finding.of(name, verdict) for name, verdict in verdicts.items())
    return Report(title, plan, scene.cards.allowed, judged, load, launches, made)
