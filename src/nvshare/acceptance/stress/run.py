"""A whole stress test: load, launch configurations, faults, and whether everything is as before afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from nvshare.acceptance.stress import configurations, faults
from nvshare.acceptance.stress.load import Outcome, carry_out
from nvshare.acceptance.stress.scene import Scene
from nvshare.acceptance.stress.verdicts import (
    Verdict,
    balance,
    clean_shutdown,
    launch_configurations,
    process_set,
    quantile,
    success_rate,
)
from nvshare.launch.supervised import Supervised

TOLERANCE = 64 << 20  # bytes of a card that drivers may keep or others may take meanwhile
_SHUTDOWN = 5.0  # seconds for the last contexts to go


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
    title: str
    plan: Plan
    cards: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    load: Outcome | None
    launches: dict[str, str]
    faults: tuple[faults.FaultOutcome, ...] = ()
    figures: dict[str, float | None] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        judged = all(verdict.passed is not False for verdict in self.verdicts)
        return judged and all(fault.survived is not False for fault in self.faults)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "passed": self.passed,
            "plan": asdict(self.plan),
            "cards": list(self.cards),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "figures": self.figures,
            "workers": self.load.workers if self.load is not None else [],
            "launches": self.launches,
            "faults": [asdict(fault) for fault in self.faults],
            "occupied": self.load.occupied if self.load is not None else [],
            "timeline": [asdict(card) for card in self.load.cards] if self.load is not None else [],
        }


@dataclass(frozen=True)
class Watchers:
    """Told as things happen, for whoever looks on."""

    phase: Callable[[str], None] = lambda name: None
    step: Callable[[str], None] = lambda name: None
    worker: Callable[[int, Supervised], None] = lambda number, process: None


def carry_out_plan(title: str, plan: Plan, scene: Scene, watchers: Watchers = Watchers()) -> Report:
    before = scene.state()
    load = None
    if plan.stress:
        watchers.phase(f"stress: {plan.workers} workers for {plan.duration:g} s")
        load = carry_out(scene, plan.workers, plan.duration, plan.memory, watchers.worker)
    launches: dict[str, str] = {}
    if plan.launch:
        watchers.phase("launch configurations")
        launches = configurations.run_all(scene, watchers.step)
    made: list[faults.FaultOutcome] = []
    if plan.faults:
        watchers.phase("faults")
        made = faults.run_all(scene, watchers.step)
    after = scene.settled(before, TOLERANCE, _SHUTDOWN)
    cards = scene.cards.allowed
    verdicts = (
        _skipped("success rate") if load is None else success_rate(load.workers, plan.min_success),
        _skipped("launch configurations") if not plan.launch else launch_configurations(launches, plan.min_launch),
        process_set(before, after),
        _skipped("balance over cards") if load is None else balance(load.workers, cards),
        clean_shutdown(before, after, TOLERANCE),
    )
    return Report(title, plan, cards, verdicts, load, launches, tuple(made), _figures(load))


def _skipped(name: str) -> Verdict:
    return Verdict(name, None, "not looked at")


def _figures(load: Outcome | None) -> dict[str, float | None]:
    if load is None:
        return {}
    return {
        "ops_per_second": load.ops_per_second,
        "quota_percent": load.cores,
        "quota_error_points": load.quota_error,
        "lease_wait_p50_s": quantile(load.waits, 0.5),
        "lease_wait_p99_s": quantile(load.waits, 0.99),
    }
