"""Pages of ``nvshare bench swap``: what a switch takes, and what the link could do."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.bench.columns import columns, gib, percent
from nvshare.bench.linkspeed import LinkSpeed
from nvshare.bench.swap import SwapRow
from nvshare.report import tables
from nvshare.report.page.charts import Bar, BarRow, bar_chart
from nvshare.report.page.parts import NODE, Content, Section, Tile, node_title, passed_tile, timelines
from nvshare.report.page.timeline import row_shape
from nvshare.report.tables import Figure, Table, cells

SHAPE = {**NODE, "rows": [row_shape(SwapRow)]}
_PARTS = [(name, column) for name, column in columns(SwapRow).items() if column.says]  # of a switch

title = node_title


def tiles(content: Content) -> list[Tile]:
    row = content["rows"][0]
    return [
        Tile("of the link's limit", percent(row["of_limit"]), "100 % cannot be beaten"),
        Tile("a switch stalls", f"{row['stall_s']:.3f} s", f"the link alone needs {row['copy_s']:.3f} s"),
        Tile("moved per switch", gib(row["out_per_switch"]), f"out, and {gib(row['in_per_switch'])} in"),
        passed_tile("runs passed", [each["passed"] for each in content["rows"]]),
    ]


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    bars = [
        BarRow(
            row["title"],
            row["title"],
            [
                Bar(row[name] or 0.0, f"{part.says}: {part.written(name, row)}", name, series, str(part.title))
                for series, (name, part) in enumerate(_PARTS)
                if row.get(name) is not None
            ],
            f"{row['drain_s'] + row['stall_s']:.3f} s",
        )
        for row in rows
    ]
    legend = [(f"s{series}", f"{part.title}: {part.says}") for series, (_, part) in enumerate(_PARTS)]
    lead = "Means over the switches. While the leaving task drains the card still works; the rest is the stall."
    yield Section("A switch", lead, bar_chart(bars, "Parts of a switch, in seconds", " s"), legend)
    link = rows[0]["link"]
    rates = [
        BarRow(name, way.says, [Bar(link[name], f"{way.says}: {text}", "link")], text)
        for name, way in columns(LinkSpeed).items()
        for text in [way.written(name, link)]
    ]
    chart = bar_chart(rates, "Speed of the link", " GB/s", 1e-9)
    yield Section("The link", "Pinned copies by plain driver calls.", chart)
    yield from timelines(rows, lambda row: str(row["title"]))
    yield Section("All rows", table=Table.of(rows, cells(SwapRow)))


def figures(content: Content) -> Iterator[Figure]:
    return tables.figures(SwapRow, content["rows"], lambda row: str(row["title"]), content["source"] == "model")
