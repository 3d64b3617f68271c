"""Pages of ``nvshare bench swap``: what a switch takes, and what the link could do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvshare.report.page.charts import Bar, BarRow, bar_chart
from nvshare.report.page.moves import MOVED, all_rows, gib
from nvshare.report.page.parts import (
    Content,
    Figure,
    Row,
    Section,
    Tile,
    measured,
    node_title,
    passed_tile,
    timelines,
)
from nvshare.report.page.shapes import Maybe
from nvshare.report.page.timeline import GIB

_RATES = {"h2d": float, "d2h": float, "duplex_h2d": float, "duplex_d2h": float}
SHAPE = {
    "source": str,
    "node": str,
    "rows": [
        {
            "title": str,
            "drain_s": float,
            "stall_s": float,
            "copy_s": float,
            "map_s": Maybe(float),
            "wait_s": float,
            "of_limit": float,
            "link": _RATES,
            **MOVED,
        }
    ],
}
_PARTS = (
    ("drain_s", "drain: the leaving task finishes what it submitted"),
    ("copy_s", "copy: what the link alone needs"),
    ("map_s", "map: addresses given and taken away"),
    ("wait_s", "wait: messages, waking up, uneven ends"),
)
_LINK = (
    ("h2d", "to the card"),
    ("d2h", "from it"),
    ("duplex_h2d", "to it, both at once"),
    ("duplex_d2h", "from it, both at once"),
)


title = node_title


def tiles(content: Content) -> list[Tile]:
    row = content["rows"][0]
    return [
        Tile("of the link's limit", f"{100 * row['of_limit']:.0f} %", "100 % cannot be beaten"),
        Tile("a switch stalls", f"{row['stall_s']:.3f} s", f"the link alone needs {row['copy_s']:.3f} s"),
        Tile("moved per switch", gib(row["out_per_switch"]), f"out, and {gib(row['in_per_switch'])} in"),
        passed_tile("runs passed", [each["passed"] for each in content["rows"]]),
    ]


def sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    bars = [
        BarRow(
            row["title"],
            row["title"],
            [
                Bar(row[name] or 0.0, f"{words}: {row[name]:.4f} s", name, series, name.removesuffix("_s"))
                for series, (name, words) in enumerate(_PARTS)
                if row.get(name) is not None
            ],
            f"{row['drain_s'] + row['stall_s']:.3f} s",
        )
        for row in rows
    ]
    legend = [(f"s{series}", words) for series, (_, words) in enumerate(_PARTS)]
    lead = "Means over the switches. While the leaving task drains the card still works; the rest is the stall."
    yield Section("A switch", lead, bar_chart(bars, "Parts of a switch, in seconds", " s"), legend)
    rates = [
        BarRow(
            name,
            words,
            [Bar(row["link"][name], f"{words}: {_rate(row['link'][name])}", "link")],
            _rate(row["link"][name]),
        )
        for row in rows[:1]
        for name, words in _LINK
    ]
    yield Section(
        "The link", "Pinned copies by plain driver calls.", bar_chart(rates, "Speed of the link", " GB/s", 1e-9)
    )
    yield from timelines(rows, lambda row: str(row["title"]))
    seconds = [("stall", _seconds("stall_s")), *((name.removesuffix("_s"), _seconds(name)) for name, _ in _PARTS)]
    yield all_rows(rows, "title", [*seconds, ("of limit", lambda row: f"{100 * row['of_limit']:.0f} %")])


def _seconds(name: str) -> Callable[[Row], str]:
    return lambda row: "" if row.get(name) is None else f"{row[name]:.4f} s"


def _rate(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"


def figures(content: Content) -> Iterator[Figure]:
    for row in content["rows"]:
        for name, words, better, unit in (
            ("stall_s", "stall, s", -1, 1.0),
            ("drain_s", "drain, s", -1, 1.0),
            ("of_limit", "part of the link's limit", 1, 1.0),
            ("out_per_switch", "out per switch, GiB", -1, GIB),
        ):
            yield measured(content, row["title"], words, row[name] / unit, better, "{:.4f}")
