"""Pages of ``nvshare verify concurrency``: who was on a card when, and who waited, as logs tell it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvshare.acceptance.concurrency.sharing import CardSharing
from nvshare.report import tables
from nvshare.report.page.parts import Content, Section, Tile
from nvshare.report.page.shapes import Maybe, shape_of
from nvshare.report.page.svg import standalone
from nvshare.report.page.timeline import Card, timeline_chart
from nvshare.report.tables import Figure, Table, cells

_SPANS = [(float, float)]
SHAPE = {
    "source": str,
    "verdict": str,
    "expected": Maybe(str),
    "timed": bool,
    "cards": [shape_of(CardSharing)],
    "notes": [str],
    "timeline": [{"card": str, "task": str, "on": _SPANS, "waited": _SPANS, "progress": _SPANS}],
}


def title(content: Content) -> str:
    tasks = sum(card["tasks"] for card in content["cards"])
    return f"{tasks} tasks, {content['verdict']}"


def tiles(content: Content) -> list[Tile]:
    cards, expected = content["cards"], content.get("expected")
    note = "" if expected is None else f"expected: {expected}"
    found = [Tile("verdict", content["verdict"], note, bad=expected not in (None, content["verdict"]))]
    if content["timed"]:
        together, contended = (sum(card[name] for card in cards) for name in ("together", "contended"))
        part = f"{100 * together / contended:.0f} %" if contended else "–"
        found.append(Tile("on it together", part, "of the time in which two or more wanted a card"))
    most = max((card["most"] for card in cards), default=0)
    found.append(Tile("at once", str(most), "the most on one card"))
    found.append(Tile("had to leave", str(sum(card["left"] for card in cards)), "times, for the queue"))
    return found


def sections(content: Content) -> Iterator[Section]:
    cards = _cards(content)
    if cards:
        legend = [("s0", "on the card"), ("host-note", "pale: waits for it")]
        if any(row["progress"] for row in content["timeline"]):
            legend.append(("progress", "reports progress"))
        lead = "Who was on which card when, with the part of the time."
        if not content["timed"]:
            lead += " The log has no times: the axis counts its lines, and only their order is judged."
        yield Section("Timeline", lead, timeline_chart("timeline", cards, _unit(content)), legend)
    yield Section("Cards", table=Table.of(_seconds_if_timed(content), cells(CardSharing)))
    if content["notes"]:
        yield Section("Notes", lines=content["notes"])


def picture(content: Content, title: str) -> str:
    """The timeline as an SVG file of its own."""
    note = f"{title} · filled: on the card, pale: waits for it, thin line: reports progress"
    return standalone(timeline_chart("timeline", _cards(content), _unit(content), note))


def _unit(content: Content) -> str:
    return "s" if content["timed"] else "lines"


def judges(content: Content) -> bool:
    """A result passes or fails only where something was expected."""
    return content.get("expected") is not None


def figures(content: Content) -> Iterator[Figure]:
    """Nothing is better or worse here: parallel and serial are both what somebody wanted."""
    # A card is known by its place: by its name no two nodes could be compared.
    places = [{**card, "place": f"card {place}"} for place, card in enumerate(_seconds_if_timed(content))]
    return tables.figures(CardSharing, places, lambda card: str(card["place"]))


def _seconds_if_timed(content: Content) -> list[dict[str, Any]]:
    """The cards; without times their durations count lines, and are left out."""
    unknown = {} if content["timed"] else {"together": None, "contended": None}
    return [{**card, **unknown} for card in content["cards"]]


def _cards(content: Content) -> list[Card]:
    """The rows of the story as cards of a timeline."""
    rows = content["timeline"]
    end = max((span[1] for row in rows for name in ("on", "waited") for span in row[name]), default=0.0)
    names = list(dict.fromkeys(row["card"] for row in rows))
    return [
        {
            "gpu": name,
            "index": index,
            "capacity": 0,
            "seconds": end,
            "tasks": [{**row, "held": row["on"], "memory": []} for row in rows if row["card"] == name],
        }
        for index, name in enumerate(names)
        if end > 0
    ]
