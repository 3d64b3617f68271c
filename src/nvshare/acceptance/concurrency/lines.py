"""Lines of logs of schedulers and tasks: plain, from ``kubectl logs --timestamps`` (and ``--prefix``), or with
``[NVSHARE][INFO][date time]``; with progress bars in between, too. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

_DATE = r"(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2})(?:[.,](\d+))?\s*(Z|[+-]\d{2}:?\d{2})?"
_PREFIX = re.compile(r"\[pod/([^/\]]+)/[^\]]*\]\s*")
_STAMP = re.compile(_DATE + r"\s+")
_OURS = re.compile(rf"\[NVSHARE\]\[(?:DEBUG|INFO|WARN|FATAL)\](?:\[{_DATE}\])?:?\s")
_BEGUN = re.compile(rf"(?:{_PREFIX.pattern})?(?:{_DATE}|\[NVSHARE\])")
_PROGRESS = re.compile(r"(?:^|\s|\|)(\d+)/(\d+) \[[^\]]*(?:it/s|s/it)")


@dataclass(frozen=True)
class Line:
    """One statement: a ``text`` of nvshare, or a progress bar that is at ``done``. ``time`` in seconds, where it is
    known. ``stream``: the pod, where one file has lines of several."""

    stream: str
    time: float | None
    text: str = ""
    done: int | None = None


@dataclass(frozen=True)
class Log:
    """``cut``: the last line has no end. ``cut_at_once``: that line is the first one, and it begins like one of
    nvshare."""

    name: str
    lines: tuple[Line, ...]
    cut: bool
    cut_at_once: bool = False

    @property
    def ours(self) -> bool:
        return any(line.text for line in self.lines)


def read(name: str, text: str) -> Log:
    """All statements of a log, in order."""
    whole, _, rest = text.rpartition("\n")
    lines = [line for raw in whole.split("\n") for line in _statements(raw)]
    return Log(name, tuple(lines), cut=bool(rest.strip()), cut_at_once=not whole and bool(_BEGUN.match(rest)))


def _statements(raw: str) -> Iterator[Line]:
    stream = ""
    prefix = _PREFIX.match(raw)
    if prefix:
        stream, raw = prefix[1], raw[prefix.end() :]
    time, raw = stamped(raw)
    found = list(_OURS.finditer(raw))
    edges = [match.start() for match in found] + [len(raw)]
    done = _progress(raw[: edges[0]])
    if done is not None:
        yield Line(stream, time, done=done)
    for match, end in zip(found, edges[1:], strict=True):
        own = _seconds(*match.groups()) if match[1] else time
        said, _, after = raw[match.end() : end].partition("\r")
        yield Line(stream, own, said.rstrip())
        done = _progress(after)
        if done is not None:
            yield Line(stream, time, done=done)


def stamped(raw: str) -> tuple[float | None, str]:
    """When a line was written, where it says so, and the rest of it."""
    stamp = _STAMP.match(raw)
    return (_seconds(*stamp.groups()), raw[stamp.end() :]) if stamp else (None, raw)


def _progress(text: str) -> int | None:
    """Where the last of several progress bars on a line is."""
    found = _PROGRESS.findall(text)
    return int(found[-1][0]) if found else None


def _seconds(moment: str, fraction: str | None, zone: str | None) -> float | None:
    zone = "+00:00" if zone in (None, "Z") else zone
    try:
        whole = datetime.strptime(f"{moment.replace(' ', 'T')}{zone}", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
    return whole.astimezone(timezone.utc).timestamp() + float(f"0.{fraction or 0}")
