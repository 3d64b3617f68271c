"""Pages of ``nvshare bench compute``: the shares of a card's time that tasks had, against their quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from nvshare.bench.columns import Row
from nvshare.bench.compute import rows as bench
from nvshare.report import tables
from nvshare.report.page.charts import Axis, Bar, BarRow, Point, PointRow, bar_chart, point_chart
from nvshare.report.page.parts import Content, Section, Tile, passed_tile
from nvshare.report.page.shapes import shape_of
from nvshare.report.tables import Figure, Table, cells

ROW = {**shape_of(bench.Row), "figures": shape_of(bench.Figures)}
SHAPE = {"source": str, "machine": {"node": str}, "rows": [ROW]}
_LETTERS = "abcdefgh"


def title(content: Content) -> str:
    return str(content["machine"]["node"])


def tiles(content: Content) -> list[Tile]:
    rows = content["rows"]
    found = [passed_tile("rows as promised", [row["ok"] for row in rows])]
    errors = [row["error_points"] for row in rows if row.get("error_points") is not None]
    if errors:
        found.append(Tile("off the quota", f"{max(errors):.1f} points", "the most, of all rows"))
    free = [row["of_allowed"] for row in rows if _is_busy_sum(row) and row["how"] == "nvshare"]
    if free:
        found.append(Tile("busy tasks together", f"{100 * min(free):.0f} %", "of one alone, the least"))
    return found


def _is_busy_sum(row: Row) -> bool:
    return row["part"] == "free" and row["figures"].get("spread") is not None and row.get("of_allowed") is not None


def _name(row: Row) -> str:
    """The name of a row within its part."""
    how = "" if row["how"] == "nvshare" else f"({row['how']})"
    return " ".join(filter(None, [row["what"], bench.quotas_text(row["quotas"]), how]))


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    with_quotas = [row for row in rows if row["expected"] and row["quotas"]]
    if with_quotas:
        yield _against_quotas(with_quotas)
    free = [row for row in rows if row["part"] == "free" and row["delivered"]]
    if free:
        yield ways_to_share(free)
    changes = [row for row in rows if row["figures"].get("shown_after_ms") is not None]
    if changes:
        yield _changes(changes)
    yield Section("All rows", table=Table.of(rows, cells(bench.Row)))


def _against_quotas(rows: Sequence[Row]) -> Section:
    lines = []
    for part, members in groupby(rows, key=lambda row: row["part"]):
        for place, row in enumerate(members):
            points = []
            for task, (due, got) in enumerate(zip(row["expected"], row["delivered"], strict=False)):
                letter = _LETTERS[task % len(_LETTERS)]
                low, high = _chance(row, got)
                points.append(Point(due, f"{letter} was to have {100 * due:.1f} %", "expected", task, hollow=True))
                points.append(Point(got, f"{letter} had {100 * got:.1f} %", "delivered", task, low=low, high=high))
            error = f"{row['error_points']:.1f}" if row.get("error_points") is not None else ""
            looks = "value bad" if row["ok"] is False else "value"
            heading = {"quotas": "alone", "pairs": "together"}.get(part, part) if not place else ""
            lines.append(PointRow(_key(row), _name(row), points, error, looks, heading))
    axis = Axis(" %", 100.0, high=1.0)
    lead = "Rings are what tasks were to have of the card's time, dots what they had; on the right, points off."
    legend = [("ring", "to have"), ("s0", "had; a colour for each task of a row")]
    return Section(
        "Delivered against quota",
        lead,
        point_chart(lines, "Delivered share of each task against its quota", axis),
        legend,
    )


def _chance(row: Row, share: float) -> tuple[float | None, float | None]:
    """The interval of a share: the measurements of the speed alone were that far apart."""
    drift = row["figures"].get("solo_drift")
    if drift is None:
        return None, None
    return share * (1 - drift / 2), share * (1 + drift / 2)


def _key(row: Row) -> str:
    return f"{row['part']}: {_name(row)}"


def ways_to_share(rows: Sequence[Row]) -> Section:
    """The same tasks natively, under nvshare, and in other ways."""
    lines = []
    for what, members in groupby(rows, key=lambda row: row["what"]):
        for place, row in enumerate(members):
            bars = [
                Bar(
                    share,
                    f"{_LETTERS[task % len(_LETTERS)]}: {100 * share:.1f} % of its speed alone",
                    "delivered",
                    task,
                    f"{100 * share:.0f}",
                )
                for task, share in enumerate(row["delivered"])
            ]
            text = f"{100 * sum(row['delivered']):.0f} %"
            one = ("whole", 1.0, "one task alone")
            lines.append(BarRow(_key(row), row["how"], bars, text, [one], what if not place else ""))
    lead = "Tasks without quotas: their speeds as parts of those alone, in each way to share a card."
    chart = bar_chart(lines, "Speeds of tasks that share a card in different ways", " %", 100.0)
    return Section("Ways to share", lead, chart, [("whole", "one task alone")])


def _changes(rows: Sequence[Row]) -> Section:
    lines = []
    for row in rows:
        shown = row["figures"]["shown_after_ms"]
        steps = row["figures"].get("steps") or [None] * len(shown)
        points = [
            Point(float(after), f"{_step(step)}shown after {after:g} ms", "shown_after_ms", 0)
            for after, step in zip(shown, steps, strict=False)
            if after is not None
        ]
        never = sum(after is None for after in shown)
        lines.append(PointRow(_key(row), row["what"], points, f"{never} never" if never else "", "value bad"))
    limit = 1000 * bench.SHOWN_WITHIN
    axis = Axis(" ms", line=limit)
    lead = "How long after a change of quota the speed shows it."
    return Section("Changes", lead, point_chart(lines, "Delay of changes", axis), [("limit", f"{limit:.0f} ms")])


def _step(step: Any) -> str:
    return "" if step is None else f"{100 * step[0]:.0f} % to {100 * step[1]:.0f} %: "


def figures(content: Content) -> Iterator[Figure]:
    return row_figures(content["rows"])


def row_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """What two results can be compared by."""
    return tables.figures(bench.Row, rows, _key)
