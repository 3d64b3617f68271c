"""The scenarios, by part: each plays scenes on a stage and yields rows as they are found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from nvshare.bench.compute import rows
from nvshare.bench.compute.kinds import (
    ADD,
    BURSTY,
    FILLING,
    GRAPH,
    INTERACTIVE,
    IRREGULAR,
    KINDS,
    LAUNCH,
    LONG,
    MATMUL,
    PAUSING,
    SHORT,
    TRAINING,
)
from nvshare.bench.compute.rows import Row
from nvshare.bench.compute.shares import Change, promised, promised_over
from nvshare.bench.compute.stage import AUTO, CONCURRENT, HIGH, NORMAL, Scene, Seen, Stage
from nvshare.bench.compute.track import midmean
from nvshare.bench.compute.workers import MPS, NATIVE, NVSHARE, Name
from nvshare.bench.worker import WorkerFailed
from nvshare.bench.workloads.spec import seeded

ALONE_QUOTAS = (10, 25, 30, 50, 75, 90)
LAUNCH_BOUND_QUOTAS = tuple(PAUSING)
ALONE = {
    ADD: ALONE_QUOTAS,
    MATMUL: ALONE_QUOTAS,
    GRAPH: ALONE_QUOTAS,
    TRAINING: ALONE_QUOTAS,
    LAUNCH: LAUNCH_BOUND_QUOTAS,
}
TOGETHER: tuple[tuple[int, ...], ...] = (
    (30, 60),
    (25, 75),
    (10, 90),
    (50, 60),
    (80, 40),
    (80, 80),
    (20, 30, 50),
    (30, 60, 30, 60),
)
MIXES = ((ADD,), (MATMUL,), (ADD, MATMUL))
FREE = ((ADD, 2), (ADD, 3), (MATMUL, 2), (MATMUL, 3))
INTERACTIVE_ROWS = (  # its neighbour, how, its priority, and how many times a burst alone the slow ones may take
    (SHORT, NATIVE, NORMAL, None),
    (SHORT, NVSHARE, NORMAL, 1.6),
    (SHORT, NVSHARE, HIGH, 1.35),
    (LONG, NATIVE, NORMAL, None),
    (LONG, NVSHARE, NORMAL, 2.0),
    (LONG, NVSHARE, HIGH, 2.0),
)
STEPS = (30, 80, 20, 60, 10, 90, 50, 25)  # quotas of a task that is changed again and again
HOLD = 0.2  # of a window: how long a quota is kept
SHORTEST_HOLD = 1.2  # seconds: less would not tell whether it holds
NEIGHBOUR_QUOTA = 10
STORM_CHANGES = 200
STORM_WINDOWS = 7.5  # of the usual length: 60 s
STORM_QUOTAS = ((5, 30), (10, 50), (30, 100), (50, 100))  # of each task: without quotas, all would have the same
ROUNDS, ROUND = 30, 0.05  # in which ways to share a card alternate, where the host is not steady; of a window, each
TROUPE = 3  # processes of each kind that take turns in them: one may be faster than its equals for as long as it lives
RUN_IN, STEADY_AFTER = 0.5, 0.05  # of the usual time to run in: of new ones, and before each round
HOST_WINDOWS = 2.0  # of the usual length, where it is the host that is compared
BURSTS_JUDGED, BURSTS_REPORTED = 1.5, 1.25  # windows of the usual length: 120 and 100 bursts of an interactive task
STEADY, LOOKS = 0.003, 6  # by how much the best looks at the native speed may differ, and how many there are at most
DISTURBED = 0.005  # by which native speeds before and after a group of rows differ, where the host was not steady
REPORTED = 0.25  # of a window is enough for what is steady, and for what is only reported


def cast(how: str, kinds: Sequence[str]) -> list[Name]:
    """A task of each kind; those of one kind are numbered."""
    return [Name(how, kind, kinds[:venue].count(kind)) for venue, kind in enumerate(kinds)]


def casts(how: str, kinds: Sequence[str]) -> list[list[Name]]:
    """Those that take turns in the rounds of these kinds; where there are no rounds, one."""
    first = cast(how, kinds)
    if LAUNCH not in kinds:
        return [first]
    return [[replace(name, number=(name.number + shift) % TROUPE) for name in first] for shift in range(TROUPE)]


def title(kinds: Sequence[str]) -> str:
    """``2 x add``, ``add + matmul + add``; in the order of the quotas."""
    return f"{len(kinds)} x {kinds[0]}" if len(set(kinds)) < len(kinds) == kinds.count(kinds[0]) else " + ".join(kinds)


def as_seen(row: Row, *seen: Seen) -> Row:
    """A row does not count when what the tasks computed is wrong."""
    return row if all(each.right for each in seen) else replace(row, ok=False, note="wrong results")


class Solo:
    """Native speeds, alone, measured when asked for; a ratio is taken to all that were measured around it."""

    def __init__(self, stage: Stage, before: Solo | None = None) -> None:
        """What the one before measured last is measured first here: nothing came between."""
        self._stage = stage
        self._known = {} if before is None else before.last
        self._found: dict[str, list[float]] = {}
        self._steps: dict[str, float | None] = {}
        self.last: dict[str, Seen] = {}

    def measure(self, *kinds: str) -> None:
        self.last = {kind: self._known.get(kind) or self._play(kind) for kind in dict.fromkeys(kinds)}
        self._known = {}
        for kind, seen in self.last.items():
            self._found.setdefault(kind, []).append(seen.speeds()[0])
            (self._steps[kind],) = seen.step_seconds()

    def _play(self, kind: str) -> Seen:
        stage = self._stage
        return stage.play(Scene([Name(NATIVE, kind)], (), stage.seconds * REPORTED, stage.start * REPORTED))

    def measure_until_steady(self, kind: str) -> None:
        """Where looks differ the host hesitated: then more of them, until the two best agree."""
        while rows.spread(sorted(self._found[kind])[-2:]) > STEADY and len(self._found[kind]) < LOOKS:
            self.measure(kind)

    @property
    def drift(self) -> float:
        """How far the looks at one kind are apart, at most."""
        return max(map(rows.spread, self._found.values()), default=0.0)

    def speed(self, kind: str) -> float:
        """The best: what the host or others on the machine do can only make it slower."""
        speed = max(self._found[kind])
        if not speed:
            raise WorkerFailed(f"{kind} alone did not end a step in the measured time: use a larger --seconds")
        return speed

    def shares(self, tasks: Sequence[Name], speeds: Sequence[float]) -> tuple[float, ...]:
        return tuple(speed / self.speed(task.kind) for task, speed in zip(tasks, speeds, strict=True))

    def figures(self, tasks: Sequence[Name], seen: Seen) -> dict[str, Any]:
        """What a share can be wrong by: ``solo_drift``, how far the measurements of the reference are apart; and
        ``step_times_solo``, how long steps took while the task computed: below 1 where the card's clocks were higher
        than alone, above 1 where others computed too."""
        steps = [
            None if now is None or alone is None else round(now / alone, 4)
            for now, alone in zip(seen.step_seconds(), (self._steps[task.kind] for task in tasks), strict=True)
        ]
        drift = max(rows.spread(self._found[task.kind]) for task in tasks)
        return {"solo_drift": round(drift, 4), "step_times_solo": steps, **seen.as_told()}


def going_on(part: str, what: str, found: Iterator[Row]) -> Iterator[Row]:
    """The rows of one group of scenes. That its tasks failed is a row too, and no reason to give up the next group."""
    try:
        yield from found
    except WorkerFailed as error:
        yield Row(part, what, ok=False, note=str(error))


def quotas(stage: Stage) -> Iterator[Row]:
    """Each workload alone, at each of its quotas."""
    both = [Name(how, kind) for kind in ALONE for how in (NATIVE, NVSHARE)]
    stage.call_up([*both, *(Name(NATIVE, kind) for kind in (FILLING, *PAUSING.values()))])
    steady = {kind: wanted for kind, wanted in ALONE.items() if kind != LAUNCH}
    groups = {f"{kind} alone": partial(_alone_at, stage, kind, wanted) for kind, wanted in steady.items()}
    yield from _by_group(stage, "quotas", groups)
    yield from going_on("quotas", f"{LAUNCH} alone", _launch_bound_at(stage, LAUNCH, ALONE[LAUNCH]))


def _by_group(stage: Stage, part: str, groups: Mapping[str, Callable[[Solo], Iterator[Row]]]) -> Iterator[Row]:
    """Rows that are compared with the same native runs, before and after them. Where those differ the host was
    disturbed, and what came between cannot be told from that: the group is played again, one of a part at most, and the
    one with the steadier native runs counts, whatever it found. The other is only reported, unless tasks failed."""
    solo: Solo | None = None
    spare = 1
    for what, play in groups.items():
        solo = Solo(stage, solo)
        found = list(going_on(part, what, play(solo)))
        if solo.drift > DISTURBED and spare:
            spare -= 1
            again = Solo(stage)
            other = list(going_on(part, what, play(again)))
            if again.drift < solo.drift:
                found, other = other, found
            found += [replace(row, how=f"{row.how}, host unsteady", ok=row.ok if row.note else None) for row in other]
            solo = again
        yield from found


def _alone_at(stage: Stage, kind: str, wanted: Sequence[int], solo: Solo) -> Iterator[Row]:
    solo.measure(kind)
    task = [Name(NVSHARE, kind)]
    played = [(quota, stage.play(Scene(task, (quota,), stage.seconds, stage.start))) for quota in wanted]
    solo.measure(kind)
    solo.measure_until_steady(kind)
    for quota, seen in played:
        share = solo.shares(task, seen.speeds())
        figures = {**solo.figures(task, seen), "native_its": round(solo.speed(kind), 2)}
        yield as_seen(replace(rows.quota_row("quotas", f"{kind} alone", (quota,), share), figures=figures), seen)


def _launch_bound_at(stage: Stage, kind: str, wanted: Sequence[int]) -> Iterator[Row]:
    """Its speed is the host's, which varies by a third from one second to the next: so it is compared with a native one
    that has the same core in its pauses, and what that does in a second of the core. Beside it, and seen in the same
    way: a native task that pauses by itself for as long."""
    filler = Name(NATIVE, FILLING)
    for quota in wanted:
        task = Name(NVSHARE, kind)
        seen = stage.play(Scene([task, filler], (quota, None), stage.seconds * HOST_WINDOWS, stage.start))
        native = _in_the_pauses(seen)
        share = seen.speeds()[0] / native
        row = rows.quota_row("quotas", f"{kind} alone", (quota,), (share,), launch_bound=True)
        figures = {"native_its": round(native, 2), "by_second": seen.shares_by_second(0, 1), **seen.as_told()}
        yield as_seen(replace(row, figures=figures), seen)
        alike = stage.play(Scene([Name(NATIVE, PAUSING[quota]), filler], (), stage.seconds, stage.start * REPORTED))
        paused = quota / 100 * alike.speed_in_bursts() / _in_the_pauses(alike)
        yield Row("quotas", f"{kind}, pausing by itself", NATIVE, (quota,), (quota / 100,), (paused,))


def _in_the_pauses(seen: Seen) -> float:
    """What the second task did, in a second of the core."""
    speed = seen.speed_on_cpu(1)
    if not speed:
        raise WorkerFailed(f"{LAUNCH} did not end a step natively in the pauses: use a larger --seconds")
    return speed


def pairs(stage: Stage) -> Iterator[Row]:
    """Two, three and four tasks with quotas. Each mix is compared with native runs before and after it."""
    most = max(map(len, TOGETHER))
    fullest = [_mixed(mix, most) for mix in MIXES]
    stage.call_up(
        [*cast(NATIVE, tuple(kind for mix in MIXES if len(mix) == 1 for kind in mix))]
        + [task for kinds in fullest for task in cast(NVSHARE, kinds)]
    )
    yield from _by_group(stage, "pairs", {" and ".join(mix): partial(_with_quotas, stage, mix) for mix in MIXES})


def _with_quotas(stage: Stage, mix: Sequence[str], solo: Solo) -> Iterator[Row]:
    solo.measure(*mix)
    played = []
    for wanted in TOGETHER:
        tasks = cast(NVSHARE, _mixed(mix, len(wanted)))
        played.append((tasks, wanted, stage.play(Scene(tasks, wanted, stage.seconds, stage.start))))
    solo.measure(*mix)
    for kind in mix:
        solo.measure_until_steady(kind)
    for tasks, wanted, seen in played:
        shares = solo.shares(tasks, seen.speeds())
        what = title([task.kind for task in tasks])
        row = rows.quota_row("pairs", what, wanted, shares)
        yield as_seen(replace(row, figures=solo.figures(tasks, seen)), seen)


def _mixed(mix: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(mix[venue % len(mix)] for venue in range(count))


@dataclass(frozen=True)
class Way:
    """To share a card, without quotas."""

    label: str
    how: str
    mode: str = AUTO


NATIVELY = Way(NATIVE, NATIVE)
AS_IT_COMES = Way(NVSHARE, NVSHARE)
WAYS = (NATIVELY, AS_IT_COMES, Way(CONCURRENT, NVSHARE, CONCURRENT), Way(MPS, MPS))


BESIDE: tuple[tuple[str, ...], ...] = (
    *((kind,) * count for kind, count in FREE),
    *((ADD, MATMUL), (LAUNCH, LAUNCH), (ADD, LAUNCH)),
)


def free(stage: Stage, beside: Sequence[tuple[str, ...]] = BESIDE) -> Iterator[Row]:
    """Tasks without quotas, under nvshare and in all other ways, in turn. Launch-bound ones are compared with what they
    reach natively, nothing else."""
    both = [casts(how, kinds) for how in (NATIVE, NVSHARE) for kinds in beside]
    stage.call_up(task for each in both for tasks in each for task in tasks)
    ways = list(WAYS)
    busy = [kinds for kinds in beside if LAUNCH not in kinds]
    problem = stage.without_mps() or _call_up_mps(stage, busy)
    if problem is not None:
        ways = [way for way in ways if way.how != MPS]
        yield Row("free", "all", MPS, note=f"not measured: {problem}")
    solo: Solo | None = None
    for kinds in beside:
        solo = Solo(stage, solo)
        chosen = ways if kinds in busy else [NATIVELY, AS_IT_COMES]
        yield from going_on("free", title(kinds), _ways_to_share(stage, solo, kinds, chosen))


def _call_up_mps(stage: Stage, beside: Iterable[Sequence[str]]) -> str | None:
    """Why tasks under MPS cannot be had, where they cannot."""
    try:
        stage.call_up([task for kinds in beside for task in cast(MPS, kinds)])
    except WorkerFailed as error:
        return str(error)
    return None


def _ways_to_share(stage: Stage, solo: Solo, kinds: Sequence[str], ways: Sequence[Way]) -> Iterator[Row]:
    """What launch-bound tasks do depends on the host, whose speed varies from second to second: ways alternate, native
    for as long as ours, each round is compared by itself, and the middle half of them counts. It depends on the process
    too: others take part after every third of the rounds."""
    rounds = ROUNDS if LAUNCH in kinds else 1
    played: dict[Way, list[Seen]] = {way: [] for way in ways}
    troupes = {way: casts(way.how, kinds) for way in ways}
    solo.measure(*kinds)
    for turn in range(rounds):
        for way in ways if rounds > 1 and turn * TROUPE % rounds == 0 else ():
            tasks = troupes[way][_whose(turn)]
            stage.play(Scene(tasks, (), stage.seconds * ROUND, stage.start * RUN_IN))  # what they are is found out
        for way in ways if turn % 2 == 0 else reversed(ways):
            tasks = troupes[way][_whose(turn) if rounds > 1 else 0]
            played[way].append(stage.play(_free_scene(stage, tasks, way, rounds)))
    solo.measure(*kinds)
    each = {way: [solo.shares(cast(way.how, kinds), one.speeds()) for one in seen] for way, seen in played.items()}
    native = tuple(map(midmean, zip(*each[NATIVELY], strict=True)))
    shares = {way: _round_by_round(found, each[NATIVELY], native) for way, found in each.items()}
    what = title(kinds)
    its = {"solo_its": [round(solo.speed(kind), 2) for kind in kinds]}
    for way in ways:
        more = {**its, **played[way][-1].as_told()}
        if rounds > 1:
            more["rounds"] = [[round(share, 4) for share in one] for one in each[way]]
            more["by_process"] = _by_process(each[way])
        if LAUNCH not in kinds:
            row = rows.busy_row(what, way.label, shares[way])
        elif set(kinds) == {LAUNCH}:
            row = rows.beside_native_row(what, way.label, shares[way], native)
        else:
            row = rows.not_worse_row(what, way.label, shares[way], native)
        yield as_seen(replace(row, figures={**row.figures, **more}), *played[way])


def _round_by_round(
    found: Sequence[Sequence[float]], natives: Sequence[Sequence[float]], native: Sequence[float]
) -> tuple[float, ...]:
    """What was delivered, by its ratio to what the same tasks had natively in the same round: both follow the host."""
    rounds = zip(found, natives, strict=True)
    ratios = [[got / had if had else 0.0 for got, had in zip(one, other, strict=True)] for one, other in rounds]
    return tuple(had * midmean(kept) for had, kept in zip(native, zip(*ratios, strict=True), strict=True))


def _by_process(found: Sequence[Sequence[float]]) -> list[list[float]]:
    """What each cast had in its rounds. Natively: by how much processes differ for no reason of ours."""
    each = [[one for turn, one in enumerate(found) if _whose(turn) == which] for which in range(TROUPE)]
    return [[round(midmean(shares), 4) for shares in zip(*rounds, strict=True)] for rounds in each]


def _whose(turn: int) -> int:
    """Which cast has this round."""
    return turn * TROUPE // ROUNDS


def _free_scene(stage: Stage, tasks: Sequence[Name], way: Way, rounds: int) -> Scene:
    """A whole window for what is judged; those who come again and again have nothing to find out."""
    if rounds > 1:
        return Scene(tasks, (), stage.seconds * ROUND, stage.start * STEADY_AFTER, mode=way.mode)
    part = 1.0 if way == AS_IT_COMES else REPORTED
    return Scene(tasks, (), stage.seconds * part, stage.start * part, mode=way.mode)


def idle(stage: Stage) -> Iterator[Row]:
    """Tasks that mostly sleep beside each other; an interactive one beside a busy one."""
    sleepers = [(kind,) * 3 for kind in (BURSTY, IRREGULAR)]
    beside = [(INTERACTIVE, busy) for busy in dict.fromkeys(row[0] for row in INTERACTIVE_ROWS)]
    stage.call_up(task for how in (NATIVE, NVSHARE) for kinds in (*sleepers, *beside) for task in cast(how, kinds))
    for idlers in sleepers:
        yield from going_on("idle", title(idlers), _sleepers(stage, idlers))
    alone = _bursts_alone(stage, INTERACTIVE, stage.seconds)
    for kinds in beside:
        yield from going_on("idle", " beside ".join(kinds), _interactive(stage, kinds, alone))


def _bursts_alone(stage: Stage, kind: str, seconds: float) -> list[float]:
    latencies = stage.play(Scene([Name(NATIVE, kind)], (), seconds, stage.start * REPORTED)).latencies()
    if not latencies:
        raise WorkerFailed(f"{kind} alone did not end a burst in the measured time: use a larger --seconds")
    return latencies


def _sleepers(stage: Stage, kinds: Sequence[str]) -> Iterator[Row]:
    """Sleeps are the same for all, so the bursts tell how much longer a task takes; the clock of the sleeps does not
    blur it. Where no two sleeps are alike bursts meet by chance, whoever shares the card: that is only reported."""
    sleep = KINDS[kinds[0]].sleep
    alone = fmean(_bursts_alone(stage, kinds[0], stage.seconds / 2))
    for how, part in ((NATIVE, 0.5), (NVSHARE, 1.0)):
        seen = stage.play(Scene(cast(how, kinds), (), stage.seconds * part, stage.start))
        bursts = [seen.latencies(who) for who in range(len(kinds))]
        ratios = [(sleep + fmean(each)) / (sleep + alone) if each else None for each in bursts]
        yield as_seen(rows.idle_row(title(kinds), how, ratios, judged=kinds[0] == BURSTY and how == NVSHARE), seen)


def _interactive(stage: Stage, kinds: Sequence[str], alone: Sequence[float]) -> Iterator[Row]:
    solo = Solo(stage)
    solo.measure(kinds[1])
    for _, how, priority, at_most in (row for row in INTERACTIVE_ROWS if row[0] == kinds[1]):
        tasks = cast(how, kinds)
        windows = BURSTS_REPORTED if at_most is None else BURSTS_JUDGED
        seen = stage.play(Scene(tasks, (), windows * stage.seconds, stage.start, priority=priority))
        beside = seen.speeds()[1] / solo.speed(kinds[1])
        what = f"{kinds[0]}{', high priority' if priority == HIGH else ''} beside {kinds[1]}"
        yield as_seen(rows.burst_row(what, how, seen.latencies(), alone, beside, at_most), seen)


def change(stage: Stage) -> Iterator[Row]:
    """Quotas that change while tasks run."""
    kinds = (ADD, MATMUL, ADD, MATMUL)
    stage.call_up([*cast(NATIVE, kinds[:2]), *cast(NVSHARE, kinds)])
    solo = Solo(stage)
    solo.measure(*kinds)
    for tasks in ([Name(NVSHARE, ADD)], [Name(NVSHARE, MATMUL), Name(NVSHARE, ADD)]):
        yield from going_on("change", "quota changes", _steps(stage, solo, tasks))
    yield from going_on("change", "random changes", _storm(stage, solo, cast(NVSHARE, kinds)))


def _steps(stage: Stage, solo: Solo, tasks: Sequence[Name]) -> Iterator[Row]:
    """The first task is changed; one beside it keeps a quota that leaves room for all of that."""
    hold = max(SHORTEST_HOLD, stage.seconds * HOLD)
    beside = [NEIGHBOUR_QUOTA] * (len(tasks) - 1)
    changes = [Change(venue * hold, 0, quota) for venue, quota in enumerate(STEPS[1:])]
    scene = Scene(tasks, (STEPS[0], *beside), len(changes) * hold, stage.start, changes)
    seen = stage.play(scene)
    ways = [(promised((old, *beside))[0], promised((new, *beside))[0]) for old, new in itertools.pairwise(STEPS)]
    ends = [*(done.at for done in seen.changes[1:]), seen.end]
    shown = [
        rows.shown_after(seen.tracks[0], done.at, until, solo.speed(tasks[0].kind), old, new)
        for done, until, (old, new) in zip(seen.changes, ends, ways, strict=True)
    ]
    what = f"{tasks[0].kind} {'beside ' + tasks[1].kind if beside else 'alone'}: quota changes"
    yield as_seen(rows.change_row(what, ways, shown), seen)


def _storm(stage: Stage, solo: Solo, tasks: Sequence[Name]) -> Iterator[Row]:
    """Random changes, the same number whatever the length."""
    source = seeded("storm")
    seconds = STORM_WINDOWS * stage.seconds
    moments = sorted(source.uniform(0, seconds) for _ in range(STORM_CHANGES))
    changes = []
    for at in moments:
        who = source.randrange(len(tasks))
        changes.append(Change(at, who, source.randint(*STORM_QUOTAS[who])))
    first = [low for low, _ in STORM_QUOTAS]
    seen = stage.play(Scene(tasks, first, seconds, stage.start, changes))
    shares = solo.shares(tasks, seen.speeds())
    due = promised_over(first, seen.changes, seen.begin, seen.end)
    pauses = [track.longest_pause(seen.begin, seen.end) for track in seen.tracks]
    what = f"{title([task.kind for task in tasks])}: {len(changes)} random changes"
    yield as_seen(rows.storm_row(what, due, shares, pauses, len(changes)), seen)


PARTS: dict[str, Callable[[Stage], Iterator[Row]]] = {
    "quotas": quotas,
    "pairs": pairs,
    "free": free,
    "idle": idle,
    "change": change,
}
