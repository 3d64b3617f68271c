"""Pages of ``nvshare bench swap`` and ``nvshare bench eviction``: what switches move, and what that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvshare.lab.report_page.charts import Bar, BarRow, bar_chart
from nvshare.lab.report_page.parts import (
    Content,
    Figure,
    Section,
    Table,
    Tile,
    measured,
    passed_tile,
    timelines,
    verdict,
)
from nvshare.lab.report_page.shapes import Maybe
from nvshare.lab.report_page.timeline import GIB, card_shape

Row = Mapping[str, Any]
_MOVED = {"out_per_switch": float, "in_per_switch": float, "switches": int, "passed": bool, "timeline": [card_shape()]}
_RATES = {"h2d": float, "d2h": float, "duplex_h2d": float, "duplex_d2h": float}
SWAP = {
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
            **_MOVED,
        }
    ],
}
EVICTION = {"source": str, "node": str, "rows": [{"case": str, "bound": int, "largest": Maybe(int), **_MOVED}]}
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


def title(content: Content) -> str:
    return str(content["node"])


def swap_tiles(content: Content) -> list[Tile]:
    row = content["rows"][0]
    return [
        Tile("of the link's limit", f"{100 * row['of_limit']:.0f} %", "100 % cannot be beaten"),
        Tile("a switch stalls", f"{row['stall_s']:.3f} s", f"the link alone needs {row['copy_s']:.3f} s"),
        Tile(
            "moved per switch",
            f"{row['out_per_switch'] / GIB:.2f} GiB",
            f"out, and {row['in_per_switch'] / GIB:.2f} GiB in",
        ),
        passed_tile("runs passed", [each["passed"] for each in content["rows"]]),
    ]


def swap_sections(content: Content) -> Iterator[Section]:
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
    yield Section(
        "All rows",
        table=Table.of(
            rows,
            (
                ("what", lambda row: row["title"]),
                ("switches", lambda row: str(row["switches"])),
                ("out", lambda row: f"{row['out_per_switch'] / GIB:.2f} GiB"),
                ("in", lambda row: f"{row['in_per_switch'] / GIB:.2f} GiB"),
                ("stall", lambda row: f"{row['stall_s']:.4f} s"),
                *((name.removesuffix("_s"), _seconds(name)) for name, _ in _PARTS),
                ("of limit", lambda row: f"{100 * row['of_limit']:.0f} %"),
                ("", lambda row: verdict(row["passed"])),
            ),
        ),
    )


def _seconds(name: str) -> Any:
    return lambda row: "" if row.get(name) is None else f"{row[name]:.4f} s"


def _rate(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"


def swap_figures(content: Content) -> Iterator[Figure]:
    for row in content["rows"]:
        for name, words, better, unit in (
            ("stall_s", "stall, s", -1, 1.0),
            ("drain_s", "drain, s", -1, 1.0),
            ("of_limit", "part of the link's limit", 1, 1.0),
            ("out_per_switch", "out per switch, GiB", -1, GIB),
        ):
            yield measured(content, row["title"], words, row[name] / unit, better, "{:.4f}")


def eviction_tiles(content: Content) -> list[Tile]:
    rows = content["rows"]
    most = max(
        (max(row["out_per_switch"], row["in_per_switch"]) / row["bound"] for row in rows if row["bound"] > 0),
        default=0.0,
    )
    return [
        passed_tile("cases passed", [row["passed"] for row in rows]),
        Tile("of what may move", f"{100 * most:.0f} %", "the most, on average over switches"),
        Tile("switches", str(sum(row["switches"] for row in rows))),
    ]


def eviction_sections(content: Content) -> Iterator[Section]:
    rows = content["rows"]
    bars = []
    for row in rows:
        bound = ("bound", row["bound"], f"at most {row['bound'] / GIB:.2f} GiB")
        for place, (name, words) in enumerate((("out_per_switch", "out"), ("in_per_switch", "in"))):
            size = row[name] / GIB
            label = f"{row['case']}, {words}"
            bar = Bar(row[name], f"{label}: {size:.2f} GiB per switch", name, place)
            bars.append(BarRow(row["case"], label, [bar], f"{size:.2f} GiB", [bound]))
    lead = "A switch moves what does not fit, and no more."
    legend = [("s0", "to the host"), ("s1", "to the card"), ("bound", "what does not fit, and half a GiB")]
    yield Section("Moved per switch", lead, bar_chart(bars, "Bytes moved per switch", " GiB", 1 / GIB), legend)
    yield from timelines(rows, lambda row: str(row["case"]))
    yield Section(
        "All rows",
        table=Table.of(
            rows,
            (
                ("case", lambda row: row["case"]),
                ("switches", lambda row: str(row["switches"])),
                ("out/switch", lambda row: f"{row['out_per_switch'] / GIB:.2f} GiB"),
                ("in/switch", lambda row: f"{row['in_per_switch'] / GIB:.2f} GiB"),
                ("largest", lambda row: "" if row.get("largest") is None else f"{row['largest'] / GIB:.2f} GiB"),
                ("at most", lambda row: f"{row['bound'] / GIB:.2f} GiB"),
                ("", lambda row: verdict(row["passed"])),
            ),
        ),
    )


def eviction_figures(content: Content) -> Iterator[Figure]:
    for row in content["rows"]:
        for name, words in (("out_per_switch", "out per switch, GiB"), ("in_per_switch", "in per switch, GiB")):
            yield measured(content, row["case"], words, row[name] / GIB, -1)
