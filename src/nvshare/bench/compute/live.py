"""The stage on which real processes play: it sets quotas through the scheduler's control socket while they work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nvshare.bench.compute import mps
from nvshare.bench.compute.hiccups import HiccupWatch
from nvshare.bench.compute.shares import Change
from nvshare.bench.compute.stage import NORMAL, Scene, Seen
from nvshare.bench.compute.workers import MPS, NATIVE, NVSHARE, Name, Workers
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed
from nvshare.client.connection import Connection, RequestRefused, SchedulerError

_TAIL = 0.05  # seconds of work after what is measured, so that no mark is missing at its end
_AHEAD = 0.02  # seconds until a scene begins: all have heard of it by then
_MPS_PATIENCE = 30.0
_SIMULATED = "the simulated driver has none"

Told = Callable[[float], None]  # of the seconds that scenes take: so many more have passed


class LiveStage:
    """Use ``on`` to get one."""

    def __init__(
        self,
        workers: Workers,
        connection: Connection,
        seconds: float,
        start: float,
        mps_problem: str | None,
        told: Told,
        hiccups: HiccupWatch | None = None,
    ) -> None:
        self.seconds = seconds
        self.start = start
        self._workers = workers
        self._connection = connection
        self._hiccups = hiccups
        self._mps_problem = mps_problem
        self._told = told
        self._mode = connection.status()["settings"]["mode"]
        self._mode_before = self._mode
        self._limits: dict[Name, dict[str, Any]] = {}

    @property
    def versions(self) -> dict[str, str]:
        return self._workers.versions

    def call_up(self, names: Iterable[Name]) -> None:
        wanted = list(names)
        if any(name.how == MPS for name in wanted):
            self._workers.call_up(wanted, _MPS_PATIENCE)
        else:
            self._workers.call_up(wanted)

    def without_mps(self) -> str | None:
        return self._mps_problem

    def play(self, scene: Scene) -> Seen:
        """Tasks of a scene that failed are ended with it: what they still do or answer belongs to no other. Where a
        later scene has them again, new ones are called up."""
        self.call_up(scene.tasks)
        try:
            return self._play(scene)
        except WorkerFailed:
            self._workers.forget(scene.tasks)
            for task in scene.tasks:
                self._limits.pop(task, None)
            raise

    def _play(self, scene: Scene) -> Seen:
        tasks = scene.tasks
        self._set_mode(scene.mode)
        for who, (task, quota) in enumerate(zip(tasks, scene.all_quotas, strict=True)):
            self._limit(task, cores=quota, priority=scene.priority if who == 0 else NORMAL)
        begin = time.monotonic() + _AHEAD + scene.start
        end = begin + scene.seconds
        self._workers.begin(tasks, end + _TAIL)
        changes = self._carry_out(scene.changes, tasks, begin)
        time.sleep(max(0.0, end - time.monotonic()))
        told = self._ask_about(tasks)
        tracks = self._workers.tracks(tasks, end + _TAIL)
        self._told(scene.start + scene.seconds)
        return Seen(tracks, begin, end, changes, told, self._stood_still(begin, end))

    def _stood_still(self, begin: float, end: float) -> float:
        return 0.0 if self._hiccups is None else self._hiccups.seconds(begin, end)

    def restore(self) -> None:
        """The scheduler as it was."""
        self._set_mode(self._mode_before)

    def _carry_out(self, changes: Sequence[Change], tasks: Sequence[Name], begin: float) -> list[Change]:
        done = []
        for change in changes:
            time.sleep(max(0.0, begin + change.at - time.monotonic()))
            at = time.monotonic()
            self._limit(tasks[change.who], cores=change.quota)
            done.append(Change(at, change.who, change.quota))
        return done

    def _ask_about(self, tasks: Sequence[Name]) -> list[dict[str, Any]]:
        """What the scheduler says of those that it knows, each on its card; nothing where one is gone."""
        shared = [task for task in tasks if task.how == NVSHARE]
        if not shared:
            return []
        known = {client["id"]: client["gpus"] for client in self._connection.status()["clients"]}
        found = [known.get(self._workers.client(task)) for task in shared]
        return [gpus[0] for gpus in found if gpus] if all(found) else []

    def _set_mode(self, mode: str) -> None:
        if mode != self._mode:
            self._connection.request("set", mode=mode)
            self._mode = mode

    def _limit(self, task: Name, **wanted: Any) -> None:
        if task.how != NVSHARE:
            return
        known = self._limits.setdefault(task, {"cores": None, "priority": NORMAL})
        changed = {name: value for name, value in wanted.items() if known[name] != value}
        if changed:
            try:
                self._connection.request("limit", target={"client": self._workers.client(task)}, **changed)
            except RequestRefused as error:  # it is there no more
                raise WorkerFailed(f"{task.kind} ended: {error}") from error
            known |= changed


@contextlib.contextmanager
def on(
    venue: Venue, kit: str, seconds: float, start: float, told: Told, with_mps: bool = False, size: int | None = None
) -> Iterator[LiveStage]:
    """A stage with workers of its own at this place; nothing of it is left afterwards. ``size``: as of ``Workers``."""
    venue.ensure_scheduler()
    with contextlib.ExitStack() as stack:
        environments: dict[str, Mapping[str, str]] = {
            NATIVE: venue.plain_environment(),
            NVSHARE: venue.shared_environment(),
        }
        problem: str | None = _SIMULATED
        if with_mps and venue.source == "gpu":
            found = stack.enter_context(mps.private_daemon(venue.plain_environment()))
            problem = found if isinstance(found, str) else None
            if not isinstance(found, str):
                environments[MPS] = found
        connection = stack.enter_context(Connection(venue.socket))
        workers = stack.enter_context(Workers(kit, environments, size=size))
        hiccups = stack.enter_context(HiccupWatch())
        stage = LiveStage(workers, connection, seconds, start, problem, told, hiccups)
        try:
            yield stage
        finally:
            with contextlib.suppress(SchedulerError):
                stage.restore()
