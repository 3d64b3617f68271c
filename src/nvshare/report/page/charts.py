"""The plots that pages share. ``data-`` attributes hold the plotted values, so that tests compare pages with rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nvshare.report.page.svg import WIDTH, Data, Drawing, Scale, ceiling, colour, number, tag

AnyRow = TypeVar("AnyRow", "BarRow", "PointRow")
_GUTTER = 300.0  # for the labels of rows
_MARGIN = 84.0  # right of the plot, for values
_ROW = 30.0
_BAR = 14.0
_NEAR = 70.0  # right of a bar, where its text would hide a mark
_TALL = 500.0
_DOT = 9.0  # pixels that a dot takes
_BELOW = 30.0  # for the values of the axis
_LETTERS = 46  # that fit into the gutter
_INSIDE = 6  # percent of the axis; longer bars have room for a letter


def shortened(words: str, letters: int = _LETTERS) -> str:
    return words if len(words) <= letters else words[: letters - 1].rstrip() + "…"


@dataclass(frozen=True)
class Bar:
    """A part of a row, stacked behind the one before. ``of`` names what is plotted, for tests."""

    value: float
    tip: str
    of: str
    series: int = 0
    letter: str = ""  # written inside where there is room


@dataclass(frozen=True)
class BarRow:
    """``marks``: reference values as (class, value, tip)."""

    row: str
    label: str
    bars: Sequence[Bar]
    text: str = ""
    marks: Sequence[tuple[str, float, str]] = ()
    heading: str = ""  # above it, where a group begins


def bar_chart(rows: Sequence[BarRow], says: str, unit: str = "", scale: float = 1.0) -> str:
    """Horizontal bars from zero; the axis shows values times ``scale``."""
    totals = [sum(bar.value for bar in row.bars) for row in rows]
    most = max([*totals, *(value for row in rows for _, value, _ in row.marks)], default=0.0)
    x = Scale(0.0, ceiling(most * scale) / scale, _GUTTER, WIDTH - _MARGIN)
    drawing, y = _framed(rows, x, unit, scale)
    for (row, middle), total in zip(_placed(drawing, y, rows), totals, strict=True):
        _bar_row(drawing, x, middle, row, total)
    return drawing.render(says)


def _bar_row(drawing: Drawing, x: Scale, middle: float, row: BarRow, total: float) -> None:
    at = 0.0
    for bar in row.bars:
        width = x(at + bar.value) - x(at)
        data: Data = {"data_plot": bar.of, "data_row": row.row, "data_value": float(bar.value), "data_tip": bar.tip}
        drawing.bar(x(at), middle - _BAR / 2, width, _BAR, colour(bar.series), **data)
        if bar.letter and bar.value * 100 > _INSIDE * x.high:
            drawing.text(x(at) + width / 2, middle + 4, bar.letter, "inside", "middle")
        at += bar.value
    for class_, value, tip in row.marks:
        drawing.add(_mark(x(value), middle, class_, tip, row.row, value))
    near = [x(value) for _, value, _ in row.marks if x(total) <= x(value) <= x(total) + _NEAR]
    drawing.text(max([x(total), *near]) + 10, middle + 4, row.text, "value")


def _mark(x: float, y: float, class_: str, tip: str, row: str, value: float) -> str:
    """A diamond for a value of the model, a line for other references."""
    data: Data = {"data_plot": class_, "data_row": row, "data_value": float(value), "data_tip": tip}
    if class_ == "model":
        shape = f"M{number(x)} {number(y - 6)} l6 6 l-6 6 l-6 -6 Z"
    else:
        shape = f"M{number(x - 1)} {number(y - 11)} h2 v22 h-2 Z"
    return tag("path", d=shape, class_=f"mark ref {class_}", **data)


def _framed(rows: Sequence[BarRow] | Sequence[PointRow], x: Scale, unit: str, scale: float) -> tuple[Drawing, float]:
    """A drawing with its axis, and the y of the first row. Tall drawings have the values of the axis above, too."""
    height = sum(_ROW + (_ROW if row.heading else 0.0) for row in rows) + 4
    top = 20.0 if height > _TALL else 0.0
    drawing = Drawing(top + height + _BELOW)
    shown = Scale(x.low * scale, x.high * scale, x.start, x.end)
    drawing.x_axis(shown, top, top + height, unit)
    for value in shown.ticks() if top else ():
        drawing.text(shown(value), top - 8, f"{value:g}{unit}", "tick", "middle")
    drawing.line(x.start, top, x.start, top + height, "axis")
    return drawing, top


def _placed(drawing: Drawing, y: float, rows: Sequence[AnyRow]) -> Iterator[tuple[AnyRow, float]]:
    """Each row with the y of its middle, one below the other. Writes headings and labels."""
    for row in rows:
        if row.heading:
            drawing.text(0, y + 20, row.heading, "heading")
            y += _ROW
        drawing.text(_GUTTER - 12, y + _ROW / 2 + 4, shortened(row.label), "label", "end")
        yield row, y + _ROW / 2
        y += _ROW


def _side_by_side(places: Sequence[float]) -> list[float]:
    """How far each dot moves up or down so that dots do not hide each other, as far as a row has room."""
    found: list[float] = []
    for index, place in enumerate(places):
        taken = {away for other, away in zip(places[:index], found, strict=True) if abs(other - place) < _DOT}
        found.append(next((away for away in (0.0, -_DOT, _DOT) if away not in taken), 0.0))
    return found


@dataclass(frozen=True)
class Point:
    """``low`` and ``high``: where chance may put the value."""

    value: float
    tip: str
    of: str
    series: int = 0
    hollow: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PointRow:
    row: str
    label: str
    points: Sequence[Point]
    text: str = ""
    text_class: str = "value"
    heading: str = ""


@dataclass(frozen=True)
class Axis:
    """``line``: a value with a line of its own. Without ``low`` and ``high`` the axis shows zero and all points."""

    unit: str = ""
    scale: float = 1.0
    line: float | None = None
    low: float = 0.0
    high: float | None = None


def point_chart(rows: Sequence[PointRow], says: str, axis: Axis = Axis()) -> str:
    """Dots on a line per row: filled for what was measured, hollow for what was expected."""
    values = [value for row in rows for point in row.points for value in (point.value, point.high or point.value)]
    high = axis.high if axis.high is not None else ceiling(max([*values, axis.line or 0.0]) * axis.scale) / axis.scale
    x = Scale(axis.low, high, _GUTTER, WIDTH - _MARGIN)
    drawing, y = _framed(rows, x, axis.unit, axis.scale)
    if axis.line is not None:
        drawing.line(x(axis.line), y, x(axis.line), drawing.height - _BELOW, "limit")
    for row, middle in _placed(drawing, y, rows):
        _point_row(drawing, x, middle, row)
    return drawing.render(says)


def _point_row(drawing: Drawing, x: Scale, middle: float, row: PointRow) -> None:
    drawing.line(x.start, middle, x.end, middle, "rail")
    places = _side_by_side([x.inside(point.value) for point in row.points])
    paired = any(point.hollow for point in row.points)  # a dot and its ring stay on one line
    for point, away in sorted(zip(row.points, places, strict=True), key=lambda each: not each[0].hollow):
        y = middle if paired else middle + away
        if point.low is not None and point.high is not None:
            drawing.interval(x.inside(point.low), x.inside(point.high), y)
        data: Data = {
            "data_plot": point.of,
            "data_row": row.row,
            "data_value": float(point.value),
            "data_tip": point.tip,
        }
        look = f"hollow o{point.series % 8}" if point.hollow else colour(point.series)
        drawing.dot(x.inside(point.value), y, look, 7.0 if point.hollow else 4.5, **data)
    drawing.text(WIDTH, middle + 4, row.text, row.text_class, "end")
