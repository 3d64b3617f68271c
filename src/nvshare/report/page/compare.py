"""Two results of one kind, figure by figure: what got better, what got worse, and what may be chance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nvshare.report.page.charts import Axis, Point, PointRow, point_chart
from nvshare.report.page.kinds import NotAResult, Result
from nvshare.report.page.parts import Section, Tile
from nvshare.report.tables import Figure, Table

BETTER, WORSE, CHANGED, SAME, ONLY_BEFORE, ONLY_AFTER = "better", "worse", "changed", "same", "gone", "new"
_SERIES = {BETTER: 2, WORSE: 4, CHANGED: 0, SAME: 7}
_NEGLIGIBLE = 1e-4  # of the first: last digits differ between machines
_NARROWEST, _WIDEST = (
    0.05,
    3.0,
)  # how far the axis reaches from 1, at least and at most; points beyond are drawn at its edge


@dataclass(frozen=True)
class Pair:
    """A figure in both results, or in one of them."""

    row: str
    name: str
    before: Figure | None
    after: Figure | None
    verdict: str

    @property
    def ratio(self) -> float | None:
        if self.before is None or self.after is None or not self.before.value:
            return None
        return self.after.value / self.before.value


def judge(before: Figure, after: Figure, noise: float) -> str:
    """Whether a figure differs beyond noise. Where both results know how far chance reaches, their intervals must not
    meet; else the figures must differ by more than ``noise``, a part of the first. A difference that is negligible or
    not shown is none."""
    if _alike(before, after):
        return SAME
    intervals = (before.low, before.high, after.low, after.high)
    if None not in intervals:
        low, high, later_low, later_high = (float(value) for value in intervals if value is not None)
        differs = later_low > high or later_high < low
    else:
        differs = abs(after.value - before.value) > noise * abs(before.value)
    if not differs:
        return SAME
    if not before.better:
        return CHANGED
    return BETTER if (after.value > before.value) == (before.better > 0) else WORSE


@dataclass(frozen=True)
class Comparison:
    names: tuple[str, str]
    before: Result
    after: Result
    noise: float
    rows: tuple[Pair, ...]

    def tiles(self) -> list[Tile]:
        count = Counter(row.verdict for row in self.rows)
        found = [
            Tile("better", str(count[BETTER])),
            Tile("worse", str(count[WORSE]), bad=count[WORSE] > 0),
            Tile("the same", str(count[SAME]), "within noise"),
        ]
        lone = count[ONLY_BEFORE] + count[ONLY_AFTER]
        return [*found, *([Tile("only in one", str(lone))] if lone else [])]

    def table(self) -> Table:
        lines = [
            [row.row, row.name, _text(row.before), _text(row.after), _ratio(row), row.verdict] for row in self.rows
        ]
        return Table(("what", "figure", self.names[0], self.names[1], "ratio", ""), lines)

    def note(self) -> str:
        return (
            "Better and worse are beyond noise: by the intervals that the results give (the model is exact), "
            f"else by more than {100 * self.noise:g} %. What differs by less than is shown is the same."
        )

    def sections(self) -> list[Section]:
        drawn = [row for row in self.rows if row.ratio is not None]
        found = [Section("Figures", self.note(), table=self.table())]
        if drawn:
            lead = "After over before, where both have the figure; whiskers are what chance may do."
            legend = [("s2", BETTER), ("s4", WORSE), ("s7", SAME), ("limit", "as before")]
            found.insert(0, Section("Change", lead, _chart(drawn), legend))
        return found


def compared(before: Result, after: Result, noise: float, names: tuple[str, str] = ("before", "after")) -> Comparison:
    """Compare figures in the order of the first, then those that only the second has. ``NotAResult`` when the results
    are of different kinds or have no figure in common."""
    if before.kind is not after.kind:
        raise NotAResult(
            f"{names[0]} is of {before.kind.command}, {names[1]} of {after.kind.command}: compare two of a kind"
        )
    first, second = _by_name(before), _by_name(after)
    if not first.keys() & second.keys():
        raise NotAResult(
            f"{names[0]} and {names[1]} have no figure in common: compare two runs of the same {before.kind.command}"
        )
    rows = []
    for key in [*first, *(key for key in second if key not in first)]:
        old, new = first.get(key), second.get(key)
        if old is not None and new is not None:
            verdict = judge(old, new, noise)
        else:
            verdict = ONLY_AFTER if old is None else ONLY_BEFORE
        rows.append(Pair(*key, old, new, verdict))
    return Comparison(names, before, after, noise, tuple(rows))


def _by_name(result: Result) -> dict[tuple[str, str], Figure]:
    return {(figure.row, figure.name): figure for figure in result.kind.view.figures(result.content)}


def _text(figure: Figure | None) -> str:
    return "–" if figure is None else figure.form.format(figure.value)


def _ratio(row: Pair) -> str:
    return "–" if row.ratio is None else _ratio_text(row.ratio)


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.3f}"


def _alike(before: Figure, after: Figure) -> bool:
    if abs(after.value - before.value) <= _NEGLIGIBLE * abs(before.value):
        return True
    seen = not before.value or _ratio_text(after.value / before.value) == _ratio_text(1.0)
    return seen and _text(before) == _text(after)


def _chart(rows: list[Pair]) -> str:
    lines = []
    for row in rows:
        assert row.before is not None
        assert row.after is not None
        assert row.ratio is not None
        tip = f"{row.row}, {row.name}: {_text(row.before)} → {_text(row.after)} ({row.ratio:.3f} ×)"
        low, high = _reach(row.before, row.after)
        point = Point(row.ratio, tip, "change", _SERIES[row.verdict], low=low, high=high)
        looks = "value bad" if row.verdict == WORSE else "value"
        lines.append(PointRow(f"{row.row}, {row.name}", f"{row.row}, {row.name}", [point], f"{row.ratio:.3f}", looks))
    margin = min(_WIDEST, max(_NARROWEST, max(abs(row.ratio - 1) for row in rows if row.ratio is not None) * 1.2))
    axis = Axis(" ×", line=1.0, low=max(0.0, 1 - margin), high=1 + margin)
    return point_chart(lines, "Each figure after over before", axis)


def _reach(before: Figure, after: Figure) -> tuple[float | None, float | None]:
    """The interval of the ratio, from both intervals; None where one is not known or both are exact."""
    ends = (before.low, before.high, after.low, after.high)
    if any(end is None or end <= 0 for end in ends) or (before.low == before.high and after.low == after.high):
        return None, None
    low, high, later_low, later_high = (float(end) for end in ends if end is not None)
    return later_low / high, later_high / low
