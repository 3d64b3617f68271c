"""A row's class says once how its fields are headed, written, compared and checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest

from nvshare.bench.columns import JUDGED, NOTES, SOURCE, Column, Compared, Row
from nvshare.report.page.shapes import Each, Maybe, shape_of
from nvshare.report.tables import Figure, Table, cells, figures, text_table


@dataclass(frozen=True)
class Link:
    h2d: float


@dataclass(frozen=True)
class Switch:
    case: Annotated[str, Column("case")]
    source: Annotated[str, SOURCE]
    hidden: int
    size: Annotated[float | None, Column("size", "{:.1f} B", compared=Compared("size, KB", -1, unit=1000))]
    note: Annotated[str, Column("note", place=NOTES)] = ""
    link: Link | None = None

    @property
    def passed(self) -> Annotated[bool, JUDGED]:
        return self.size is not None

    @property
    def not_in_json(self) -> int:
        return 1

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


ROWS = [Switch("one", "model", 1, 2500.0), Switch("two", "model", 2, None)]


def test_columns_stand_in_the_order_of_fields_then_verdict_then_notes() -> None:
    assert [title for title, _ in cells(Switch, in_text=True)] == ["case", "size", "", "source", "note"]
    assert [title for title, _ in cells(Switch)] == ["case", "size", "", "note"]


def test_a_table_leaves_out_columns_that_say_nothing() -> None:
    assert text_table(Switch, ROWS).splitlines() == [
        "case  size            source",
        "one   2500.0 B  ok    model",
        "two             FAIL  model",
    ]
    assert Table.of([row.to_dict() for row in ROWS[1:]], cells(Switch)).headings == ["case", ""]


def test_a_row_is_compared_by_the_numbers_it_has() -> None:
    rows: list[Row] = [row.to_dict() for row in ROWS]

    def name(row: Row) -> str:
        return f"case {row['case']}"

    assert list(figures(Switch, rows, name)) == [Figure("case one", "size, KB", 2.5, -1)]
    assert list(figures(Switch, rows, name, exact=True)) == [
        Figure("case one", "size, KB", 2.5, -1, "{:.3f}", 2.5, 2.5)
    ]


def test_json_must_have_the_fields_of_a_row_and_the_properties_that_are_shown() -> None:
    assert shape_of(Switch) == {
        "case": str,
        "source": str,
        "hidden": int,
        "size": Maybe(float),
        "note": str,
        "link": Maybe({"h2d": float}),
        "passed": bool,
    }


class Pair(NamedTuple):
    begin: float
    end: float


class Figures(TypedDict, total=False):
    spread: Annotated[float, "said somewhere"]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (tuple[Pair, ...], [(float, float)]),
        (tuple[float, int], (float, int)),
        (list[float | None], [Maybe(float)]),
        (dict[str, list[int]], Each([int])),
        (dict[str, Any], dict),
        (Figures, {"spread": Maybe(float)}),
    ],
)
def test_every_type_of_a_field_has_its_shape(kind: Any, shape: Any) -> None:
    assert shape_of(kind) == shape
