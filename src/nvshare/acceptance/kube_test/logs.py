"""What logs say, as ``kubectl logs --timestamps`` gives them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nvshare.bench.workloads.grow import HELD, LIMIT

_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ?(.*)")
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_CLIENT = r"client ([0-9a-f]{16})"


@dataclass(frozen=True)
class Line:
    """``at`` in seconds of the node's clock; 0 where the line has no time."""

    at: float
    text: str


def lines(text: str) -> list[Line]:
    """Lines with their times."""
    return [_line(one) for one in text.splitlines() if one]


def _line(text: str) -> Line:
    match = _STAMPED.fullmatch(text)
    if match is None:
        return Line(0.0, text)
    whole, fraction, zone, rest = match.groups()
    moment = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).timestamp()
    return Line(moment + float(fraction or 0), rest)


@dataclass
class PodLog:
    """What a workload said. ``done``: the part that is over, 0 to 1. ``held`` and ``limits`` are of a growing one: when
    it held how many bytes, and where it met its limit."""

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
    complete: bool = False  # nothing more will come
    failures: int = 0  # to read it


_ITS = re.compile(r"([0-9.]+) it/s.*")
_SECONDS = re.compile(r"--- ([0-9.]+) seconds ---")
_PROGRESS = re.compile(r"(\d+)/(\d+) \[.*")
_CLIENT_ID = re.compile(r"\[NVSHARE\]\[INFO\](?:\[[^]]*\])?: Client ID = ([0-9a-f]{16})")
_WINDOW = re.compile(r"\[NVSHARE\]\[INFO\](?:\[[^]]*\])?: Pending Kernel Window is (\d+)")
_HELD = re.compile(rf"{HELD} (\d+) MiB")
_LIMIT = re.compile(rf"{LIMIT} at (\d+) MiB: .*")
_MIB = 1 << 20


def pod_log(text: str) -> PodLog:
    """Of a workload of ours, or of a program that ends with ``PASS`` and ``--- N seconds ---`` as they do."""
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
class Registration:
    """A client that a scheduler knows: where, and as whose."""

    client: str
    gpu: str
    pod: str
    namespace: str


@dataclass(frozen=True)
class Step:
    """A line of a scheduler's log that changes who has or wants the GPU: ``waits``, ``on``, ``off``, or ``gone``."""

    at: float
    client: str
    what: str


@dataclass(frozen=True)
class Shortage:
    """A scheduler said that tasks take turns because of their memory; in MiB."""

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
    registrations: tuple[Registration, ...] = ()
    steps: tuple[Step, ...] = ()
    drops: tuple[str, ...] = ()  # clients that were told to stop, as often as they were
    shortages: tuple[Shortage, ...] = ()
    changes: tuple[LimitChange, ...] = ()


_REGISTERED = re.compile(rf".*Registered {_CLIENT} on GPU (\S+) with Pod name = (\S+), Pod namespace = (\S+)")
_DROPPED = re.compile(rf".*Sent DROP_LOCK to {_CLIENT}")
_STEPS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("waits", re.compile(r".*Client ([0-9a-f]{16}) moved to wait queue .*")),
    ("on", re.compile(rf".*Sent LOCK_OK to {_CLIENT}")),
    ("off", _DROPPED),
    ("off", re.compile(rf".*Switched GPU \S+ from {_CLIENT} to .*")),
    ("gone", re.compile(rf".*Removing {_CLIENT}")),
)
_SHORTAGE = re.compile(r".*Clients of GPU (\S+) take turns: memory does not fit \((\d+) > (\d+) MB\)")
_CHANGED = re.compile(r".*Memory limit changed for pod (\S+): (.*)")


def scheduler_log(text: str) -> SchedulerLog:
    """Lines that are none of ours are passed over."""
    found = lines(text)
    return SchedulerLog(
        registrations=tuple(Registration(*match.groups()) for _, match in _matches(found, _REGISTERED)),
        steps=tuple(_steps(found)),
        drops=tuple(match[1] for _, match in _matches(found, _DROPPED)),
        shortages=tuple(Shortage(m[1], int(m[2]), int(m[3])) for _, m in _matches(found, _SHORTAGE)),
        changes=tuple(LimitChange(line.at, match[1], match[2]) for line, match in _matches(found, _CHANGED)),
    )


def _matches(found: Iterable[Line], pattern: re.Pattern[str]) -> Iterator[tuple[Line, re.Match[str]]]:
    for line in found:
        match = pattern.fullmatch(line.text)
        if match is not None:
            yield line, match


def _steps(found: Iterable[Line]) -> Iterator[Step]:
    for line in found:
        for what, pattern in _STEPS:
            match = pattern.fullmatch(line.text)
            if match is not None:
                yield Step(line.at, match[1], what)
