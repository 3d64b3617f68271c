"""How tasks shared their cards: parallel, serial or mixed. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from nvshare.acceptance.concurrency.story import Story, Task, Unreadable
from nvshare.bench import spans
from nvshare.bench.columns import Column, Compared, Row, percent
from nvshare.bench.spans import Span

PARALLEL, SERIAL, MIXED = "parallel", "serial", "mixed"
UNCLEAR = "unclear"  # one card among others
_MOST, _LEAST = 0.9, 0.1  # of the time in which two or more tasks wanted the card
_ENOUGH = 1.0  # seconds that tasks must meet if the log ends before they do
_HARDLY = 0.01  # of the contended time; one task that follows another may seem to overlap so long


def _counted(name: str) -> Compared:
    """A count in which there is no chance, and more is neither better nor worse."""
    return Compared(name, 0, "{:.0f}", chance=lambda card: 0.0)


def _part(card: Row) -> float | None:
    return card["together"] / card["contended"] if card["contended"] else None


_PART = Compared("had by two, of the time wanted by two", 0, value=_part)


@dataclass(frozen=True)
class CardSharing:
    """``together``: how long two or more tasks had the card. ``contended``: how long two or more wanted it."""

    card: Annotated[str, Column("card")]
    word: Annotated[str, Column("verdict")]
    tasks: Annotated[int, Column("tasks", compared=_counted("tasks"))]
    most: Annotated[int, Column("at once", compared=_counted("at once, the most"))]
    together: Annotated[float, Column("had by two", "{:.1f} s", compared=_PART)]
    contended: Annotated[float, Column("wanted by two", "{:.1f} s")]
    dropped: Annotated[int, Column("DROP_LOCK")]
    left: Annotated[int, Column("to the queue", compared=_counted("times to the queue"))]
    # Part of the time in which two or more reported progress at all.
    progress_together: Annotated[float | None, Column("progress together", percent)]


@dataclass(frozen=True)
class Sharing:
    word: str
    timed: bool
    cards: Sequence[CardSharing]

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.word, "timed": self.timed, "cards": [vars(card) for card in self.cards]}


def judge(story: Story) -> Sharing:
    """``Unreadable`` where no two tasks met on a card, or only just before the log ends."""
    if len(story.tasks) < 2:
        count = "one task" if story.tasks else "no task"
        raise Unreadable(f"{count} in these logs: two or more are needed to tell how they share a card")
    found = [_card(story, card) for card in story.cards]
    judged = [card for card in found if card is not None]
    if not judged:
        raise Unreadable("no two tasks were on one card at the same time, or waited for it: there is nothing to tell")
    words = {card.word for card in judged if card.word != UNCLEAR}
    if not words:
        raise Unreadable(_too_little(story, judged))
    return Sharing(words.pop() if len(words) == 1 else MIXED, story.timed, judged)


def _card(story: Story, card: str) -> CardSharing | None:
    tasks = story.on_card(card)
    wanting = [spans.merged([*task.on, *task.waited]) for task in tasks]
    contended = spans.length(spans.at_once(wanting))
    if not contended:
        return None
    holding = [spans.merged(task.on) for task in tasks]
    together = spans.length(spans.at_once(holding))
    hardly = _HARDLY * contended if story.timed else 0.0
    most = max(count for count in range(len(tasks) + 1) if not count or _at_most(holding, count) > hardly)
    left = sum(task.left for task in tasks)
    progress = _progress_together(tasks)
    word = _timed(together / contended, left, progress) if story.timed else _ordered(most, left)
    if word == PARALLEL and _just_met(tasks, contended, story.timed):
        word = UNCLEAR
    return CardSharing(
        card, word, len(tasks), most, together, contended, sum(task.dropped for task in tasks), left, progress
    )


def _just_met(tasks: Sequence[Task], contended: float, timed: bool) -> bool:
    """Whether the log ends so soon after two tasks met that one may still have to leave. Without times: before any of
    them has ended or left."""
    if sum(task.goes_on for task in tasks) < 2:
        return False
    if timed:
        return contended < _ENOUGH
    return all(task.goes_on and not task.dropped and not task.left for task in tasks)


def _too_little(story: Story, cards: Sequence[CardSharing]) -> str:
    if not story.timed:
        return (
            "too little to tell: the log has no times and ends before any of the tasks that met has ended or left the "
            "card; give a longer one, or one with times"
        )
    longest = max(card.contended for card in cards)
    return f"too little to tell: the log ends {longest:.2g} s after two tasks met on a card; give a longer one"


def _at_most(holding: Sequence[Sequence[Span]], count: int) -> float:
    return spans.length(spans.at_once(holding, count))


def _timed(part: float, left: int, progress: float | None) -> str:
    if part <= _LEAST:
        return SERIAL
    together = part >= _MOST and not left
    return PARALLEL if together and (progress is None or progress > _LEAST) else MIXED


def _ordered(most: int, left: int) -> str:
    if most < 2:
        return SERIAL
    return MIXED if left else PARALLEL


def _progress_together(tasks: Sequence[Task]) -> float | None:
    """The part of the time between first and last reports in which two or more made progress at once."""
    reported = [task.progress for task in tasks if task.progress]
    whole = [[Span(each[0].begin, each[-1].end)] for each in reported]
    both = spans.length(spans.at_once(whole))
    return spans.length(spans.at_once(reported)) / both if both else None
