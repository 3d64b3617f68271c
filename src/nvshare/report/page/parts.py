"""What a page is made of, and what the views of all kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvshare.acceptance.finding import Finding
from nvshare.bench.columns import Row
from nvshare.report.page.shapes import Each, Maybe, shape_of
from nvshare.report.page.timeline import timeline_chart
from nvshare.report.tables import Figure, Table, cells, figures

Content = Mapping[str, Any]  # a result, as its JSON has it

NODE = {"source": str, "node": str}  # a result of one node
# The row of a promise: results of some kinds have no titles, or no timelines.
CHECK = {**shape_of(Finding), "title": Maybe(str), "timeline": Maybe(Each([(float, float)]))}


@dataclass(frozen=True)
class Section:
    """``legend``: the class of each mark, and what it means. ``lines``: sentences below everything."""

    title: str
    lead: str = ""
    chart: str = ""
    legend: Sequence[tuple[str, str]] = ()
    table: Table | None = None
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Tile:
    """A figure that is shown large."""

    label: str
    value: str
    note: str = ""
    bad: bool = False


def node_title(content: Content) -> str:
    return str(content["node"])


def passed_tile(label: str, verdicts: Sequence[bool | None]) -> Tile:
    judged = [ok for ok in verdicts if ok is not None]
    good = sum(judged)
    note = "all as promised" if good == len(judged) else f"{len(judged) - good} not as promised"
    return Tile(label, f"{good} of {len(judged)}", note, bad=good < len(judged))


def checks_section(rows: Sequence[Row], title: str = "Checks") -> Section:
    return Section(title, table=Table.of(rows, cells(Finding)))


def check_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    return figures(Finding, rows, lambda row: str(row["check"]))


def timelines(rows: Sequence[Row], name: Callable[[Row], str]) -> Iterator[Section]:
    """A timeline for each run in which tasks met on a card."""
    for row in rows:
        cards = [card for card in row.get("timeline") or () if card["seconds"] > 0]
        if not any(len(card["tasks"]) > 1 for card in cards):
            continue
        resolution = max(card["resolution_s"] for card in cards)
        how = "exact" if not resolution else f"seen every {resolution:g} s"
        moved = any(entry[2] for card in cards for task in card["tasks"] for entry in task["memory"])
        legend = [("limit", "room for tasks"), *([("host-note", "pale: on the host")] if moved else [])]
        yield Section(
            f"Timeline: {name(row)}",
            f"Who was free to use which card when, with the part of the time; below, where memory was ({how}).",
            timeline_chart(str(row.get("name", name(row))), cards),
            legend,
        )
