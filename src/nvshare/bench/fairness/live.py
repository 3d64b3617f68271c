"""Real processes that compute and think: the same tasks natively, under nvshare and under MPS, in turn."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvshare.bench.compute import kinds, mps
from nvshare.bench.compute.hiccups import HiccupWatch
from nvshare.bench.compute.workers import MPS, NATIVE, NVSHARE, PROGRAM
from nvshare.bench.fairness.rows import Measure, Row, row
from nvshare.bench.fairness.tasks import Task, Tasks
from nvshare.bench.processes import Venue
from nvshare.bench.worker import Worker, WorkerFailed
from nvshare.client.connection import Connection, RequestRefused

AHEAD = 0.02  # seconds until a set begins: all have heard of it by then
TAIL = 0.05  # seconds of work after the window, so that its end looks like the rest of it
LATE = 20.0  # seconds after the end of its work that a worker has to answer
_SERIES = 0.03  # seconds of kernels whose length is measured alone
_FEW, _MOST = 4, 1000  # kernels of a series
_TRIES = 3  # of which the shortest counts
_LESS, _MIDDLE, _MORE = 1_000, 100_000, 1_000_000  # amounts of work; two of them tell the length of all kernels
_LONG_ENOUGH = 1e-3  # seconds of the middle one to be compared with a shorter one
_OFF = 0.03  # part by which a burst alone may differ from what was asked for, without a note
SETTLING = 0.3  # seconds that a set takes beside its windows
BEGIN_SECONDS = {"gpu": 25.0, "simulated": 4.0}  # until all processes are ready


def used(bursts: Iterable[tuple[float, float]], begin: float, end: float, burst_seconds: float) -> float:
    """Percent of a window in which the card computed for a task. ``bursts``: when each began and how long it took; each
    takes ``burst_seconds`` alone. One over an edge of the window counts for the part of it that lies within."""
    within = ((min(began + took, end) - max(began, begin)) / took for began, took in bursts if took > 0)
    return 100 * burst_seconds * sum(part for part in within if part > 0) / (end - begin)


def cores_of(task: Task) -> int | str | None:
    """A quota as the scheduler's control socket takes it."""
    if task.floor is None:
        return task.cap
    return f"{task.floor}..{task.cap or ''}"


