"""Checks of sharing: in parallel where memory fits, in turns where it does not or where the mode says so."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from nvshare.acceptance.finding import Verdict
from nvshare.acceptance.verify.ground import GPU, START, Ground, task
from nvshare.acceptance.waiting import eventually, every
from nvshare.bench import spans
from nvshare.bench.compute.stage import Scene, Seen
from nvshare.bench.compute.track import Track
from nvshare.bench.worker import WorkerFailed
from nvshare.client.connection import SchedulerError

QUARTER = 0.25  # seconds in which every task that fits makes progress
PARALLEL = 0.9  # of those quarters, and of the time; other work of the host takes the rest
SERIAL = 0.1  # of the time in which tasks in turns may seem to run at once: the host reads their clocks
FULL_SPEED = 0.9  # of solo
IN_TIME = 1.0  # seconds after the end of a neighbour
QUANTUM = 1.0  # seconds: the shortest turn that can be asked for
_TURNS = 3  # of both tasks together, at least, while they are watched
_LOOK = 0.05
_KILLED_BY = 2.5 * QUANTUM  # seconds within which the victim has a turn, even if it is second
_LATE = 2.0  # seconds after which a task that should have ended counts as standing still
_GAP = 0.3  # seconds without progress that count as a pause; slices leave shorter ones


@dataclass
class Watch:
    """What the scheduler says of the card while tasks run."""

    ground: Ground
    most_running: int = 0
    drops: int = 0
    switches: int = 0
    moved: int = 0
    _before: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        try:
            status = self.ground.status()
        except SchedulerError:
            return  # the tasks themselves show what happened
        counters = status["counters"]
        self._before = self._before or counters
        self.drops = counters["drops"] - self._before["drops"]
        self.switches = counters["switches"] - self._before["switches"]
        self.moved = counters["swapped_bytes"] - self._before["swapped_bytes"]
        card = next(gpu for gpu in status["gpus"] if gpu["uuid"] == self.ground.venue.uuids[GPU])
        self.most_running = max(self.most_running, len(card["running"]))


@dataclass(frozen=True)
class Sight:
    """What two watched tasks did, and what the scheduler said meanwhile."""

    seen: Seen
    watch: Watch

    @property
    def progress(self) -> dict[str, list[spans.Span]]:
        begin, end = self.seen.begin, self.seen.end
        return {
            f"task {number}": spans.within(spans.of_marks(track.times, _GAP), begin, end)
            for number, track in enumerate(self.seen.tracks, start=1)
        }

    @property
    def together(self) -> float:
        """Part of the time in which both made progress."""
        return spans.length(spans.at_once(self.progress.values())) / (self.seen.end - self.seen.begin)

    @property
    def each(self) -> bool:
        """Both made progress."""
        return all(self.progress.values())


def _watched(ground: Ground, size: int, mode: str, seconds: float) -> Sight:
    watch = Watch(ground)
    with ground.crew(size) as crew:
        tasks = [task(0), task(1)]
        crew.call_up(tasks)
        with ground.venue.set_to(mode, QUANTUM), ground.stage(crew) as stage, every(_LOOK, watch.look):
            seen = stage.play(Scene(tasks, seconds=seconds, start=START, mode=mode))
    return Sight(seen, watch)


def _quarters(track: Track, begin: float, end: float) -> float:
    """The part of the quarters of a second in which the task made progress."""
    count = int((end - begin) / QUARTER)
    edges = [begin + number * QUARTER for number in range(count + 1)]
    counts = [track.done(edge) for edge in edges]
    return sum(later > earlier for earlier, later in itertools.pairwise(counts)) / count


def parallel(ground: Ground) -> Verdict:
    """Two tasks that fit."""
    sight = _watched(ground, ground.small, "auto", ground.seconds)
    watch, seen = sight.watch, sight.seen
    quarters = min(_quarters(track, seen.begin, seen.end) for track in seen.tracks)
    text = (
        f"{watch.most_running} on at once, {watch.drops} DROP_LOCK, {watch.moved >> 20} MiB moved; together for "
        f"{sight.together:.0%} of the time, each in {quarters:.0%} of the quarters of a second or more{_wrong(seen)}"
    )
    ok = watch.most_running == 2 and watch.drops == 0 and watch.moved == 0 and seen.right
    return Verdict(text, ok and quarters >= PARALLEL and sight.together >= PARALLEL, sight.progress)


def serial_by_memory(ground: Ground) -> Verdict:
    """Two tasks that do not fit."""
    return _serial(_watched(ground, ground.large, "auto", max(ground.seconds, _TURNS * QUANTUM)))


def serial_by_mode(ground: Ground) -> Verdict:
    """Two tasks that fit, in serial mode."""
    return _serial(_watched(ground, ground.small, "serial", max(ground.seconds, _TURNS * QUANTUM)))


def _serial(sight: Sight) -> Verdict:
    watch = sight.watch  # DROP_LOCK is no condition: a turn that ends by itself needs none
    text = (
        f"{watch.most_running} on at once, {watch.switches} switches, {watch.drops} DROP_LOCK, "
        f"{watch.moved >> 20} MiB moved; together for "
        f"{sight.together:.0%} of the time{'' if sight.each else ', and one had no turn'}{_wrong(sight.seen)}"
    )
    ok = watch.most_running == 1 and watch.switches > 0 and sight.each and sight.seen.right
    return Verdict(text, ok and sight.together <= SERIAL, sight.progress)


def _wrong(seen: Seen) -> str:
    return "" if seen.right else "; the results are wrong"


def survivor(ground: Ground) -> Verdict:
    """Kill one of two tasks that do not fit in its turn, while the other's memory is on the host."""
    victim, stays = task(0), task(1)
    with ground.crew(ground.large) as crew, ground.venue.set_to("auto", QUANTUM):
        crew.call_up([stays, victim])
        with ground.stage(crew) as stage:
            (solo,) = stage.play(Scene([stays], seconds=1.0, start=START)).speeds()
        until = time.monotonic() + _KILLED_BY + IN_TIME + ground.seconds
        crew.begin([stays, victim], until)
        goes, waits = crew.client(victim), crew.client(stays)

        def its_turn() -> bool:
            card = ground.card()
            return card["running"] == [goes] and waits in card["waiting"]

        eventually(its_turn, _KILLED_BY)
        killed = time.monotonic()
        crew.kill(victim)
        try:
            (track,) = crew.tracks([stays], until, _LATE)
        except WorkerFailed:
            stuck = time.monotonic() - killed
            return Verdict(f"it stood still {stuck:.0f} s after its neighbour was killed", ok=False)
    begin, end = killed + IN_TIME, until
    speed = track.speed(begin, end) / solo if solo else 0.0
    wrong = "" if track.right else "; its results are wrong"
    text = f"{speed:.0%} of its solo speed from {IN_TIME:g} s after its neighbour was killed{wrong}"
    progress = spans.within(spans.of_marks(track.times, _GAP), killed - QUANTUM, end)
    return Verdict(text, speed >= FULL_SPEED and track.right, {"survivor": progress})
