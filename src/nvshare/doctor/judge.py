"""From facts to findings. Pure."""

from __future__ import annotations

from collections.abc import Callable

from nvshare.doctor.checks import cards, driver, host, sharing
from nvshare.doctor.facts import Facts
from nvshare.doctor.findings import Finding, Verdicts

CHECKS: dict[str, Callable[[Facts], Verdicts]] = {
    "driver": driver.cuda,
    "NVML": driver.nvml,
    "card order": cards.order,
    "CUDA_VISIBLE_DEVICES": cards.visible,
    "compute mode": cards.compute_mode,
    "MIG": cards.mig,
    "clocks": cards.clocks,
    "on the cards": cards.holders,
    "library": sharing.library,
    "this shell": sharing.preload,
    "scheduler": sharing.scheduler,
    "settings": host.settings,
    "MPS": host.mps,
    "host memory": host.memory,
    "limits": host.limits,
    "Kubernetes": host.kubernetes,
}


def judge(facts: Facts) -> list[Finding]:
    """Every check's verdicts, in the order in which a user should read them."""
    return [
        Finding(name, verdict.state, verdict.seen, verdict.remedy)
        for name, check in CHECKS.items()
        for verdict in check(facts)
    ]
