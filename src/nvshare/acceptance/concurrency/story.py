"""What logs tell: who was on a card when, who waited, who made progress. Pure functions.

A scheduler's log says it all: LOCK_OK puts a client on, DROP_LOCK, the wait queue, a switch to another or its removal
takes it off. Logs of tasks alone say it where they have times. Where nothing has times, a moment is the number of a
line of the scheduler's log: that is an order, and no more.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median

from nvshare.acceptance.concurrency.lines import Line, Log
from nvshare.bench.spans import Span, of_marks

UNKNOWN_CARD = "the card"
_ID = r"([0-9a-f]{16})"
_POD = r"Pod name = (.*), Pod namespace = (\S*)"
_NONE = "none"
_GAP = 0.3  # seconds; reports of progress that are closer belong together
_GAPS = 3  # times the usual distance between reports, which belong together too
_REPORTS = 2  # per turn at least, or turns cannot be told apart


class Unreadable(Exception):
    """These logs tell nothing; the text says why, in one line."""


@dataclass
class Task:
    """``on``: when the task held the card. ``waited``: when it wanted the card and did not have it. ``dropped``: how
    often it was told to leave. ``left``: how often it went from the card to the queue, told or at the end of its
    turn."""

    id: str
    label: str = ""
    namespace: str = ""
    cards: list[str] = field(default_factory=list)
    on: list[Span] = field(default_factory=list)
    waited: list[Span] = field(default_factory=list)
    progress: list[Span] = field(default_factory=list)
    dropped: int = 0
    left: int = 0
    goes_on: bool = False  # had the card or waited for it when its log ended
    _on_since: float | None = None
    _waits_since: float | None = None

    @property
    def is_on(self) -> bool:
        return self._on_since is not None

    def go_on(self, at: float) -> None:
        self.stop_waiting(at)
        if self._on_since is None:
            self._on_since = at

    def go_off(self, at: float) -> None:
        if self._on_since is not None:
            self.on.append(Span(self._on_since, max(at, self._on_since)))
            self._on_since = None

    def wait(self, at: float) -> None:
        self.left += self.is_on
        self.go_off(at)
        if self._waits_since is None:
            self._waits_since = at

    def stop_waiting(self, at: float) -> None:
        if self._waits_since is not None:
            self.waited.append(Span(self._waits_since, max(at, self._waits_since)))
            self._waits_since = None

    def end(self, at: float) -> None:
        self.go_off(at)
        self.stop_waiting(at)

    def log_ends(self, at: float) -> None:
        """End its spans where the log ends."""
        self.goes_on = self.is_on or self._waits_since is not None
        self.end(at)


@dataclass
class Story:
    """``timed``: moments are seconds, else numbers of lines. ``notes``: what the reader should know."""

    tasks: list[Task]
    timed: bool
    notes: list[str] = field(default_factory=list)

    @property
    def begin(self) -> float:
        return min((span.begin for task in self.tasks for span in (*task.on, *task.waited)), default=0.0)

    @property
    def end(self) -> float:
        return max((span.end for task in self.tasks for span in (*task.on, *task.waited)), default=0.0)

    def on_card(self, card: str) -> list[Task]:
        return [task for task in self.tasks if card in task.cards]

    @property
    def cards(self) -> list[str]:
        return sorted({card for task in self.tasks for card in task.cards})


class Scheduler:
    """Reads the log of a scheduler."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.starts = 0
        self._granted: dict[str, float] = {}
        self._switched: dict[str, Task] = {}
        self._rules: list[tuple[re.Pattern[str], Callable[[float, re.Match[str]], None]]] = [
            (re.compile(rule), act)
            for rule, act in (
                (r"nvshare-scheduler \(process \d+\) listens on", self._started),
                (
                    rf"Registered client {_ID} on GPU (\S+) with Pod name = (.*), Pod namespace = (\S*)",
                    self._registered,
                ),
                (rf"Sent LOCK_OK to client {_ID}", self._lock_ok),
                (rf"Sent DROP_LOCK to client {_ID}", self._drop_lock),
                (rf"Client {_ID} moved to wait queue", self._parked),
                (rf"Switched GPU (\S+) from client {_ID} to client {_ID}", self._switch),
                (rf"Scheduled client {_ID} \(mem: (\d+) MB, total running: (\d+) MB\)", self._scheduled),
                (rf"Removing client {_ID}", self._removed),
            )
        ]

    def take(self, at: float, text: str) -> bool:
        """Whether this is a line that a scheduler writes."""
        for rule, act in self._rules:
            found = rule.match(text)
            if found:
                act(at, found)
                return True
        return False

    def end(self, at: float) -> None:
        for task in self.tasks.values():
            task.log_ends(at)

    def _task(self, client: str) -> Task:
        return self.tasks.setdefault(client, Task(client))

    def _started(self, at: float, _: re.Match[str]) -> None:
        self.starts += 1
        self.tasks.clear()

    def _registered(self, at: float, found: re.Match[str]) -> None:
        task = self._task(found[1])
        task.cards.append(found[2])
        task.label, task.namespace = ("" if found[3] == _NONE else found[3]), found[4]

    def _lock_ok(self, at: float, found: re.Match[str]) -> None:
        task = self._task(found[1])
        if not task.is_on:
            self._granted[task.id] = at
        task.go_on(at)

    def _drop_lock(self, at: float, found: re.Match[str]) -> None:
        task = self._task(found[1])
        task.dropped += 1
        task.wait(at)

    def _parked(self, at: float, found: re.Match[str]) -> None:
        self._task(found[1]).wait(at)

    def _switch(self, at: float, found: re.Match[str]) -> None:
        """The card goes from one client to another, which gets LOCK_OK next. Whether both go on together is told by the
        line after that: the memory of all that run."""
        before = self._task(found[2])
        for task in (before, self._task(found[3])):
            task.cards = task.cards or [found[1]]
        if before.is_on:
            self._switched[found[3]] = before
            before.go_off(at)

    def _scheduled(self, at: float, found: re.Match[str]) -> None:
        task, alone = self._task(found[1]), found[2] == found[3]
        before = self._switched.pop(task.id, None)
        if alone:
            for other in self.tasks.values():
                if other is not task and other.is_on and set(other.cards) & set(task.cards):
                    other.go_off(self._granted.get(task.id, at))
        elif before is not None and not before.is_on and before.on:
            before.go_on(before.on.pop().begin)

    def _removed(self, at: float, found: re.Match[str]) -> None:
        self._task(found[1]).end(at)


