"""Pages of ``nvshare verify``: what was expected and seen, and when tasks made progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nvshare.bench.compute.rows import Row
from nvshare.report.page import compute
from nvshare.report.page.parts import (
    CHECK,
    NODE,
    Content,
    Section,
    Tile,
    check_figures,
    checks_section,
    node_title,
    passed_tile,
)
from nvshare.report.page.shapes import Maybe
from nvshare.report.page.timeline import lanes_only, timeline_chart
from nvshare.report.tables import Figure, Table, cells

SHAPE = {**NODE, "rows": [CHECK], "compare": Maybe([compute.ROW])}
title = node_title


def tiles(content: Content) -> list[Tile]:
    rows = content["rows"]
    took = sum(row.get("seconds") or 0.0 for row in rows)
    return [
        passed_tile("checks passed", [row["ok"] for row in rows]),
        *([Tile("took", f"{took:.0f} s")] if took else []),
    ]


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    yield checks_section(rows)
    compared = [row for row in content.get("compare") or () if row["delivered"]]
    if compared:
        yield replace(compute.ways_to_share(compared), table=Table.of(compared, cells(Row)))
    for row in rows:
        cards = lanes_only({"": row.get("timeline") or {}})
        if cards:
            lead = "When each task made progress."
            yield Section(f"Timeline: {row.get('title') or row['check']}", lead, timeline_chart(row["check"], cards))


def figures(content: Content) -> Iterator[Figure]:
    yield from check_figures(content["rows"])
    yield from compute.row_figures(content.get("compare") or ())