class Crew:
    """Processes that stay up for all sets, so many in each way. Use as a context: none is left when it ends.

    ``steps``: what the first one computes, the second and so on; all further ones as the last."""

    def __init__(
        self, environments: Mapping[str, Mapping[str, str]], steps: Sequence[str], kit: str = "driver"
    ) -> None:
        self.environments = environments
        self._steps = steps
        self._kit = kit
        self._workers: dict[tuple[str, int], Worker] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self._end(list(self._workers.values()))

    def of(self, how: str, count: int) -> list[Worker]:
        """So many workers that are ready; those that are missing are started, all at the same time."""
        self.call_up({how: count})
        return [self._workers[how, number] for number in range(count)]

    def call_up(self, counts: Mapping[str, int]) -> None:
        places = [(how, number) for how, count in counts.items() for number in range(count)]
        fresh = [place for place in places if place not in self._workers]
        for how, number in fresh:
            command = [sys.executable, *PROGRAM, self._kit]
            self._workers[how, number] = Worker(f"task {number + 1} ({how})", command, self.environments[how])
        for place in fresh:
            self._workers[place].send(do="prepare", steps=self._steps[min(place[1], len(self._steps) - 1)])
        for place in fresh:
            worker = self._workers[place]
            worker.receive()
            if place[0] == NVSHARE and worker.client is None:
                raise WorkerFailed(f"the worker {worker.name} runs without nvshare: libnvshare.so was not loaded")

    def forget(self, how: str) -> None:
        """End those of one way, whatever they do; the next set has new ones."""
        gone = [self._workers.pop(place) for place in list(self._workers) if place[0] == how]
        for worker in gone:
            worker.kill()
        self._end(gone)

    @staticmethod
    def _end(workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.close()


class Quotas:
    """Of workers under nvshare, one set after the other."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._limited: list[str | None] = []  # clients that have one

    def set(self, workers: Sequence[Worker], tasks: Sequence[Task]) -> None:
        """Those of the set before go first, so that floors never add up to more than the card. ``RequestRefused`` when
        the scheduler does not take one."""
        wanted = {worker.client: task for worker, task in zip(workers, tasks, strict=True) if task.has_quota}
        if not wanted and not self._limited:
            return
        with Connection(self._socket) as connection:  # the scheduler closes one that says nothing for a while
            for client in self._limited:
                with contextlib.suppress(RequestRefused):  # it is there no more
                    connection.request("limit", target={"client": client}, cores=None)
            self._limited = list(wanted)
            for client, task in wanted.items():
                connection.request("limit", target={"client": client}, cores=cores_of(task))


class Ruler:
    """How long a kernel takes by its amount of work, where nothing else is on the card. ``worker`` tells."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._known: dict[int, float] = {}
        middle = self.kernel_seconds(_MIDDLE)
        other = _LESS if middle > _LONG_ENOUGH else _MORE
        self._slope = (self.kernel_seconds(other) - middle) / (other - _MIDDLE)
        if self._slope <= 0:
            raise WorkerFailed("kernels do not take longer with more work: is another program using this card?")
        self._base = middle - self._slope * _MIDDLE

    def amount(self, seconds: float) -> int:
        """Of a kernel that takes so long."""
        return max(1, round((seconds - self._base) / self._slope))

    def kernel_seconds(self, amount: int) -> float:
        """Of one kernel, from a series of them back to back."""
        if amount not in self._known:
            self.worker.ask(do="set", amount=amount)
            count = round(_SERIES / max(self._seconds(_FEW) / _FEW, _SERIES / _MOST))
            count = max(_FEW, count)
            self._known[amount] = min(self._seconds(count) for _ in range(_TRIES)) / count
        return self._known[amount]

    def _seconds(self, count: int) -> float:
        return float(self.worker.ask(do="time", steps=count)["seconds"])


@dataclass(frozen=True)
class _Cast:
    """A task with what its process is told: the amount of work of its kernels, and how long a burst takes alone."""

    task: Task
    amount: int
    burst_seconds: float

    @property
    def note(self) -> str:
        """What is to be told where the burst is not as long as it should be."""
        took = 1000 * self.burst_seconds
        off = abs(took - self.task.gpu_ms) > _OFF * self.task.gpu_ms
        return f"a burst of {self.task.gpu_ms:g} ms took {took:.2f} ms alone" if off else ""


class LiveSets:
    """Use ``on`` to get one."""

    def __init__(
        self,
        crew: Crew,
        socket: Path,
        spins: bool,
        seconds: float,
        warm_up: float,
        measure: Measure,
        hiccups: HiccupWatch | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self._crew = crew
        self._quotas = Quotas(socket)
        self._spins = spins
        self._seconds, self._warm_up = seconds, warm_up
        self._measure = measure
        self._hiccups = hiccups
        self._notes = list(notes)  # for the next row
        self._ruler: Ruler | None = None
        self._turn = 0

    def row(self, part: str, tasks: Tasks) -> Row:
        """The same set in each way. What cannot be measured is named in the row's note."""
        notes, self._notes = self._notes, []
        found: dict[str, list[float]] = {}
        try:
            cast = self._cast(tasks)
        except WorkerFailed as error:
            self._crew.forget(NATIVE)
            return row(part, tasks, self._measure(tasks), (), note=f"kernels were not measured alone: {error}")
        for how in self._in_turn():
            try:
                found[how] = self._play(how, cast)
            except WorkerFailed as error:
                self._crew.forget(how)
                notes.append(f"{how} was not measured: {error}")
            except RequestRefused as error:
                notes.append(f"{how} was not measured: the scheduler refuses a quota: {error}")
        notes += self._notes
        self._notes = []
        notes += [each.note for each in cast if each.note]
        got, native = found.get(NVSHARE, []), found.get(NATIVE)
        due, note = self._measure(tasks), "; ".join(notes)
        return row(part, tasks, due, got, native, found.get(MPS), note=note, on_card=self._spins)

    def _in_turn(self) -> list[str]:
        """Another way is the first one for each set: a card that gets warmer harms none more than the others."""
        ways = list(self._crew.environments)
        first = self._turn % len(ways)
        self._turn += 1
        return ways[first:] + ways[:first]

    def _cast(self, tasks: Tasks) -> list[_Cast]:
        (worker,) = self._crew.of(NATIVE, 1)
        ruler = self._ruler = self._ruler or Ruler(worker)
        ruler.worker = worker  # the one before may have ended
        found = []
        for task in tasks:
            amount = ruler.amount(task.kernel_seconds)
            found.append(_Cast(task, amount, task.kernels * ruler.kernel_seconds(amount)))
        return found

    def _play(self, how: str, cast: Sequence[_Cast]) -> list[float]:
        workers = self._crew.of(how, len(cast))
        if how == NVSHARE:
            self._quotas.set(workers, [each.task for each in cast])
        for worker, each in zip(workers, cast, strict=True):
            worker.ask(do="set", amount=each.amount)
        begin = time.monotonic() + AHEAD + self._warm_up
        end = begin + self._seconds
        until = end + TAIL
        for worker, each in zip(workers, cast, strict=True):
            host = each.task.host_ms / 1000
            worker.send(do="work", until=until, batch=each.task.kernels, think=host, spins=self._spins)
        answers = [worker.receive(max(0.0, until - time.monotonic()) + LATE) for worker in workers]
        stood_still = 0.0 if self._hiccups is None else self._hiccups.seconds(begin, end)
        if stood_still:
            self._notes.append(f"{how}: cores of the host stood still for {1000 * stood_still:.0f} ms")
        return [
            used(((at, took) for at, took in answer["bursts"]), begin, end, each.burst_seconds)
            for answer, each in zip(answers, cast, strict=True)
        ]


@contextlib.contextmanager
def on(venue: Venue, seconds: float, warm_up: float, measure: Measure, most_tasks: int) -> Iterator[LiveSets]:
    """Measures sets of tasks at this place with processes of its own; none of them is left afterwards."""
    venue.ensure_scheduler()
    with contextlib.ExitStack() as stack:
        environments: dict[str, Mapping[str, str]] = {
            NATIVE: venue.plain_environment(),
            NVSHARE: venue.shared_environment(),
        }
        real = venue.source == "gpu"
        hiccups, notes = None, []
        if real:
            hiccups = stack.enter_context(HiccupWatch())
            found = stack.enter_context(mps.private_daemon(venue.plain_environment()))
            if isinstance(found, str):
                notes.append(f"nothing was measured under MPS: {found}")
            else:
                environments[MPS] = found
        crew = stack.enter_context(Crew(environments, [kinds.BURN if real else kinds.SPIN]))
        crew.call_up({NATIVE: most_tasks, NVSHARE: most_tasks})
        if MPS in environments:
            try:
                crew.call_up({MPS: most_tasks})
            except WorkerFailed as error:
                crew.forget(MPS)
                del environments[MPS]
                notes.append(f"nothing was measured under MPS: {error}")
        yield LiveSets(crew, venue.socket, real, seconds, warm_up, measure, hiccups, notes)
