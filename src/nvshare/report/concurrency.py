"""The report of ``verify concurrency``: how tasks shared their cards, as text, JSON and picture. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from nvshare.acceptance.concurrency.sharing import Sharing
from nvshare.acceptance.concurrency.story import Story, Task
from nvshare.bench.spans import Span, within
from nvshare.report.bars import bars
from nvshare.report.page import concurrency

ON, WAITS, AWAY = "█", "░", " "
_LEGEND = f"{ON} on the card   {WAITS} waits   (blank) not there"
_WIDTH = 80


def content(story: Story, sharing: Sharing, expect: str | None) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "expected": expect,
        **sharing.to_dict(),
        "evidence": evidence(sharing),
        "notes": story.notes,
        "timeline": _timeline(story),
    }


def _timeline(story: Story) -> list[dict[str, Any]]:
    """A row for each task on a card: by card, in the order in which tasks came, from the begin of the story."""

    def cut(spans: Sequence[Span]) -> list[Span]:
        return [Span(round(begin, 3), round(end, 3)) for begin, end in within(spans, story.begin, story.end)]

    return [
        {
            "card": card,
            "task": _label(task, story.tasks),
            "on": cut(task.on),
            "waited": cut(task.waited),
            "progress": cut(task.progress),
        }
        for card in story.cards
        for task in story.on_card(card)
    ]


def _label(task: Task, tasks: Sequence[Task]) -> str:
    same = [other for other in tasks if other.label == task.label]
    if not task.label:
        return task.id or "?"
    return task.label if len(same) == 1 else f"{task.label} {task.id[:4]}"


def text(story: Story, sharing: Sharing) -> list[str]:
    """The timeline, the evidence, and the answer."""
    notes = [f"note: {note}" for note in story.notes]
    return [*_bars(story), "", *evidence(sharing), *notes, f"Verdict: {sharing.word}"]


def _bars(story: Story) -> list[str]:
    """A line per task below the name of each card, and a scale below all."""
    rows = _timeline(story)
    label = max((len(row["task"]) for row in rows), default=0)
    length = story.end - story.begin
    lines: list[str] = []
    for card, of_card in groupby(rows, key=lambda row: str(row["card"])):
        tasks = {f"{row['task']:<{label}}": {ON: row["on"], WAITS: row["waited"]} for row in of_card}
        lines += [card, *(f"  {bar}" for bar in bars(tasks, 0.0, length, _WIDTH, AWAY))]
    scale = f"{length:.1f} s" if story.timed else f"{length:.0f} lines"
    return [*lines, f"  {'':<{label}}  0{scale:>{_WIDTH - 1}}", f"  {_LEGEND}"]


def evidence(sharing: Sharing) -> list[str]:
    """What the answer is made of, two lines for each card."""
    lines = []
    for card in sharing.cards:
        said = f"{card.card}: {card.word}; {card.tasks} tasks, at most {card.most} on at once, "
        said += f"{card.dropped} DROP_LOCK, {card.left} times from the card to the queue"
        lines.append(said)
        if sharing.timed:
            part = f"  two or more wanted the card for {card.contended:.1f} s, and were on it for {card.together:.1f} s"
            both = card.progress_together
            lines.append(part if both is None else f"{part}; progress of two or more overlaps in {both:.0%} of theirs")
        else:
            lines.append("  judged by the order of the lines only: the log has no times")
    return lines


def picture(story: Story, sharing: Sharing) -> str:
    """The timeline as an SVG file of its own."""
    return concurrency.picture(content(story, sharing, None), f"nvshare: {sharing.word}")
