"""The load of a stress test: many workers, each in a lease, that compute at the same time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvshare.acceptance.stress.scene import Scene
from nvshare.acceptance.stress.verdicts import Figures, quantile
from nvshare.acceptance.waiting import every
from nvshare.bench.history import CardHistory, Recorder
from nvshare.client.connection import Connection, SchedulerError
from nvshare.cores import Cores
from nvshare.launch.fleet import Fleet, Job, Result, Terms
from nvshare.launch.orders import Wish, with_package
from nvshare.launch.supervised import Supervised

_START_UP = 60.0  # seconds for interpreters to start, beside the work itself
_PERIOD = 0.5  # seconds between looks at what the scheduler has measured


@dataclass(frozen=True)
class Outcome:
    """What the workers reported, how long their leases waited, and what share of its card each client had."""

    workers: list[dict[str, Any]]
    waits: list[float]
    cores: int
    occupied: list[float] = field(default_factory=list)  # percent of its card that each worker had
    cards: tuple[CardHistory, ...] = ()

    @property
    def ops_per_second(self) -> float:
        return sum(float(worker["ops"]) / float(worker["seconds"]) for worker in self.workers if worker.get("ok"))

    @property
    def figures(self) -> Figures:
        median, worst = quantile(self.waits, 0.5), quantile(self.waits, 0.99)
        return Figures(self.ops_per_second, self.cores, self.quota_error, median, worst)

    @property
    def quota_error(self) -> float | None:
        """How far a worker was beyond its quota at most, in points; None: nothing was measured."""
        return max((share - self.cores for share in self.occupied), default=None)


def share_of(workers: int, cards: int) -> int:
    """The compute quota with which so many workers fit, the same number on each card."""
    return max(1, 100 // -(-workers // cards))


def carry_out(
    scene: Scene,
    workers: int,
    duration: float,
    memory: int,
    started: Callable[[int, Supervised], None] = lambda worker, process: None,
) -> Outcome:
    """Run ``workers`` with ``memory`` bytes each, all for ``duration`` seconds."""
    cores = share_of(workers, len(scene.cards.allowed))
    wish = Wish(memory, Cores(cap=cores), 1, scene.cards.allowed, "stress", timeout=_START_UP + 4 * duration)
    fleet = Fleet(
        scene.site,
        wish,
        Terms(workers, deadline=_START_UP + 4 * duration, log_directory=scene.directory),
        started,
        {**scene.marked, **with_package()},
    )
    jobs = [
        Job(
            number,
            (
                *(sys.executable, "-m", "nvshare.acceptance.stress.task"),
                *("--bytes", str(memory), "--seconds", str(duration), "--seed", str(number + 1)),
                *("--result", str(_file(scene, number))),
            ),
        )
        for number in range(workers)
    ]
    watch = _Watch(scene)
    with every(_PERIOD, watch.look):
        results = fleet.run(jobs)
    told = [_told(scene, result) for result in results]
    waits = [result.waited for result in results if result.pid]
    return Outcome(told, waits, cores, watch.occupied(), watch.cards({worker.get("pid"): worker for worker in told}))


def _file(scene: Scene, number: int) -> Path:
    return scene.directory / f"worker-{number}.json"


def _told(scene: Scene, result: Result) -> dict[str, Any]:
    """What a worker reported, or why it reported nothing."""
    path = _file(scene, result.job.number)
    about = {"worker": result.job.number, "waited": result.waited, "gpus": list(result.gpus)}
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        ended = f"signal {result.signal}" if result.signal else f"exit code {result.code}"
        return {**about, "ok": False, "pid": result.pid, "error": result.error or f"it ended with {ended}"}
    finally:
        path.unlink(missing_ok=True)
    return {**about, **told}


class _Watch:
    """Records what the scheduler measures of each lease."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._seen: dict[str, list[tuple[float, float]]] = {}  # client -> when, seconds on the card so far
        self._pids: dict[str, int] = {}
        self._recorder = Recorder()

    def occupied(self) -> list[float]:
        """Percent of its card that each client had between the first and the last look at its work."""
        shares = []
        for looks in self._seen.values():
            worked = [look for look in looks if look[1] > 0]
            if len(worked) > 2 and worked[-1][0] > worked[0][0]:
                shares.append(100 * (worked[-1][1] - worked[0][1]) / (worked[-1][0] - worked[0][0]))
        return shares

    def cards(self, workers: Mapping[Any, Mapping[str, Any]]) -> tuple[CardHistory, ...]:
        """The history of the cards from the first look at a worker to the last; ``workers`` by process."""
        looks = [at for seen in self._seen.values() for at, _ in seen]
        numbers = {client: workers[pid]["worker"] for client, pid in self._pids.items() if pid in workers}
        names = {client: f"worker {number}" for client, number in sorted(numbers.items(), key=lambda entry: entry[1])}
        if not looks:
            return ()
        return self._recorder.cards(self._scene.cards.all, names, min(looks), max(looks), resolution=_PERIOD)

    def look(self) -> None:
        try:
            with Connection(self._scene.address.socket) as connection:
                status = connection.status()
        except SchedulerError:
            return
        now = time.monotonic()
        self._recorder.looked(now, status)
        for client in status["clients"]:
            if client["group"].startswith("lease:"):
                self._pids[client["id"]] = client["pid"]
                occupied = sum(gpu["occupied_s"] for gpu in client["gpus"])
                self._seen.setdefault(client["id"], []).append((now, occupied))
