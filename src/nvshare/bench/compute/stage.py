"""Where workers compute for a while, and what was seen of it. ``Rehearsal`` plays all of it in no time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from nvshare.bench.compute.kinds import KINDS, LAUNCH
from nvshare.bench.compute.shares import Change, Quota, promised
from nvshare.bench.compute.track import Track
from nvshare.bench.compute.workers import Name

NORMAL, HIGH = "normal", "high"
AUTO, CONCURRENT = "auto", "concurrent"


@dataclass(frozen=True)
class Scene:
    """Tasks that work at the same time, with these quotas and priorities; measured for ``seconds`` after ``start``
    seconds. ``changes`` of quotas come at moments counted from the begin of what is measured."""

    tasks: Sequence[Name]
    quotas: Sequence[Quota] = ()
    seconds: float = 1.0
    start: float = 0.0
    changes: Sequence[Change] = ()
    priority: str = NORMAL  # of the first task; the others have the normal one
    mode: str = AUTO  # of the scheduler

    @property
    def all_quotas(self) -> Sequence[Quota]:
        return self.quotas or [None] * len(self.tasks)


@dataclass(frozen=True)
class Seen:
    """What came of a scene. Times are those of one clock; ``changes`` tell when each was really asked for. ``told`` is
    what the scheduler said of each task at the end, where it knew them. ``stood_still``: seconds in which cores of the
    host did, all of them together."""

    tracks: Sequence[Track]
    begin: float
    end: float
    changes: Sequence[Change] = ()
    told: Sequence[Mapping[str, Any]] = ()
    stood_still: float = 0.0

    def speeds(self) -> list[float]:
        return [track.speed(self.begin, self.end) for track in self.tracks]

    def step_seconds(self) -> list[float | None]:
        return [track.step_seconds(self.begin, self.end) for track in self.tracks]

    def latencies(self, who: int = 0) -> list[float]:
        return self.tracks[who].latencies(self.begin, self.end)

    def speed_in_bursts(self, who: int = 0) -> float:
        """Steps per second of the time in which it worked; 0 when no burst ended."""
        track, took = self.tracks[who], self.latencies(who)
        steps = track.counts[1] - track.counts[0] if len(track.counts) > 1 else 0.0
        return steps / fmean(took) if took else 0.0

    def speed_on_cpu(self, who: int) -> float:
        return self.tracks[who].speed_on_cpu(self.begin, self.end)

    def shares_by_second(self, who: int, reference: int) -> list[float | None]:
        """Its speed over what the reference did meanwhile in a second of its core; None where it had none of it."""
        found = []
        for second in range(int(self.end - self.begin)):
            window = (self.begin + second, self.begin + second + 1)
            native = self.tracks[reference].speed_on_cpu(*window)
            found.append(round(self.tracks[who].speed(*window) / native, 4) if native else None)
        return found

    def as_told(self) -> dict[str, Any]:
        """What the scheduler took them for, how many submissions each had in flight, and what the host did."""
        told = {name + "s": [told[name] for told in self.told] for name in ("kind", "window") if self.told}
        return {**told, **({"host_stood_still_ms": round(1000 * self.stood_still)} if self.stood_still else {})}

    @property
    def right(self) -> bool:
        return all(track.right for track in self.tracks)


class Stage(Protocol):
    """Plays scenes. ``seconds`` is how long the tasks of one are measured, ``start`` how long they run in before."""

    seconds: float
    start: float

    def call_up(self, names: Iterable[Name]) -> None:
        """Have these tasks ready; ``WorkerFailed`` when one cannot be."""

    def without_mps(self) -> str | None:
        """Why nothing can be measured under MPS; None: it can."""

    def play(self, scene: Scene) -> Seen: ...


_SOLO = 1000.0  # steps per second of every rehearsed task
_BURST = 0.005  # seconds
_MARKS = 0.25  # seconds between two marks


@dataclass
class Rehearsal:
    """Every task gets exactly what it is promised; nothing runs. It counts how long the real thing would take."""

    seconds: float
    start: float
    mps: str | None = None
    clock: float = 0.0
    scenes: list[Scene] = field(default_factory=list)

    def call_up(self, names: Iterable[Name]) -> None:
        pass

    def without_mps(self) -> str | None:
        return self.mps

    def play(self, scene: Scene) -> Seen:
        self.scenes.append(scene)
        begin = self.clock + scene.start
        end = begin + scene.seconds
        changes = [Change(begin + change.at, change.who, change.quota) for change in scene.changes]
        tracks = self._tracks(scene, changes, end)
        self.clock = end
        return Seen(tracks, begin, end, changes)

    def _tracks(self, scene: Scene, changes: Sequence[Change], end: float) -> list[Track]:
        quotas = list(scene.all_quotas)
        to_come = list(changes)
        every = [self.clock + number * _MARKS for number in range(int((end - self.clock) / _MARKS) + 1)]
        times = sorted({*every, *(change.at for change in changes), end})
        counts: list[list[float]] = [[0.0] for _ in scene.tasks]
        for since, until in itertools.pairwise(times):
            while to_come and to_come[0].at <= since:
                change = to_come.pop(0)
                quotas[change.who] = change.quota
            for who, share in enumerate(_ideal(scene.tasks, quotas)):
                counts[who].append(counts[who][-1] + share * _SOLO * (until - since))
        return [Track(times, count, [(at, _BURST) for at in times], cpu=times) for count in counts]


def _ideal(tasks: Sequence[Name], quotas: Sequence[Quota]) -> list[float]:
    """The launch-bound and the mostly idle are in nobody's way, the others share the card."""
    aside = [KINDS[task.kind].in_bursts or KINDS[task.kind].steps == LAUNCH for task in tasks]
    busy = promised([quota for quota, is_aside in zip(quotas, aside, strict=True) if not is_aside])
    alone = [promised([quota])[0] for quota in quotas]
    shares = iter(busy)
    return [own if is_aside else next(shares) for own, is_aside in zip(alone, aside, strict=True)]
