"""Scales, axes and marks as SVG text. Colours are CSS classes, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

Data = dict[str, str | float | None]  # attributes of an element
SERIES = 8  # colours that the page has; after that they begin again
WIDTH = 960.0
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


def number(value: float) -> str:
    """A coordinate in as few letters as possible."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def tag(name: str, *content: str, **attributes: str | float | None) -> str:
    """An element. ``data_row="x"`` is written as ``data-row="x"``, ``class_`` as ``class``; None is left out. Content
    is markup; attributes are text and are escaped here."""
    written = []
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else repr(value) if key.startswith("data_") else number(value)
            written.append(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    inside = "".join(content)
    return f"<{name}{''.join(written)}>{inside}</{name}>" if inside else f"<{name}{''.join(written)}/>"


def colour(index: int) -> str:
    """The class of a series' colour."""
    return f"s{index % SERIES}"


@dataclass(frozen=True)
class Scale:
    """Maps values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def inside(self, value: float) -> float:
        """The same, but values out of range are at the edge."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, about: int = 6) -> list[float]:
        return ticks(self.low, self.high, about)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """About so many round values within a range."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(nice * power for nice in _NICE if nice * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_round(index * step) for index in range(first, last + 1)]


def ceiling(value: float) -> float:
    """The next round value: where an axis ends."""
    if value <= 0:
        return 1.0
    step = ticks(0.0, value)
    width = step[1] if len(step) > 1 else value
    return _round(math.ceil(value / width - 1e-9) * width)


def _round(value: float) -> float:
    """Without rounding errors of sums."""
    return float(f"{value:.10g}")


@dataclass
class Drawing:
    """Collects elements from top to bottom."""

    height: float = 0.0
    width: float = WIDTH
    parts: list[str] = field(default_factory=list)

    def add(self, *elements: str) -> None:
        self.parts.extend(elements)

    def text(self, x: float, y: float, words: str, class_: str = "label", anchor: str = "start") -> None:
        self.add(tag("text", escape(words), x=x, y=y, class_=class_, text_anchor=anchor))

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        self.add(tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_))

    def bar(self, x: float, y: float, width: float, height: float, class_: str, **data: str | float | None) -> None:
        """A bar, never too short to be seen; ``width`` may be negative."""
        left, wide = min(x, x + width), max(abs(width), 0.75)
        self.add(tag("rect", x=left, y=y, width=wide, height=height, rx=2.0, class_=f"mark {class_}", **data))

    def dot(self, x: float, y: float, class_: str, radius: float = 5.0, **data: str | float | None) -> None:
        self.add(tag("circle", cx=x, cy=y, r=radius, class_=f"mark {class_}", **data))

    def interval(self, low: float, high: float, y: float) -> None:
        """A horizontal interval with whiskers."""
        self.line(low, y, high, y, "interval")
        for end in (low, high):
            self.line(end, y - 4, end, y + 4, "interval")

    def area(self, points: Sequence[tuple[float, float, float]], class_: str, **data: str | float | None) -> None:
        """The area between two lines; points are (x, lower y, upper y), from left to right."""
        there = " L".join(f"{number(x)} {number(upper)}" for x, _, upper in points)
        back = " L".join(f"{number(x)} {number(lower)}" for x, lower, _ in reversed(points))
        self.add(tag("path", d=f"M{there} L{back} Z", class_=f"mark {class_}", **data))

    def x_axis(self, scale: Scale, top: float, bottom: float, unit: str = "") -> None:
        """Vertical grid lines behind everything, with their values below."""
        for value in scale.ticks():
            self.parts.insert(0, tag("line", x1=scale(value), y1=top, x2=scale(value), y2=bottom, class_="grid"))
            self.text(scale(value), bottom + 18, f"{value:g}{unit}", "tick", "middle")

    def render(self, says: str) -> str:
        """The whole picture; ``says`` describes it for screen readers."""
        return tag(
            "svg", *self.parts, viewBox=f"0 0 {number(self.width)} {number(self.height)}", role="img", aria_label=says
        )


def asset(name: str) -> str:
    """A file that pages are made with."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def standalone(picture: str) -> str:
    """A picture as a file of its own, in the colours of pages."""
    head, _, rest = picture.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{escape(asset("page.css"))}</style>{rest}'