class _Tasks:
    """Reads the log of one task."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.ids: list[str] = []
        self.task = Task("", label, cards=[UNKNOWN_CARD])
        self.marks: list[float] = []
        self._done = -1

    def take(self, line: Line) -> None:
        if line.done is not None:
            if line.time is not None and line.done > self._done:
                self.marks.append(line.time)
            self._done = line.done
        elif line.text.startswith("Client ID = "):
            self.ids.append(line.text.rpartition(" ")[2])
        elif line.time is not None:
            if line.text.startswith("Received LOCK_OK"):
                self.task.go_on(line.time)
            elif line.text.startswith("Received DROP_LOCK"):
                self.task.dropped += 1
            elif line.text.startswith("Sent LOCK_RELEASED"):
                self.task.wait(line.time)

    def progress(self, turns: int) -> list[Span]:
        """When the task made progress. Empty where reports are too few to tell one turn from the next."""
        if len(self.marks) < _REPORTS * turns:
            return []
        gaps = [later - earlier for earlier, later in itertools.pairwise(self.marks)]
        return of_marks(self.marks, max(_GAP, _GAPS * median(gaps))) if gaps else []


def tell(logs: Sequence[Log]) -> Story:
    """The story of one run; ``Unreadable`` when there is none."""
    for log in logs:
        if not log.ours:
            raise Unreadable(_foreign(log))
    schedulers = {log.name: found for log in logs if (found := scheduler_in(log)) is not None}
    if len(schedulers) > 1:
        raise Unreadable(f"logs of several schedulers ({', '.join(schedulers)}): give those of one run")
    readers = [reader for log in logs for reader in _tasks_in(log, several=log.name in schedulers)]
    notes = [f"{log.name} ends in the middle of a line: what follows is missing" for log in logs if log.cut]
    if not schedulers:
        return _from_tasks(readers, notes)
    (name, (scheduler, timed, bounds)) = next(iter(schedulers.items()))
    if scheduler.starts > 1:
        notes.append(f"{name} has {scheduler.starts} starts of the scheduler: only the last one counts")
    if not timed:
        notes.append(f"{name} has no times: only the order is judged; kubectl logs --timestamps has them")
    if _place(scheduler.tasks.values()):
        notes.append(f"{name} begins in the middle of a run: what was before is missing")
    _match(name, scheduler.tasks, readers, bounds if timed else None)
    if timed and any(not reader.marks for reader in readers):
        notes.append("a task's log has no times or no progress: that of the others is shown")
    return Story(list(scheduler.tasks.values()), timed, notes)


def _place(tasks: Iterable[Task]) -> bool:
    """Put tasks whose registration is missing on the card, if there is only one; whether there are such tasks."""
    lost = [task for task in tasks if not task.cards]
    known = {card for task in tasks for card in task.cards}
    for task in lost:
        task.cards = [known.copy().pop() if len(known) == 1 else UNKNOWN_CARD]
    return bool(lost)


def _foreign(log: Log) -> str:
    if log.cut_at_once:
        return f"{log.name} is cut in the middle of its first line"
    return f"{log.name} is no log of nvshare: no line of it has [NVSHARE]"


def scheduler_in(log: Log) -> tuple[Scheduler, bool, Span] | None:
    """The scheduler in a log, whether its lines have times, and from when to when they are; None: there is none."""
    said = [line for line in log.lines if line.text]
    timed = all(line.time is not None for line in said)
    reader = Scheduler()
    moments = [(line.time if line.time is not None and timed else float(number)) for number, line in enumerate(said)]
    spoke = [reader.take(at, line.text) for at, line in zip(moments, said, strict=True)]
    if not any(spoke):
        return None
    reader.end(max(moments))
    return reader, timed, Span(min(moments), max(moments))


def _tasks_in(log: Log, several: bool) -> list[_Tasks]:
    """A reader for each task in a log. Where the log is a scheduler's too, tasks without a name are left out: they
    cannot be told apart, and the scheduler's lines are enough."""
    readers: dict[str, _Tasks] = {}
    for line in log.lines:
        if several and not line.stream:
            continue
        reader = readers.setdefault(line.stream, _Tasks(line.stream or PurePath(log.name).stem))
        reader.take(line)
    for reader in readers.values():
        times = [line.time for line in log.lines if line.stream == reader.label and line.time is not None]
        times = times or [line.time for line in log.lines if line.time is not None]
        if times:
            reader.task.log_ends(max(times))
    return [reader for reader in readers.values() if reader.ids or reader.task.on]


