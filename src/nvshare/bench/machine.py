"""What a result was measured on and with: the same fields for every command and benchmark that writes one."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

from nvshare import __version__, config
from nvshare.gpu.cards import NoCards, NvmlCards

_SIMULATED = {"model": True, "simulated": True, "gpu": False}  # of other sources nobody knows


def source_of_cards(variables: Mapping[str, str] | None = None) -> str:
    """What the cards are that a process with these further variables sees: ``simulated`` or ``gpu``."""
    return "simulated" if config.child_environment(variables or {}).get("NVSHARE_SIM_NODE") else "gpu"


def conditions(source: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``source``: model, simulated or gpu; kubernetes or logs, whose cards may be either. ``more``: the result itself,
    whose own fields of ``machine`` and ``versions`` are added to ours."""
    own = dict(more or {})
    versions = {"nvshare": __version__, "python": platform.python_version()}
    machine = {"host": platform.machine(), "system": platform.release(), **(_cards() if source == "gpu" else {})}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "simulated": _SIMULATED.get(source),
        "source": source,
        **own,
        "machine": {**machine, **own.get("machine", {})},
        "versions": {**versions, **own.get("versions", {})},
    }


def _cards() -> dict[str, Any]:
    """Those of this machine, their driver and the newest CUDA that it can do."""
    try:
        nvml = NvmlCards()
    except NoCards:
        return {}
    try:
        driver, cuda = nvml.release()
        gpus = [f"{card.name}, {card.total >> 20} MiB" for card in nvml.answering()]
    finally:
        nvml.close()
    return {"gpus": gpus, "driver": driver, "cuda": cuda}
