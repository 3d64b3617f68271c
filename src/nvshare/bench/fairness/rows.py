"""Rows, what they come to, and what is promised of them. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Annotated, Any

from nvshare.bench import columns
from nvshare.bench.columns import JUDGED, Column, Compared
from nvshare.bench.compute.track import percentile
from nvshare.bench.fairness.tasks import LONG, SMALL, Tasks

WORST_RATIO = 0.80  # of what is attainable, for each task of each set
USUAL_RATIO = 0.88  # the same in most sets
USUALLY = 0.95  # part of the sets
SUM_RATIO = 0.87  # the sum of a set, of the sum of what is attainable
USUAL_SUM = 0.95  # the same in the median
NATIVE_RATIO = 0.90  # small bursts: each task, of what time-slicing gives it
CARD_RATIO = 0.85  # on a real card: of what is attainable, for each task of each set
CARD_SUM = 0.96  # the sum of a set without quotas, of the sum by time-slicing
CAP_POINTS = 3.0  # that a capped task may be off the smaller one of its cap and what is attainable
CAPS_LEAVE = 10.0  # percent of the card that caps leave free where that is judged
MODEL_POINTS = 5.0  # that a task may be off its share in the model
_NOTHING = 0.5  # percent of the card: a task that could get less is not judged
WHOLE = 100.0  # percent

TABLE_PART, TRAINING = "table", "training"


def _percents(values: Sequence[float]) -> str:
    return "/".join(f"{value:.1f}" for value in values)


@dataclass(frozen=True)
class TaskShape:
    """A task of a row, as ``tasks.Task`` is written."""

    gpu_ms: float
    host_ms: float
    floor: int | None
    cap: int | None


def task_text(task: TaskShape) -> str:
    """As it is typed."""
    quota = f"@{task.floor or ''}..{task.cap or ''}" if task.floor or task.cap else ""
    return f"{task.gpu_ms:g}+{task.host_ms:g}{quota}"


_RATIOS = ("worst_ratio", "sum_ratio", "native_ratio", "above_cap")
_ON_CARD = ("native_sum_ratio", "gain", "cap_error", "model_error")  # written where there is something to tell
_WORST = Compared("worst got / attainable", 1)
_SUM = Compared("sum / attainable", 1)


@dataclass(frozen=True)
class Row:
    """One set of tasks. Shares are percent of the card's time, one per task. ``fair``: what each should get by
    weighted max-min; ``attainable``: what an ideal preemptive scheduler gives it of that; ``got``: under nvshare;
    ``native``: by the driver's time-slicing; ``mps``: under MPS, where that was measured; ``model``: what the model
    says of a measured set. ``ok`` is None where nothing is promised."""

    part: Annotated[str, Column("part")]
    what: Annotated[str, Column("tasks")]
    tasks: tuple[TaskShape, ...]
    fair: Annotated[tuple[float, ...], Column("fair", _percents)]
    attainable: Annotated[tuple[float, ...], Column("attainable", _percents)]
    got: Annotated[tuple[float, ...], Column("got", _percents)] = ()
    native: Annotated[tuple[float, ...] | None, Column("native", _percents)] = None
    mps: Annotated[tuple[float, ...] | None, Column("MPS", _percents)] = None
    model: Annotated[tuple[float, ...] | None, Column("model", _percents)] = None
    ok: Annotated[bool | None, JUDGED] = None
    note: Annotated[str, Column("note", place=columns.NOTES)] = ""

    @property
    def sum(self) -> Annotated[float, Column("sum", "{:.1f}")]:
        """Percent of the card's time that all tasks used under nvshare."""
        return sum(self.got)

    @property
    def worst_ratio(self) -> Annotated[float | None, Column("worst", "{:.3f}", compared=_WORST)]:
        """Smallest got / attainable."""
        return _smallest_ratio(self.got, self.attainable)

    @property
    def sum_ratio(self) -> Annotated[float | None, Column("of sum", "{:.3f}", compared=_SUM)]:
        """Sum of what they got / sum of what is attainable."""
        whole = sum(self.attainable)
        return self.sum / whole if self.got and whole else None

    @property
    def native_ratio(self) -> Annotated[float | None, Column("of native", "{:.3f}")]:
        """Smallest got / native, of sets without quotas: time-slicing knows none."""
        if self.native is None or any(task.floor or task.cap for task in self.tasks):
            return None
        return _smallest_ratio(self.got, self.native)

    @property
    def above_cap(self) -> Annotated[float | None, Column("above cap", "{:+.1f}")]:
        """Largest got - cap in percentage points; None without caps."""
        caps = [(got, task.cap) for got, task in zip(self.got, self.tasks, strict=False) if task.cap is not None]
        return max((got - cap for got, cap in caps), default=None)

    @property
    def native_sum_ratio(self) -> float | None:
        """Sum of what they got / sum by time-slicing, of sets without quotas."""
        return sum(self.got) / sum(self.native) if self.native and self.native_ratio is not None else None

    @property
    def gain(self) -> float | None:
        """Smallest got / native of the tasks that get less than what is fair natively; None: none does."""
        lacking = [
            (got, native)
            for got, native, fair in zip(self.got, self.native or (), self.fair, strict=False)
            if native < fair
        ]
        return _smallest_ratio(*zip(*lacking, strict=True)) if lacking else None

    @property
    def cap_error(self) -> float | None:
        """Largest distance of a capped task from its cap or what is attainable, in percentage points. None without
        caps, and where the caps leave too little of the card to tell."""
        if sum(self.fair) > WHOLE - CAPS_LEAVE:
            return None
        dues = zip(self.got, self.attainable, self.tasks, strict=False)
        return max((abs(got - min(task.cap, due)) for got, due, task in dues if task.cap is not None), default=None)

    @property
    def model_error(self) -> float | None:
        """Largest distance of a task from its share in the model, in percentage points."""
        if not self.got or self.model is None:
            return None
        return max(abs(got - said) for got, said in zip(self.got, self.model, strict=True))

    def to_dict(self) -> dict[str, Any]:
        names = ("fair", "attainable", "got", "native", "mps", "model")
        shares = {name: _rounded(getattr(self, name), 2) for name in names}
        ratios = {name: _round(getattr(self, name)) for name in (*_RATIOS, *_ON_CARD)}
        written = {**asdict(self), **shares, "sum": round(self.sum, 2), **ratios}
        absent = {name for name in ("mps", "model", *_ON_CARD) if written[name] is None}
        return {name: value for name, value in written.items() if name not in absent}


