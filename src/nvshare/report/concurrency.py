"""The timeline of a story: as rows, as text, and as SVG. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nvshare.acceptance.concurrency.story import Story, Task
from nvshare.bench.spans import Span, covered, within

ON, WAITS, AWAY = "█", "░", " "
LEGEND = f"{ON} on the card   {WAITS} waits   (blank) not there"


@dataclass(frozen=True)
class Row:
    """One task on one card, counted from the begin of the story."""

    card: str
    task: str
    on: Sequence[Span]
    waited: Sequence[Span]
    progress: Sequence[Span]


def rows(story: Story) -> list[Row]:
    """By card, in the order in which tasks came."""
    begin, end = story.begin, story.end

    def cut(spans: Sequence[Span]) -> list[Span]:
        return within(spans, begin, end)

    return [
        Row(card, _label(task, story.tasks), cut(task.on), cut(task.waited), cut(task.progress))
        for card in story.cards
        for task in story.on_card(card)
    ]


def _label(task: Task, tasks: Sequence[Task]) -> str:
    same = [other for other in tasks if other.label == task.label]
    if not task.label:
        return task.id or "?"
    return task.label if len(same) == 1 else f"{task.label} {task.id[:4]}"


def text(story: Story, width: int) -> list[str]:
    """A line per task below the name of each card, and a scale below all."""
    drawn = rows(story)
    label = max((len(row.task) for row in drawn), default=0)
    length = story.end - story.begin
    scale = f"{length:.1f} s" if story.timed else f"{length:.0f} lines"
    lines: list[str] = []
    for number, row in enumerate(drawn):
        if number == 0 or drawn[number - 1].card != row.card:
            lines.append(row.card)
        lines.append(f"  {row.task:<{label}}  {_bar(row, length, width)}")
    return [*lines, f"  {'':<{label}}  0{scale:>{width - 1}}", f"  {LEGEND}"]


def _bar(row: Row, length: float, width: int) -> str:
    cell = length / width if length else 1.0
    line = ""
    for number in range(width):
        left, right = number * cell, (number + 1) * cell
        on, waits = covered(row.on, left, right), covered(row.waited, left, right)
        line += AWAY if on + waits < cell / 2 else ON if on >= waits else WAITS
    return line


_ROW, _LEFT, _RIGHT, _TOP = 26, 200, 760, 34
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:currentColor}.card{font-weight:600}.on{fill:#2a9d6f}"
    ".waits{fill:#e9b44c;fill-opacity:.55}.progress{fill:#1b4f72}.axis{stroke:currentColor;stroke-opacity:.4}"
)


def svg(story: Story, title: str) -> str:
    """The same as a picture of its own, which needs nothing from elsewhere. Bars carry their figures as data."""
    drawn = rows(story)
    length = (story.end - story.begin) or 1.0
    scale = (_RIGHT - _LEFT) / length
    parts: list[str] = []
    y = _TOP
    for number, row in enumerate(drawn):
        if number == 0 or drawn[number - 1].card != row.card:
            parts.append(f'<text class="card" x="8" y="{y + 14}">{escape(row.card)}</text>')
            y += _ROW
        parts.append(f'<text x="16" y="{y + 14}">{escape(row.task)}</text>')
        for kind, spans, top, height in (
            ("waits", row.waited, 2, 16),
            ("on", row.on, 2, 16),
            ("progress", row.progress, 19, 3),
        ):
            parts += [_rectangle(kind, span, row.task, scale, y + top, height) for span in spans]
        y += _ROW
    unit = "s" if story.timed else "lines"
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{y + 4}" x2="{_RIGHT}" y2="{y + 4}"/>')
    parts += [
        f'<text x="{_LEFT + part * (_RIGHT - _LEFT):.0f}" y="{y + 20}" text-anchor="middle">{part * length:.4g}</text>'
        for part in (0, 0.25, 0.5, 0.75, 1)
    ]
    parts.append(f'<text x="{_LEFT - 40}" y="{y + 20}" text-anchor="end">{unit}</text>')
    legend = "green: on the card, yellow: waits, blue: progress"
    parts.append(f'<text x="{_RIGHT}" y="18" text-anchor="end">{legend}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {y + 30}" role="img">'
    return "\n".join([head, f"<style>{_STYLE}</style>", f'<text x="8" y="18">{escape(title)}</text>', *parts, "</svg>"])


def _rectangle(kind: str, span: Span, task: str, scale: float, y: float, height: float) -> str:
    data: Mapping[str, str] = {"task": task, "begin": f"{span.begin:.3f}", "end": f"{span.end:.3f}"}
    attributes = " ".join(f'data-{name}="{escape(value)}"' for name, value in data.items())
    x, width = _LEFT + span.begin * scale, max(0.5, span.length * scale)
    return f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" rx="2" {attributes}/>'
