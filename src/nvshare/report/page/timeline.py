"""Who had which card when, and where memory was meanwhile: lanes above, bytes below, on one clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nvshare.bench.columns import GIB
from nvshare.bench.history import CardHistory, TaskHistory
from nvshare.report.page.charts import shortened
from nvshare.report.page.shapes import Maybe, shape_of
from nvshare.report.page.svg import WIDTH, Data, Drawing, Scale, colour, tag

Card = Mapping[str, Any]  # a CardHistory, as JSON has it
_GUTTER = 190.0
_MARGIN = 58.0
_LANE = 24.0
_THICK = 16.0
_DID = (  # what a task may do: its field, in words, and where in its lane the bar is
    ("waited", "waited for the card", 0.0, _THICK),
    ("held", "had the card", 0.0, _THICK),
    ("progress", "made progress", _THICK + 1.5, 3.0),
)
_MEMORY = 96.0  # pixels for what fits on the card
_LETTERS = 27


def card_shape() -> dict[str, Any]:
    """What JSON must have of a card's history. Some results also know who waited, or on which node the card is."""
    task = {**shape_of(TaskHistory), "waited": Maybe([(float, float)])}
    return {**shape_of(CardHistory), "tasks": [task], "node": Maybe(str)}


def row_shape(kind: type) -> dict[str, Any]:
    """What JSON must have of a row with a timeline."""
    return {**shape_of(kind), "timeline": [card_shape()]}


def series_of(cards: Sequence[Card]) -> dict[str, int]:
    """The colour of each task in all plots of a run, in the order of the lanes."""
    return {name: place for place, name in enumerate(task["task"] for card in cards for task in card["tasks"])}


