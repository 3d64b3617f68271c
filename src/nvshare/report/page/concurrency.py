"""Pages of ``nvshare verify concurrency``: who was on a card when, and who waited, as logs tell it."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.report.page.parts import Columns, Content, Figure, Section, Table, Tile
from nvshare.report.page.shapes import Maybe
from nvshare.report.page.timeline import Card, timeline_chart

_SPANS = [(float, float)]
SHAPE = {
    "source": str,
    "verdict": str,
    "expected": Maybe(str),
    "timed": bool,
    "cards": [
        {
            "card": str,
            "word": str,
            "tasks": int,
            "most": int,
            "together": float,
            "contended": float,
            "dropped": int,
            "left": int,
            "progress_together": Maybe(float),
        }
    ],
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
    cards, unit = _cards(content), "s" if content["timed"] else "lines"
    if cards:
        legend = [("s0", "on the card"), ("host-note", "pale: waits for it")]
        if any(row["progress"] for row in content["timeline"]):
            legend.append(("progress", "reports progress"))
        lead = "Who was on which card when, with the part of the time."
        if not content["timed"]:
            lead += " The log has no times: the axis counts its lines, and only their order is judged."
        yield Section("Timeline", lead, timeline_chart("timeline", cards, unit), legend)
    yield Section("Cards", table=_table(content))
    if content["notes"]:
        yield Section("Notes", lines=content["notes"])


def judges(content: Content) -> bool:
    """Without an expectation nothing passes and nothing fails."""
    return content.get("expected") is not None


def figures(content: Content) -> Iterator[Figure]:
    """Nothing is better or worse here: parallel and serial are both what somebody wanted."""
    for place, card in enumerate(content["cards"]):
        row = f"card {place}"  # by its name no two nodes could be compared
        if content["timed"] and card["contended"]:
            yield Figure(row, "had by two, of the time wanted by two", card["together"] / card["contended"], 0)
        for name, words in (("tasks", "tasks"), ("most", "at once, the most"), ("left", "times to the queue")):
            yield Figure(row, words, float(card[name]), 0, "{:.0f}", card[name], card[name])


def _cards(content: Content) -> list[Card]:
    """The rows of the log's story, as timelines have them."""
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


def _table(content: Content) -> Table:
    timed = content["timed"]
    columns: Columns = (
        ("card", lambda card: card["card"]),
        ("verdict", lambda card: card["word"]),
        ("tasks", lambda card: str(card["tasks"])),
        ("at once", lambda card: str(card["most"])),
        ("wanted by two", lambda card: f"{card['contended']:.1f} s" if timed else ""),
        ("had by two", lambda card: f"{card['together']:.1f} s" if timed else ""),
        ("DROP_LOCK", lambda card: str(card["dropped"])),
        ("to the queue", lambda card: str(card["left"])),
        ("progress together", lambda card: _percent(card.get("progress_together"))),
    )
    return Table.of(content["cards"], columns)


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.0f} %"