def _rounded(values: Sequence[float] | None, digits: int) -> list[float] | None:
    return None if values is None else [round(value, digits) for value in values]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _smallest_ratio(got: Sequence[float], due: Sequence[float]) -> float | None:
    return min((one / other for one, other in zip(got, due, strict=False) if other > _NOTHING), default=None)


@dataclass(frozen=True)
class Yardstick:
    """What each task of a set should and could get, in percent, and what the model gives it."""

    fair: Sequence[float]
    attainable: Sequence[float]
    model: Sequence[float] | None = None


Measure = Callable[[Tasks], Yardstick]


def row(
    part: str,
    tasks: Tasks,
    due: Yardstick,
    got: Sequence[float],
    native: Sequence[float] | None = None,
    mps: Sequence[float] | None = None,
    *,
    what: str = "",
    note: str = "",
    on_card: bool = False,
) -> Row:
    """A judged row, by the promises for real cards if it was measured ``on_card``. Without ``got`` nothing could be
    measured under nvshare, which is not as promised."""
    shapes = tuple(TaskShape(task.gpu_ms, task.host_ms, task.floor, task.cap) for task in tasks)
    made = Row(
        part,
        what or " ".join(map(task_text, shapes)),
        shapes,
        tuple(due.fair),
        tuple(due.attainable),
        tuple(got),
        None if native is None else tuple(native),
        None if mps is None else tuple(mps),
        None if due.model is None else tuple(due.model),
        note=note,
    )
    return replace(made, ok=_ok_on_card(made) if on_card else _ok(made))


def _ok_on_card(row: Row) -> bool | None:
    if row.part == LONG:
        return None
    if row.part == SMALL or not row.got:
        return _ok(row)
    return (
        (row.worst_ratio is None or row.worst_ratio >= CARD_RATIO)
        and (row.native_sum_ratio is None or row.native_sum_ratio >= CARD_SUM)
        and (row.gain is None or row.gain > 1.0)
        and (row.cap_error is None or row.cap_error <= CAP_POINTS)
        and (row.model_error is None or row.model_error <= MODEL_POINTS)
    )