def lanes_only(spans: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> list[Card]:
    """Cards of which only the turns of their tasks are known: times by card and task. A card without a name may be any
    card."""
    end = max((float(span[1]) for tasks in spans.values() for each in tasks.values() for span in each), default=0.0)
    return [
        {
            "gpu": gpu,
            "index": index,
            "capacity": 0,
            "seconds": end,
            "tasks": [{"task": task, "held": held, "memory": []} for task, held in tasks.items()],
        }
        for index, (gpu, tasks) in enumerate(spans.items())
        if end > 0
    ]


def timeline_chart(row: str, cards: Sequence[Card], unit: str = "s", note: str = "") -> str:
    """The timeline of one run. Tasks may have ``waited`` and ``progress`` spans beside those in which they ``held`` the
    card. ``note`` is written below."""
    seconds = max(card["seconds"] for card in cards)
    x = Scale(0.0, seconds, _GUTTER, WIDTH - _MARGIN)
    drawing, y, series = Drawing(), 0.0, series_of(cards)
    for card in cards:
        if card["gpu"]:
            drawing.text(0, y + 16, f"card {card['index']}", "heading")
            drawing.text(60, y + 16, _about(card), "tick")
            y += 26
        y = _lanes(drawing, x, y, row, card, series, unit)
        if any(task["memory"] for task in card["tasks"]):
            y = _memory(drawing, x, y + 10, row, card, series)
        y += 22
    drawing.x_axis(x, 26 if cards[0]["gpu"] else 0, y - 12, f" {unit}")
    if note:
        y += 24
        drawing.text(0, y + 8, note, "tick")
    drawing.height = y + 14
    return drawing.render(f"Timeline of {row}: which task had which card when, and where its memory was")


def _about(card: Card) -> str:
    room = f"{card['capacity'] / GIB:.1f} GiB for tasks" if card["capacity"] else ""
    where = f"on {card['node']}" if card.get("node") else ""
    return " · ".join(filter(None, (shortened(card["gpu"], 14), room, where)))


def _lanes(drawing: Drawing, x: Scale, y: float, row: str, card: Card, series: Mapping[str, int], unit: str) -> float:
    for place, task in enumerate(card["tasks"]):
        top = y + place * _LANE
        look = colour(series[task["task"]])
        drawing.add(tag("rect", x=0.0, y=top + 3, width=10.0, height=10.0, rx=3.0, class_=look))
        drawing.text(16, top + 13, shortened(task["task"], _LETTERS))
        drawing.bar(x(0), top, x(card["seconds"]) - x(0), _THICK, "track")
        for plot, did, below, thick in _DID:
            for begin, end in task.get(plot) or ():
                data: Data = {
                    "data_plot": plot,
                    "data_row": row,
                    "data_task": task["task"],
                    "data_gpu": card["gpu"],
                    "data_begin": float(begin),
                    "data_end": float(end),
                    "data_tip": f"{task['task']} {did} from {begin:.1f} to {end:.1f} ({end - begin:.1f} {unit})",
                }
                drawing.bar(x(begin), top + below, x(end) - x(begin), thick, f"{look} {plot}", **data)
        held = sum(end - begin for begin, end in task["held"]) / card["seconds"]
        drawing.text(WIDTH, top + 13, f"{100 * held:.0f} %", "value", "end")
    return y + len(card["tasks"]) * _LANE


def _memory(drawing: Drawing, x: Scale, y: float, row: str, card: Card, series: Mapping[str, int]) -> float:
    """Draw memory: bytes on the card above the middle line, bytes on the host below it."""
    moments = sorted({0.0, *(at for task in card["tasks"] for at, _, _ in task["memory"])})
    sizes = [[_at(task["memory"], moment) for moment in moments] for task in card["tasks"]]
    most_on_host = max((sum(size[1] for size in each) for each in zip(*sizes, strict=True)), default=0)
    most_on_card = max((sum(size[0] for size in each) for each in zip(*sizes, strict=True)), default=0)
    room = _MEMORY if most_on_host else _MEMORY / 2
    per_byte = room / max(card["capacity"], most_on_card, 1)
    middle = y + room
    _memory_axis(drawing, x, middle, per_byte, card, most_on_host)
    edges = [*moments, card["seconds"]]
    for which, direction, name in ((0, -1, "resident"), (1, 1, "host")):
        base = [0.0] * len(moments)
        for task, each in zip(card["tasks"], sizes, strict=True):
            heights = [size[which] * per_byte for size in each]
            if any(heights):
                points = []
                for index, height in enumerate(heights):
                    lower = middle + direction * base[index]
                    upper = middle + direction * (base[index] + height)
                    points += [(x(edges[index]), lower, upper), (x(edges[index + 1]), lower, upper)]
                _area(drawing, points, row, card, task, series[task["task"]], name)
            base = [low + height for low, height in zip(base, heights, strict=True)]
    drawing.line(x(0), middle, x(card["seconds"]), middle, "axis")
    return float(middle + most_on_host * per_byte)


def _area(
    drawing: Drawing,
    points: Sequence[tuple[float, float, float]],
    row: str,
    card: Card,
    task: Mapping[str, Any],
    series: int,
    name: str,
) -> None:
    which, where = (1, "on the card") if name == "resident" else (2, "on the host")
    most = max(entry[which] for entry in task["memory"])
    drawing.area(
        points,
        f"{colour(series)} {name}",
        data_plot=name,
        data_row=row,
        data_task=task["task"],
        data_gpu=card["gpu"],
        data_points=json.dumps([[entry[0], entry[which]] for entry in task["memory"]]),
        data_tip=f"{task['task']}: up to {most / GIB:.1f} GiB {where}",
    )


def _memory_axis(drawing: Drawing, x: Scale, middle: float, per_byte: float, card: Card, on_host: int) -> None:
    capacity = middle - card["capacity"] * per_byte
    drawing.line(x(0), capacity, x(card["seconds"]), capacity, "limit")
    drawing.text(x.end + 6, capacity + 4, f"{card['capacity'] / GIB:.1f} GiB", "tick")
    drawing.text(_GUTTER - 12, (middle + capacity) / 2 + 4, "on the card", "tick", "end")
    if on_host:
        bottom = middle + on_host * per_byte
        drawing.text(_GUTTER - 12, (middle + bottom) / 2 + 4, "on the host", "tick", "end")
        drawing.text(x.end + 6, bottom + 4, f"{on_host / GIB:.1f} GiB", "tick")


def _at(memory: Sequence[Sequence[Any]], moment: float) -> tuple[int, int]:
    """Resident and host bytes at a moment; nothing before the first entry."""
    found = (0, 0)
    for at, resident, host in memory:
        if at > moment:
            break
        found = (resident, host)
    return found
