"""What the pages of ``nvshare bench swap`` and ``nvshare bench eviction`` share: how much switches move."""

from __future__ import annotations

from collections.abc import Sequence

from nvshare.report.page.parts import Columns, Row, Section, Table, verdict
from nvshare.report.page.timeline import GIB, card_shape

MOVED = {"out_per_switch": float, "in_per_switch": float, "switches": int, "passed": bool, "timeline": [card_shape()]}


def gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def all_rows(rows: Sequence[Row], name: str, more: Columns) -> Section:
    """Rows go by their field ``name``; ``more`` is what else there is of them."""
    columns: Columns = (
        (name, lambda row: row[name]),
        ("switches", lambda row: str(row["switches"])),
        ("out per switch", lambda row: gib(row["out_per_switch"])),
        ("in per switch", lambda row: gib(row["in_per_switch"])),
        *more,
        ("", lambda row: verdict(row["passed"])),
    )
    return Section("All rows", table=Table.of(rows, columns))
