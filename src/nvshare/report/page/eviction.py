"""Pages of ``nvshare bench eviction``: what switches move, against what may be moved."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.report.page.charts import Bar, BarRow, bar_chart
from nvshare.report.page.moves import MOVED, all_rows, gib
from nvshare.report.page.parts import (
    Columns,
    Content,
    Figure,
    Section,
    Tile,
    measured,
    node_title,
    passed_tile,
    timelines,
)
from nvshare.report.page.shapes import Maybe
from nvshare.report.page.timeline import GIB

SHAPE = {"source": str, "node": str, "rows": [{"case": str, "bound": int, "largest": Maybe(int), **MOVED}]}

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
    more: Columns = (
        ("largest", lambda row: "" if row.get("largest") is None else gib(row["largest"])),
        ("at most", lambda row: gib(row["bound"])),
    )
    yield all_rows(rows, "case", more)


def figures(content: Content) -> Iterator[Figure]:
    for row in content["rows"]:
        for name, words in (("out_per_switch", "out per switch, GiB"), ("in_per_switch", "in per switch, GiB")):
            yield measured(content, row["case"], words, row[name] / GIB, -1)