def _match(name: str, tasks: dict[str, Task], readers: Iterable[_Tasks], bounds: Span | None) -> None:
    """Give each client of the scheduler the name and the progress of its task."""
    for reader in readers:
        known = next((tasks[client] for client in reversed(reader.ids) if client in tasks), None)
        if known is None:
            raise Unreadable(
                f"{reader.label} is of another run than {name}, which does not know its client "
                f"{', '.join(reader.ids) or '(it names none)'}"
            )
        known.label = known.label or reader.label
        if bounds is None:
            continue
        if reader.marks and (reader.marks[-1] < bounds.begin or reader.marks[0] > bounds.end):
            raise Unreadable(
                f"{reader.label} and {name} are of different times: two runs, or clocks in different time zones"
            )
        known.progress = reader.progress(len(known.on))


def _from_tasks(readers: Sequence[_Tasks], notes: list[str]) -> Story:
    if len(readers) < 2:
        raise Unreadable("one task's log alone does not tell: give the scheduler's, or those of several tasks")
    if any(not reader.task.on for reader in readers):
        raise Unreadable(
            "these logs of tasks have no times, so their order is not known: give the scheduler's log too, or logs "
            "from kubectl logs --timestamps"
        )
    for reader in readers:
        reader.task.id = reader.ids[-1] if reader.ids else ""
        reader.task.progress = reader.progress(len(reader.task.on))
    notes.append("without the scheduler's log it is not known which card each task had: taken as one")
    return Story([reader.task for reader in readers], True, notes)
