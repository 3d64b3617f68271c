"""Pages of ``nvshare bench fairness``: what tasks got of a card, against what is fair and what is attainable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nvshare.bench.columns import Row, verdict
from nvshare.bench.fairness import rows as bench
from nvshare.report import tables
from nvshare.report.page.charts import Bar, BarRow, bar_chart
from nvshare.report.page.parts import Content, Section, Tile, passed_tile
from nvshare.report.page.shapes import shape_of
from nvshare.report.tables import Figure, Table, cells

SHAPE = {
    "source": str,
    "machine": {"node": str},
    "summary": shape_of(bench.Summary),
    "promises": [shape_of(bench.Promise)],
    "rows": [shape_of(bench.Row)],
}
DRAWN = 20  # sets that the picture shows: the worst
_WAYS = ("fair", "attainable", "got", "native", "mps")
_LETTERS = "abcdefghijklmnop"


def title(content: Content) -> str:
    return str(content["machine"]["node"])


def tiles(content: Content) -> list[Tile]:
    found = [passed_tile("promises kept", [each["ok"] for each in content["promises"]])]
    of_all = content["summary"]
    if of_all["worst_ratio"] is not None:
        usual = f"5th percentile {of_all['worst_ratio_p5']:.2f}, median {of_all['worst_ratio_median']:.2f}"
        found.append(Tile("of attainable, each task", f"{of_all['worst_ratio']:.2f}", f"the least; {usual}"))
    if of_all["sum_ratio"] is not None:
        usual = f"median {of_all['sum_ratio_median']:.2f}"
        found.append(Tile("of attainable, sums", f"{of_all['sum_ratio']:.2f}", f"the least; {usual}"))
    if of_all["above_cap"] is not None:
        found.append(Tile("above a cap", f"{of_all['above_cap']:+.1f} points", "the most"))
    return found


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    if content["promises"]:
        lines = [[verdict(each["ok"]), each["what"], each["asked"], each["seen"]] for each in content["promises"]]
        yield Section("Promises", table=Table(["", "promise", "asked", "seen"], lines))
    numbered = list(enumerate(rows, start=1))
    worst = sorted(numbered, key=lambda each: each[1].get("worst_ratio") or 0.0)[:DRAWN]
    yield _pictures(sorted(worst), len(rows))
    yield Section("All sets", table=Table.of(rows, cells(bench.Row)))


def _pictures(rows: Sequence[tuple[int, Row]], of: int) -> Section:
    lines = []
    for number, row in rows:
        heading = f"{number}: {row['what']}"
        for way in _WAYS:
            shares = row.get(way)
            if shares:
                lines.append(
                    BarRow(f"{number} {way}", way, _bars(row, way, shares), f"{sum(shares):.0f} %", (), heading)
                )
                heading = ""
    lead = "Percent of the card's time; a colour for each task of a set."
    if len(rows) < of:
        lead += f" The {len(rows)} sets of {of} whose worst task is farthest below attainable."
    return Section("Shares", lead, bar_chart(lines, "Shares of the card's time", " %"))


def _bars(row: Row, way: str, shares: Sequence[float]) -> list[Bar]:
    return [
        Bar(share, f"{_written(row['tasks'][task])}: {share:.1f} %", way, task, _LETTERS[task % len(_LETTERS)])
        for task, share in enumerate(shares)
    ]


def _written(task: Any) -> str:
    return bench.task_text(bench.TaskShape(**{name: task[name] for name in ("gpu_ms", "host_ms", "floor", "cap")}))


def figures(content: Content) -> Iterator[Figure]:
    """What two results can be compared by. A model's figures have no chance in them."""
    exact = content["source"] == "model"
    return tables.figures(bench.Row, content["rows"], lambda row: f"{row['part']}: {row['what']}", exact)
