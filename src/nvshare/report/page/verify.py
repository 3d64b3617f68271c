"""Pages of ``nvshare verify``: what was expected and seen, and when tasks made progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nvshare.report.page import compute
from nvshare.report.page.parts import (
    CHECK,
    Columns,
    Content,
    Figure,
    Section,
    Table,
    Tile,
    check_figures,
    checks_table,
    node_title,
    passed_tile,
)
from nvshare.report.page.shapes import Each, Maybe
from nvshare.report.page.timeline import lanes_only, timeline_chart

SHAPE = {
    "source": str,
    "node": str,
    "rows": [
        {**CHECK, "timeline": Maybe(Each([(float, float)]))}  # by task
    ],
    "compare": Maybe(compute.SHAPE["rows"]),
}
title = node_title


_WAYS: Columns = (
    ("tasks", lambda row: row["what"]),
    ("how", lambda row: row["how"]),
    ("speeds", lambda row: " / ".join(f"{100 * share:.1f} %" for share in row["delivered"])),
    ("together", lambda row: f"{100 * sum(row['delivered']):.1f} %"),
)


def tiles(content: Content) -> list[Tile]:
    rows = content["rows"]
    took = sum(row.get("seconds") or 0.0 for row in rows)
    return [
        passed_tile("checks passed", [row["ok"] for row in rows]),
        *([Tile("took", f"{took:.0f} s")] if took else []),
    ]


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    yield Section("Checks", table=checks_table(rows))
    compared = [row for row in content.get("compare") or () if row["delivered"]]
    if compared:
        yield replace(compute.ways_to_share(compared), table=Table.of(compared, _WAYS))
    for row in rows:
        cards = lanes_only({"": row.get("timeline") or {}})
        if cards:
            lead = "When each task made progress."
            yield Section(f"Timeline: {row.get('title') or row['check']}", lead, timeline_chart(row["check"], cards))


def figures(content: Content) -> Iterator[Figure]:
    yield from check_figures(content["rows"])
    for row in content.get("compare") or ():
        yield from compute.row_figures(row)
