"""Rows of ``nvshare bench compute`` as text. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from nvshare.bench.compute.rows import Row
from nvshare.report.tables import as_row, cells, text_table


def compute_table(rows: Sequence[Row]) -> str:
    return text_table(Row, rows)


def row_line(row: Row) -> str:
    """One row, as soon as it is there."""
    return "  ".join(filter(None, (cell(as_row(row)) for _, cell in cells(Row, in_text=True))))


def verdict(rows: Sequence[Row]) -> str:
    """What it comes to."""
    judged = [row for row in rows if row.ok is not None]
    failed = [row for row in judged if not row.ok]
    return f"{len(judged) - len(failed)} of {len(judged)} judged rows are as promised"


def simulated_note(source: str) -> str:
    """Said wherever figures are shown that no real card gave."""
    return f"These figures are {source}: speeds are claimed from real cards only."
