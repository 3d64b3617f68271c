"""What a row says of itself: how each field is headed, written and compared.

A dataclass whose fields are ``Annotated`` with a ``Column`` describes its rows once. Text tables, pages and comparisons
are derived from that (``nvshare.report``). They read rows as JSON has them: mappings from names to plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

Row = Mapping[str, Any]  # as JSON has it
GIB = 1 << 30
GOOD, BAD, OPEN = "ok", "FAIL", "–"  # verdicts; a page colours cells that say one of them
VALUES, VERDICT, NOTES = range(3)  # the order of columns; within it that of the fields
_SHORT = 100.0  # durations below this many seconds keep a digit after the point


@dataclass(frozen=True)
class Compared:
    """A number that two results are compared by.

    ``better`` is 1 where more is better, -1 where less is, 0 where neither. The number is the field over ``unit``, or
    what ``value`` says; None: this row has no such number. ``chance``: how far chance may move it either way; None: not
    known.
    """

    name: str
    better: int
    form: str = "{:.3f}"
    unit: float = 1.0
    value: Callable[[Row], float | None] | None = None
    chance: Callable[[Row], float | None] = lambda row: None


@dataclass(frozen=True)
class Column:
    """How tables show a field: ``title`` is None where they do not. ``form`` writes its value, ``cell`` the whole row.
    ``says`` is what it is, in words. ``text_only``: pages leave it out."""

    title: str | None = None
    form: str | Callable[[Any], str] = "{}"
    cell: Callable[[Row], str] | None = None
    says: str = ""
    compared: Compared | None = None
    place: int = VALUES
    text_only: bool = False

    def written(self, name: str, row: Row) -> str:
        """The cell of a row; empty where there is nothing to say."""
        if self.cell is not None:
            return self.cell(row)
        value = row.get(name)
        if value is None and self.place != VERDICT:
            return ""
        return self.form.format(value) if isinstance(self.form, str) else self.form(value)


def hints(kind: type) -> Iterator[tuple[str, Any]]:
    """Name and type of a row's fields, then of its properties that have a column: JSON has them too."""
    of_class = get_type_hints(kind, include_extras=True)
    yield from ((each.name, of_class[each.name]) for each in fields(kind))
    for name, value in vars(kind).items():
        if isinstance(value, property):
            returned = get_type_hints(value.fget, include_extras=True)["return"]
            if _column(returned) is not None:
                yield name, returned


@cache
def columns(kind: type) -> dict[str, Column]:
    """The columns of a row class by name, in the order of tables."""
    found = {name: column for name, hint in hints(kind) if (column := _column(hint)) is not None}
    return dict(sorted(found.items(), key=lambda entry: entry[1].place))


def _column(hint: Any) -> Column | None:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Column)), None)


def verdict(ok: bool | None) -> str:
    return {True: GOOD, False: BAD, None: OPEN}[ok]


def seconds_text(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds >= _SHORT else f"{seconds:.1f}s"


def gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


JUDGED = Column("", verdict, place=VERDICT)
SOURCE = Column("source", place=NOTES, text_only=True)
