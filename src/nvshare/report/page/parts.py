"""What a page is made of, and what the views of all kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvshare.report.page.shapes import Maybe
from nvshare.report.page.timeline import timeline_chart

Content = Mapping[str, Any]  # a result, as its JSON has it
Row = Mapping[str, Any]  # of it
Columns = Sequence[tuple[str, Callable[[Row], str]]]

CHECK = {
    "check": str,
    "title": Maybe(str),
    "expected": str,
    "seen": str,
    "ok": Maybe(bool),
    "seconds": Maybe(float),
}  # the row of a promise
GOOD, BAD, OPEN = "ok", "FAIL", "–"  # verdicts; a page colours cells that say one of them


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    @staticmethod
    def of(rows: Sequence[Row], columns: Columns) -> Table:
        """A line for each row, a cell for each column. Columns in which nothing is said are left out."""
        cells = [[cell(row) for _, cell in columns] for row in rows]
        used = [place for place in range(len(columns)) if any(line[place] for line in cells)]
        return Table([columns[place][0] for place in used], [[line[place] for place in used] for line in cells])


@dataclass(frozen=True)
class Section:
    """``legend``: (class of a mark, what it means). ``lines``: sentences below everything."""

    title: str
    lead: str = ""
    chart: str = ""
    legend: Sequence[tuple[str, str]] = ()
    table: Table | None = None
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Tile:
    """A figure worth being large."""

    label: str
    value: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True)
class Figure:
    """A number that two results can be compared by. ``better`` is 1 where more is better, -1 where less is, 0 where
    neither. ``low`` to ``high`` is where chance may put it; None: nobody knows."""

    row: str
    name: str
    value: float
    better: int
    form: str = "{:.3f}"
    low: float | None = None
    high: float | None = None


def measured(content: Content, row: str, name: str, value: float, better: int, form: str = "{:.3f}") -> Figure:
    """A figure of a result that says nothing of its noise. The model has none: the same run gives the same digits."""
    chance = value if content["source"] == "model" else None
    return Figure(row, name, value, better, form, chance, chance)


def node_title(content: Content) -> str:
    return str(content["node"])


def verdict(ok: bool | None) -> str:
    return {True: GOOD, False: BAD, None: OPEN}[ok]


def passed_tile(label: str, verdicts: Sequence[bool | None]) -> Tile:
    judged = [ok for ok in verdicts if ok is not None]
    good = sum(judged)
    note = "all as promised" if good == len(judged) else f"{len(judged) - good} not as promised"
    return Tile(label, f"{good} of {len(judged)}", note, bad=good < len(judged))


def checks_table(rows: Sequence[Row]) -> Table:
    columns: Columns = (
        ("check", lambda row: row.get("title") or row["check"]),
        ("expected", lambda row: row["expected"]),
        ("seen", lambda row: row["seen"]),
        ("seconds", lambda row: "" if row.get("seconds") is None else f"{row['seconds']:.1f}"),
        ("", lambda row: verdict(row["ok"])),
    )
    return Table.of(rows, columns)


def passed_figure(name: str, ok: bool) -> Figure:
    """Passing is no matter of chance."""
    value = float(ok)
    return Figure(name, "passed", value, 1, "{:.0f}", value, value)


def check_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        if row["ok"] is not None:
            yield passed_figure(row["check"], row["ok"])


def timelines(rows: Sequence[Row], name: Callable[[Row], str]) -> Iterator[Section]:
    """A picture for each run in which tasks met on a card."""
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
