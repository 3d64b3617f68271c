"""Who had which card when, and where memory was: the history of one run, short enough to be kept beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_STEPS = 200  # of a task's memory, at most: as many as a picture can show
_DIGITS = 4  # after the point, of seconds


@dataclass(frozen=True)
class TaskHistory:
    """One task on one card, in seconds since the loops began.

    ``held``: from when to when it was free to use the card. ``memory``: from when on how many of its bytes were on the
    card, and how many on the host.
    """

    task: str
    held: tuple[tuple[float, float], ...] = ()
    memory: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True)
class CardHistory:
    """``index``: the driver's number of it. ``capacity``: bytes for all tasks together. ``resolution_s``: how far apart
    the looks were that this was learnt from; 0: it is exact."""

    gpu: str
    index: int
    capacity: int
    seconds: float
    resolution_s: float
    tasks: tuple[TaskHistory, ...]


@dataclass
class _Seen:
    held: list[tuple[float, float]] = field(default_factory=list)
    since: float | None = None  # holds the card from then on
    memory: list[tuple[float, int, int]] = field(default_factory=list)


class Recorder:
    """Told what happens, in order of time, on whatever clock; clients and cards by any name."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}  # by card and client
        self._capacity: dict[str, int] = {}

    def capacity(self, gpu: str, size: int) -> None:
        """Contexts take their part of a card: the least is what tasks had to live with."""
        self._capacity[gpu] = min(size, self._capacity.get(gpu, size))

    def holds(self, now: float, gpu: str, client: str) -> None:
        seen = self._of(gpu, client)
        if seen.since is None:
            seen.since = now

    def leaves(self, now: float, gpu: str, client: str) -> None:
        seen = self._of(gpu, client)
        if seen.since is not None:
            seen.held.append((seen.since, now))
            seen.since = None

    def has(self, now: float, gpu: str, client: str, resident: int, host: int) -> None:
        memory = self._of(gpu, client).memory
        if not memory or memory[-1][1:] != (resident, host):
            memory.append((now, resident, host))

    def gone(self, now: float, client: str) -> None:
        """Its process ended, with all that it had."""
        for gpu, who in list(self._seen):
            if who == client:
                self.leaves(now, gpu, client)
                self.has(now, gpu, client, 0, 0)

    def looked(self, now: float, status: Mapping[str, Any]) -> None:
        """All of it at one moment, as a scheduler's status tells."""
        present = {client["id"] for client in status["clients"]}
        for client in {who for _, who in self._seen} - present:
            self.gone(now, client)
        for gpu in status["gpus"]:
            self.capacity(gpu["uuid"], gpu["capacity"])
        running = {gpu["uuid"]: set(gpu["running"]) for gpu in status["gpus"]}
        for client in status["clients"]:
            for venue in client["gpus"]:
                uuid, who = venue["uuid"], client["id"]
                (self.holds if who in running.get(uuid, ()) else self.leaves)(now, uuid, who)
                self.has(now, uuid, who, venue["resident"], venue["host"])

    def cards(
        self,
        gpus: Sequence[str],
        names: Mapping[str, str],
        began: float,
        ended: float,
        speed: float = 1.0,
        resolution: float = 0.0,
    ) -> tuple[CardHistory, ...]:
        """What happened between two moments, in seconds that pass ``speed`` times as fast as those of the clock.
        ``gpus`` as the driver numbers them; ``names`` of the clients, in the order to show them. Others were not part
        of it."""
        length = (ended - began) * speed
        if length <= 0:
            return ()

        def seconds(at: float) -> float:
            return round(min(max(0.0, (at - began) * speed), length), _DIGITS)

        found = []
        for index, gpu in enumerate(gpus):
            seen = {name: self._seen[gpu, who] for who, name in names.items() if (gpu, who) in self._seen}
            memory = {
                name: [(seconds(at), on_card, host) for at, on_card, host in each.memory if at <= ended]
                for name, each in seen.items()
            }
            shown = _moments([at for each in memory.values() for at, _, _ in each], length)
            tasks = tuple(
                TaskHistory(name, _spans(each, began, ended, seconds), _at(memory[name], shown))
                for name, each in seen.items()
            )
            if tasks:
                size = self._capacity.get(gpu, 0)
                found.append(CardHistory(gpu, index, size, round(length, _DIGITS), resolution * speed, tasks))
        return tuple(found)

    def _of(self, gpu: str, client: str) -> _Seen:
        return self._seen.setdefault((gpu, client), _Seen())


def _spans(
    seen: _Seen, began: float, ended: float, seconds: Callable[[float], float]
) -> tuple[tuple[float, float], ...]:
    held = [*seen.held, *([] if seen.since is None else [(seen.since, ended)])]
    return tuple((seconds(first), seconds(last)) for first, last in held if last > began and first < ended)


def _moments(changes: Sequence[float], length: float) -> list[float]:
    """When to say where memory was: the last change of each step. The same for all tasks of a card, so that what one
    has just left is not shown beside what another has not yet got."""
    last: dict[int, float] = {}
    for at in sorted(changes):
        last[int(at / length * _STEPS) if at > 0 else -1] = at
    return list(last.values())


def _at(memory: Sequence[tuple[float, int, int]], moments: Sequence[float]) -> tuple[tuple[float, int, int], ...]:
    """What it was at each of these moments, where it differs from the one before."""
    found: list[tuple[float, int, int]] = []
    upcoming = iter(memory)
    following = next(upcoming, None)
    now: tuple[int, int] | None = None
    for moment in moments:
        while following is not None and following[0] <= moment:
            now, following = following[1:], next(upcoming, None)
        if now is not None and (not found or found[-1][1:] != now):
            found.append((moment, *now))
    return tuple(found)
