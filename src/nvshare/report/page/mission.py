"""Pages of ``nvshare bench mission`` and ``nvshare demo``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvshare import config
from nvshare.bench import mission_rows
from nvshare.bench.columns import Row, seconds_text
from nvshare.bench.outcome import PLAIN
from nvshare.report import tables
from nvshare.report.page.charts import Axis, Bar, BarRow, Point, PointRow, bar_chart, point_chart
from nvshare.report.page.parts import NODE, Content, Section, Tile, node_title, passed_tile, timelines
from nvshare.report.page.timeline import row_shape, series_of
from nvshare.report.tables import Figure, Table, cells

SHAPE = {**NODE, "findings": [str], "rows": [row_shape(mission_rows.Row)]}


title = node_title


def tiles(content: Content) -> list[Tile]:
    rows = content["rows"]
    shared = [row for row in rows if row["mode"] != PLAIN]
    together = [row for row in _whole(shared) if row["tasks"] > row["gpus"]]
    found = [passed_tile("tests passed", [row["passed"] for row in rows])]
    alone = [row["ratio"] for row in _whole(shared) if row["tasks"] == 1]
    if alone:
        found.append(Tile("overhead alone", f"{100 * (max(alone) - 1):+.1f} %", "the worst, against plain"))
    if together:
        efficiency = min(row["tasks"] / row["gpus"] / row["ratio"] for row in together)
        found.append(Tile("efficiency together", f"{100 * efficiency:.0f} %", "of one after the other, the least"))
    moved = sum(row["swapped_bytes"] for row in shared)
    switches = sum(row["switches"] for row in shared)
    found.append(Tile("moved", config.format_size(moved), f"in {switches} switches"))
    return found


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    shared = [row for row in rows if row["mode"] != PLAIN]
    whole = _whole(shared)
    if whole:
        yield _ratios(whole)
        yield _speeds(whole)
    yield from timelines(shared, lambda row: f"test {row['name']}, {row['title']}")
    yield Section(
        "All rows", "Durations are those of the tasks' own loops.", table=Table.of(rows, cells(mission_rows.Row))
    )


def _whole(rows: Sequence[Row]) -> list[Row]:
    """The rows whose tasks all stayed to the end: their durations can be compared."""
    return [row for row in rows if not row["has_survivor"] and row["ratio"] > 0 and row["gpus"] > 0]


def _label(row: Row) -> str:
    return f"{row['name']} · {row['title']}"


def _ratios(rows: Sequence[Row]) -> Section:
    bars = []
    for row in rows:
        serial = row["tasks"] / row["gpus"]
        marks = [("serial", serial, f"one after the other: {serial:g}")]
        if row.get("model_ratio"):
            marks.append(("model", row["model_ratio"], f"model: {row['model_ratio']:.3f}"))
        tip = f"{row['title']}: {seconds_text(row['duration_s'])}, plain {seconds_text(row['baseline_s'])}"
        bars.append(BarRow(row["name"], _label(row), [Bar(row["ratio"], tip, "ratio")], f"{row['ratio']:.3f}", marks))
    legend = [("s0", "time / time of a plain task alone"), ("serial", "one after the other")]
    if any(row.get("model_ratio") for row in rows):
        legend.append(("model", "model"))
    lead = "How many times as long tasks take as one plain task alone; tasks with pauses can beat their turn."
    return Section("Time", lead, bar_chart(bars, "Ratio of each test to its baseline", " ×"), legend)


def _speeds(rows: Sequence[Row]) -> Section:
    lines = []
    for row in rows:
        points, series = [], series_of(row["timeline"])
        for place, task in enumerate(row["details"]):
            if task["loop_seconds"] > 0:
                part = row["baseline_s"] / task["loop_seconds"]
                tip = f"{task['name']}: {task['its']:.2f} it/s, {100 * part:.1f} % of its speed alone"
                points.append(Point(part, tip, "speed", series.get(task["name"], place)))
        text = f"{row['its']:.1f} it/s" if row["its"] >= 0.05 else ""
        lines.append(PointRow(row["name"], _label(row), points, text))
    lead = "Each task's speed as a part of its speed alone; on the right, all of them together."
    axis = Axis(" %", 100.0, line=1.0)
    return Section("Speeds", lead, point_chart(lines, "Speed of each task", axis), [("limit", "alone on the card")])


def figures(content: Content) -> Iterator[Figure]:
    def name(row: Row) -> str:
        return f"test {row['name']}" + (f" {row['workload']}" if row["mode"] == PLAIN else "")

    return tables.figures(mission_rows.Row, content["rows"], name, content["source"] == "model")