def _ok(row: Row) -> bool | None:
    if row.part == LONG:
        return None
    if not row.got:
        return False
    if row.part == SMALL:
        return None if row.native_ratio is None else row.native_ratio >= NATIVE_RATIO
    worst, total = row.worst_ratio, row.sum_ratio
    return (worst is None or worst >= WORST_RATIO) and (total is None or total >= SUM_RATIO)


# --- all rows together


@dataclass(frozen=True)
class Promise:
    """What is asked of all sets together, what was seen, and whether that is enough."""

    what: str
    asked: str
    seen: str
    ok: bool


@dataclass(frozen=True)
class Summary:
    """Of all sets that were measured; None: no set tells. ``native_ratio`` is the smallest one."""

    sets: int
    worst_ratio: float | None = None
    worst_ratio_p5: float | None = None
    worst_ratio_median: float | None = None
    sum_ratio: float | None = None
    sum_ratio_median: float | None = None
    above_cap: float | None = None
    native_ratio: float | None = None


def summary(rows: Sequence[Row]) -> Summary:
    """Training is left out beside other sets: its tasks are not as exactly known."""
    rows = [row for row in rows if row.part != TRAINING] or rows
    worst, total = _known(row.worst_ratio for row in rows), _known(row.sum_ratio for row in rows)
    return Summary(
        len(rows),
        min(worst, default=None),
        percentile(worst, 5) if worst else None,
        median(worst) if worst else None,
        min(total, default=None),
        median(total) if total else None,
        max(_known(row.above_cap for row in rows), default=None),
        min(_known(row.native_ratio for row in rows), default=None),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def promises(rows: Sequence[Row], *, on_card: bool = False) -> list[Promise]:
    """What holds of these rows and what does not: small bursts against time-slicing, long kernels not at all, all
    others against what is attainable, and on a real card against time-slicing and the model."""
    found = []
    unmeasured = sum(not row.got for row in rows)
    if unmeasured:
        found.append(Promise("sets measured", "all", f"{len(rows) - unmeasured} of {len(rows)}", False))
    small = _known(row.native_ratio for row in rows if row.part == SMALL)
    if small:
        found.append(_at_least("each task of small bursts, of native", NATIVE_RATIO, min(small)))
    judged = [row for row in rows if row.part not in (SMALL, LONG)]
    return [*found, *(_on_card(judged) if on_card else _of_attainable(judged))]


def _of_attainable(rows: Sequence[Row]) -> Iterator[Promise]:
    worst, total = _known(row.worst_ratio for row in rows), _known(row.sum_ratio for row in rows)
    if worst:
        usual = sum(ratio >= USUAL_RATIO for ratio in worst)
        yield Promise(
            f"each task >= {USUAL_RATIO:.2f} of attainable",
            f"in {USUALLY:.0%} of sets",
            f"in {usual} of {len(worst)}",
            usual >= USUALLY * len(worst),
        )
        yield _at_least("each task of each set, of attainable", WORST_RATIO, min(worst))
    if total:
        yield _at_least("sum of each set, of attainable", SUM_RATIO, min(total))
        yield _at_least("sum in the median, of attainable", USUAL_SUM, median(total))


def _on_card(rows: Sequence[Row]) -> Iterator[Promise]:
    for what, asked, values in (
        ("each task of each set, of attainable", CARD_RATIO, [row.worst_ratio for row in rows]),
        ("sum of each set without quotas, of native", CARD_SUM, [row.native_sum_ratio for row in rows]),
    ):
        if known := _known(values):
            yield _at_least(what, asked, min(known))
    if gains := _known(row.gain for row in rows):
        seen = min(gains)
        yield Promise("whoever natively gets less than fair, of native", "> 1.00", f"{seen:.3f}", seen > 1.0)
    for what, most, values in (
        ("capped tasks off their cap, points", CAP_POINTS, [row.cap_error for row in rows]),
        ("each task off the model, points", MODEL_POINTS, [row.model_error for row in rows]),
    ):
        if known := _known(values):
            yield Promise(what, f"<= {most:.1f}", f"{max(known):.1f}", max(known) <= most)


def _at_least(what: str, asked: float, seen: float) -> Promise:
    return Promise(what, f">= {asked:.2f}", f"{seen:.3f}", seen >= asked)
