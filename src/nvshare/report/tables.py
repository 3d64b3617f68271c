"""Rows as tables and as figures to compare: what a row's class says of its columns, applied. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from nvshare.bench.columns import Row, columns

Cells = Sequence[tuple[str, Callable[[Row], str]]]  # heading, and what a row has there


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    @staticmethod
    def of(rows: Sequence[Row], cells: Cells) -> Table:
        """A line for each row. Columns in which nothing is said are left out."""
        lines = [[cell(row) for _, cell in cells] for row in rows]
        used = [place for place in range(len(cells)) if any(line[place] for line in lines)]
        return Table([cells[place][0] for place in used], [[line[place] for place in used] for line in lines])

    def text(self) -> str:
        """Columns as wide as their widest cell."""
        return aligned([self.headings, *self.rows])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def cells(kind: type, in_text: bool = False) -> list[tuple[str, Callable[[Row], str]]]:
    """The columns that tables show of a row class, on pages or in text."""
    return [
        (column.title, partial(column.written, name))
        for name, column in columns(kind).items()
        if column.title is not None and (in_text or not column.text_only)
    ]


def text_table(kind: type, rows: Iterable[Any]) -> str:
    """Rows that were just made, as text."""
    return Table.of([as_row(row) for row in rows], cells(kind, in_text=True)).text()


def as_row(row: Any) -> Row:
    """As JSON has it."""
    found: Row = row.to_dict() if hasattr(row, "to_dict") else asdict(row)
    return found


@dataclass(frozen=True)
class Figure:
    """A number that two results can be compared by; see ``Compared``. Chance may put it from ``low`` to ``high``; None:
    nobody knows."""

    row: str
    name: str
    value: float
    better: int
    form: str = "{:.3f}"
    low: float | None = None
    high: float | None = None


def figures(kind: type, rows: Iterable[Row], name: Callable[[Row], str], exact: bool = False) -> Iterator[Figure]:
    """What rows can be compared by, each under its name. ``exact``: there is no chance in them."""
    for row in rows:
        for field, column in columns(kind).items():
            said = column.compared
            value = None if said is None else said.value(row) if said.value else row.get(field)
            if said is not None and value is not None:
                value /= said.unit
                chance = 0.0 if exact else said.chance(row)
                low, high = (None, None) if chance is None else (value - chance, value + chance)
                yield Figure(name(row), said.name, value, said.better, said.form, low, high)
