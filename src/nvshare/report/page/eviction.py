"""Pages of ``nvshare bench eviction``: bytes that switches move, against what they may move."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.bench.columns import GIB, gib
from nvshare.bench.eviction import EvictionRow
from nvshare.report import tables
from nvshare.report.page.charts import Bar, BarRow, bar_chart
from nvshare.report.page.parts import NODE, Content, Section, Tile, node_title, passed_tile, timelines
from nvshare.report.page.timeline import row_shape
from nvshare.report.tables import Figure, Table, cells

SHAPE = {**NODE, "rows": [row_shape(EvictionRow)]}

title = node_title


def tiles(content: Content) -> list[Tile]:
    rows = content["rows"]
    most = max(
        (max(row["out_per_switch"], row["in_per_switch"]) / row["bound"] for row in rows if row["bound"] > 0),
        default=0.0,
    )
    return [
        passed_tile("cases passed", [row["passed"] for row in rows]),
        Tile("of what may move", f"{100 * most:.0f} %", "the most, on average over switches"),
        Tile("switches", str(sum(row["switches"] for row in rows))),
    ]


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    bars = []
    for row in rows:
        bound = ("bound", row["bound"], f"at most {gib(row['bound'])}")
        for place, (name, words) in enumerate((("out_per_switch", "out"), ("in_per_switch", "in"))):
            label, size = f"{row['case']}, {words}", gib(row[name])
            bar = Bar(row[name], f"{label}: {size} per switch", name, place)
            bars.append(BarRow(row["case"], label, [bar], size, [bound]))
    lead = "A switch moves what does not fit, and no more."
    legend = [("s0", "to the host"), ("s1", "to the card"), ("bound", "what does not fit, and half a GiB")]
    yield Section("Moved per switch", lead, bar_chart(bars, "Bytes moved per switch", " GiB", 1 / GIB), legend)
    yield from timelines(rows, lambda row: str(row["case"]))
    yield Section("All rows", table=Table.of(rows, cells(EvictionRow)))


def figures(content: Content) -> Iterator[Figure]:
    return tables.figures(EvictionRow, content["rows"], lambda row: str(row["case"]), content["source"] == "model")
