"""Rows and judgements: what was expected, what was delivered, and whether that is good enough. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, TypedDict, get_type_hints

from nvshare.bench import columns
from nvshare.bench.columns import JUDGED, Column, Compared
from nvshare.bench.compute.shares import Quota, promised
from nvshare.bench.compute.track import Track, percentile

QUOTA_POINTS = 1.0  # percentage points that a task may be off its quota
LAUNCH_BOUND_POINTS = 2.0
QUOTA_SUM = 0.98  # of what the quotas allow
BUSY_SUM = 0.985  # of solo, without quotas
EQUAL_SHARES = 0.02  # by which the shares of equal tasks may differ, as a part of their mean
LAUNCH_BOUND_SUM = 0.97  # of what they reach natively side by side
NATIVE_LOSS = 0.02  # of the speed beside the same neighbour natively
IDLE_RATIO = 1.01  # of the time that a mostly idle task needs alone
BESIDE_BURSTS = 0.88  # of its speed alone that the neighbour of an interactive task keeps
SHOWN_WITHIN = 0.3  # seconds from a change of quota to the speed that it asks for
SHOWN_WINDOW = 0.4  # seconds over which that speed is taken: two cycles of turns
SHOWN_PART = 0.75  # of the way from the old speed to the new one
SHOWN_POINTS = 5.0  # percentage points that the rest of the time, a second or so, may be off the new one
STUCK = 1.0  # seconds without any progress


class Figures(TypedDict, total=False):
    """What else rows tell, and how tables say it. Rows may have further figures, which tables leave out."""

    spread: Annotated[float, "spread {:.1%}"]
    times_solo: Annotated[list[float | None], "{} x solo"]
    p99_times_solo: Annotated[float, "p99 {:.2f} x solo"]
    p99_ms: Annotated[float, "p99 {:.1f} ms"]
    neighbour: Annotated[float, "neighbour {:.1%}"]
    shown_after_ms: Annotated[list[float | None], "shown after {} ms"]
    most_above_points: Annotated[float, "above by {:+.1f} points"]
    longest_pauses_ms: Annotated[list[float], "pauses {} ms"]
    native_its: Annotated[float, "native {:g} steps/s"]
    solo_drift: Annotated[float, "drift {:.1%}"]
    step_times_solo: Annotated[list[float | None], "steps {} x solo"]
    kinds: Annotated[list[str], "taken for {}"]
    host_stood_still_ms: Annotated[float, "host stood still for {} ms"]
    steps: list[tuple[float, float]]  # from one share to another, as changes of quota asked for


_SAID = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Figures, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


def quotas_text(quotas: Sequence[Quota]) -> str:
    return "/".join("none" if quota is None else str(quota) for quota in quotas)


def _percents(values: Sequence[float]) -> str:
    return "/".join(f"{100 * share:.1f}" for share in values)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _more(row: columns.Row) -> str:
    """What else was measured."""
    figures = row["figures"]
    return ", ".join(form.format(_one(figures[name])) for name, form in _SAID.items() if figures.get(name) is not None)


def _one(value: object) -> object:
    """A list as one word."""
    if not isinstance(value, list):
        return value
    return "/".join("-" if each is None else each if isinstance(each, str) else f"{each:g}" for each in value)


def _chance(row: columns.Row) -> float | None:
    """Points by which a share may be wrong: how far the measurements of the speed alone were apart."""
    drift = row["figures"].get("solo_drift")
    return None if drift is None else 100 * max(row["delivered"], default=0.0) * drift / 2


_ERROR = Compared("points off the quota", -1, "{:.2f}", chance=_chance)
_P99 = Compared("p99 / solo", -1, value=lambda row: row["figures"].get("p99_times_solo"))
_MORE = Column("more", cell=_more, compared=_P99, place=columns.NOTES, text_only=True)


@dataclass(frozen=True)
class Row:
    """One finding. Shares are parts of the solo speed. ``ok`` is None where nothing was promised: it is only reported.
    ``of_allowed``: the sum of what was delivered over what was allowed, or over the reference it is compared with."""

    part: Annotated[str, Column("part")]
    what: Annotated[str, Column("what")]
    how: Annotated[str, Column("how")] = "nvshare"  # or native, mps, concurrent
    quotas: Annotated[tuple[Quota, ...], Column("quotas", quotas_text)] = ()
    expected: Annotated[tuple[float, ...], Column("expected", _percents)] = ()
    delivered: Annotated[tuple[float, ...], Column("delivered", _percents)] = ()
    of_allowed: Annotated[float | None, Column("of allowed", _percent, compared=Compared("of allowed", 1))] = None
    ok: Annotated[bool | None, JUDGED] = None
    note: Annotated[str, Column("note", place=columns.NOTES)] = ""
    figures: Annotated[dict[str, Any], _MORE] = field(default_factory=dict)

    @property
    def error_points(self) -> Annotated[float | None, Column("error", "{:.2f}", compared=_ERROR)]:
        """The largest distance of a task from what it should have, in percentage points."""
        if not self.expected:
            return None
        return max(100 * abs(got - due) for got, due in zip(self.delivered, self.expected, strict=True))

    def to_dict(self) -> dict[str, Any]:
        error = self.error_points
        return {
            **asdict(self),
            "expected": [round(share, 4) for share in self.expected],
            "delivered": [round(share, 4) for share in self.delivered],
            "of_allowed": None if self.of_allowed is None else round(self.of_allowed, 4),
            "error_points": None if error is None else round(error, 2),
        }


def quota_row(
    part: str, what: str, quotas: Sequence[Quota], delivered: Sequence[float], launch_bound: bool = False
) -> Row:
    """Each task at its share, and all together hardly below what their quotas allow. A launch-bound task has more room,
    and no sum to reach."""
    expected = promised(quotas)
    of_allowed = sum(delivered) / sum(expected)
    row = Row(part, what, "nvshare", tuple(quotas), tuple(expected), tuple(delivered), of_allowed)
    error = row.error_points
    assert error is not None
    if launch_bound:
        return _judged(row, error <= LAUNCH_BOUND_POINTS)
    return _judged(row, error <= QUOTA_POINTS and of_allowed >= QUOTA_SUM)


def spread(shares: Sequence[float]) -> float:
    """How far the largest and the smallest are apart, as a part of the mean."""
    mean = sum(shares) / len(shares)
    return (max(shares) - min(shares)) / mean if mean else 0.0


def busy_row(what: str, how: str, delivered: Sequence[float]) -> Row:
    """Busy tasks without quotas: the whole card, in equal parts. Judged under nvshare as it comes."""
    total = sum(delivered)
    apart = spread(delivered)
    figures = {"sum": round(total, 4), "spread": round(apart, 4)}
    row = Row("free", what, how, delivered=tuple(delivered), of_allowed=total, figures=figures)
    if how != "nvshare":
        return row
    return _judged(row, total >= BUSY_SUM and apart <= EQUAL_SHARES)


def beside_native_row(what: str, how: str, delivered: Sequence[float], native: Sequence[float]) -> Row:
    """Launch-bound tasks side by side: together hardly less than what they reach natively."""
    return _against(what, how, delivered, native, sum(delivered) >= LAUNCH_BOUND_SUM * sum(native))


def not_worse_row(what: str, how: str, delivered: Sequence[float], native: Sequence[float]) -> Row:
    """Unequal tasks: none worse off than natively, or hardly."""
    kept = all(got >= (1 - NATIVE_LOSS) * had for got, had in zip(delivered, native, strict=True))
    return _against(what, how, delivered, native, kept)


def _against(what: str, how: str, delivered: Sequence[float], native: Sequence[float], good: bool) -> Row:
    figures = {"native": [round(share, 4) for share in native], "sum": round(sum(delivered), 4)}
    row = Row("free", what, how, (), (), tuple(delivered), sum(delivered) / sum(native), figures=figures)
    return row if how != "nvshare" else _judged(row, good)


def idle_row(what: str, how: str, ratios: Sequence[float | None], judged: bool) -> Row:
    """Mostly idle tasks: ``ratios`` of the time each needs to the time it needs alone; None: it did nothing."""
    figures = {"times_solo": [ratio and round(ratio, 4) for ratio in ratios], "at_most": IDLE_RATIO}
    row = Row("idle", what, how, delivered=tuple(1 / ratio if ratio else 0.0 for ratio in ratios), figures=figures)
    return _judged(row, all(ratio is not None and ratio <= IDLE_RATIO for ratio in ratios)) if judged else row


def burst_row(
    what: str, how: str, latencies: Sequence[float], solo: Sequence[float], beside: float, at_most: float | None
) -> Row:
    """An interactive task: its slow bursts against a typical one alone. ``beside``: what its neighbour had.
    ``at_most``: times a burst alone; None: it is only reported."""
    if not latencies:
        return Row("idle", what, how, delivered=(beside,), ok=False, note="no burst ended")
    typical = percentile(solo, 50)
    ratio = percentile(latencies, 99) / typical
    figures = {
        "bursts": len(latencies),
        "p50_ms": round(1000 * percentile(latencies, 50), 2),
        "p99_ms": round(1000 * percentile(latencies, 99), 2),
        "solo_p50_ms": round(1000 * typical, 2),
        "solo_p99_ms": round(1000 * percentile(solo, 99), 2),
        "p99_times_solo": round(ratio, 3),
        "neighbour": round(beside, 4),
    }
    row = Row("idle", what, how, delivered=(beside,), figures=figures)
    return row if at_most is None else _judged(row, ratio <= at_most and beside >= BESIDE_BURSTS)


def shown_after(track: Track, at: float, until: float, solo: float, old: float, new: float) -> float | None:
    """Seconds from a change of quota at ``at`` until the speed shows it: the begin of the first window in which most of
    the way from the old share to the new one is gone, if the whole time from there to ``until`` is at the new one.
    None: it never is."""
    for begin in [at, *(time for time in track.times if at < time <= until - SHOWN_WINDOW)]:
        gone = (track.speed(begin, begin + SHOWN_WINDOW) / solo - old) / (new - old)
        kept = 100 * abs(track.speed(begin, until) / solo - new)
        if abs(gone - 1) <= 1 - SHOWN_PART and kept <= SHOWN_POINTS:
            return begin - at
    return None


def change_row(what: str, steps: Sequence[tuple[float, float]], shown: Sequence[float | None]) -> Row:
    """Changes of quota from one share to another, and how long each took to show."""
    late = sum(after is None or after > SHOWN_WITHIN for after in shown)
    figures = {
        "steps": [[round(old, 3), round(new, 3)] for old, new in steps],
        "shown_after_ms": [None if after is None else round(1000 * after) for after in shown],
        "within_ms": round(1000 * SHOWN_WITHIN),
    }
    return _judged(Row("change", what, figures=figures), late == 0)


def storm_row(
    what: str, promised_shares: Sequence[float], delivered: Sequence[float], pauses: Sequence[float], changes: int
) -> Row:
    """Many random changes: nobody above its quota over the whole run, nobody stuck."""
    above = max(100 * (got - due) for got, due in zip(delivered, promised_shares, strict=True))
    figures = {
        "changes": changes,
        "most_above_points": round(above, 2),
        "longest_pauses_ms": [round(1000 * pause) for pause in pauses],
    }
    of_allowed = sum(delivered) / sum(promised_shares)
    row = Row("change", what, "nvshare", (), tuple(promised_shares), tuple(delivered), of_allowed, figures=figures)
    return _judged(row, above <= QUOTA_POINTS and max(pauses) <= STUCK)


def _judged(row: Row, ok: bool) -> Row:
    return replace(row, ok=ok)
