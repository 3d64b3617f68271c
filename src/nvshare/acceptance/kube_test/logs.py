"""What the logs of pods and schedulers say, as ``kubectl logs --timestamps`` gives them. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvshare.acceptance.concurrency.lines import read, stamped
from nvshare.acceptance.concurrency.story import Task, scheduler_in
from nvshare.bench.workloads.grow import HELD, LIMIT

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@dataclass(frozen=True)
class Line:
    """``at`` in seconds of the node's clock; 0 where the line has no time."""

    at: float
    text: str


def lines(text: str) -> list[Line]:
    return [Line(at or 0.0, rest) for at, rest in map(stamped, text.splitlines()) if rest]


@dataclass
class PodLog:
    """What a workload printed. ``done``: its progress, 0 to 1. ``held`` and ``limits``, of a growing workload: when it
    held how many bytes, and when it met its limit at how many."""

    client: str = ""
    window: int | None = None
    result: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    its: float = 0.0
    said_pass: bool = False
    out_of_memory: bool = False
    done: float = 0.0
    held: list[tuple[float, int]] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)
    complaint: str = ""
    complete: bool = False  # the pod is over
    failures: int = 0  # attempts to read it


_ITS = re.compile(r"([0-9.]+) it/s.*")
_SECONDS = re.compile(r"--- ([0-9.]+) seconds ---")
_PROGRESS = re.compile(r"(\d+)/(\d+) \[.*")
_CLIENT_ID = re.compile(r"\[NVSHARE\]\[INFO\](?:\[[^]]*\])?: Client ID = ([0-9a-f]{16})")
_WINDOW = re.compile(r"\[NVSHARE\]\[INFO\](?:\[[^]]*\])?: Pending Kernel Window is (\d+)")
_HELD = re.compile(rf"{HELD} (\d+) MiB")
_LIMIT = re.compile(rf"{LIMIT} at (\d+) MiB: .*")
_MIB = 1 << 20


def pod_log(text: str) -> PodLog:
    """The log of a workload, or of any program that prints ``PASS`` and ``--- N seconds ---``."""
    log = PodLog()
    for line in lines(text):
        _take(log, line)
    return log


def _take(log: PodLog, line: Line) -> None:
    text = line.text.strip()
    log.out_of_memory = log.out_of_memory or _OUT_OF_MEMORY in text
    if text == "PASS":
        log.said_pass = True
    elif text.startswith("FAIL"):
        log.complaint = text
    elif text.startswith("{"):
        log.result = _object(text)
    elif match := _CLIENT_ID.fullmatch(text):
        log.client = match[1]
    elif match := _WINDOW.fullmatch(text):
        log.window = int(match[1])
    elif match := _PROGRESS.fullmatch(text):
        log.done = int(match[1]) / max(1, int(match[2]))
    elif match := _HELD.fullmatch(text):
        log.held.append((line.at, int(match[1]) * _MIB))
    elif match := _LIMIT.fullmatch(text):
        log.limits.append((line.at, int(match[1]) * _MIB))
    elif match := _ITS.fullmatch(text):
        log.its = float(match[1])
    elif match := _SECONDS.fullmatch(text):
        log.seconds = float(match[1])


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Shortage:
    """The scheduler said that tasks take turns because memory does not fit; in MiB."""

    gpu: str
    needed: int
    capacity: int


@dataclass(frozen=True)
class LimitChange:
    at: float
    pod: str  # namespace/name
    text: str


@dataclass(frozen=True)
class SchedulerLog:
    """``tasks`` by client."""

    tasks: Mapping[str, Task] = field(default_factory=dict)
    shortages: tuple[Shortage, ...] = ()
    changes: tuple[LimitChange, ...] = ()


_SHORTAGE = re.compile(r"Clients of GPU (\S+) take turns: memory does not fit \((\d+) > (\d+) MB\)")
_CHANGED = re.compile(r"Memory limit changed for pod (\S+): (.*)")


def scheduler_log(text: str) -> SchedulerLog:
    """Lines that are none of ours are passed over."""
    log = read("scheduler", text)
    said = [(line.time or 0.0, line.text) for line in log.lines]
    short = (_SHORTAGE.fullmatch(line) for _, line in said)
    changed = ((at, _CHANGED.fullmatch(line)) for at, line in said)
    found = scheduler_in(log)
    return SchedulerLog(
        tasks={} if found is None else found[0].tasks,
        shortages=tuple(Shortage(match[1], int(match[2]), int(match[3])) for match in short if match),
        changes=tuple(LimitChange(at, match[1], match[2]) for at, match in changed if match),
    )
