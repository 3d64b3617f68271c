"""Who did what when, as bars of letters. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvshare.bench.spans import Span, covered

Did = Mapping[str, Sequence[Span]]  # from a letter to the spans it stands for


def bars(tasks: Mapping[str, Did], begin: float, end: float, width: int, rest: str) -> list[str]:
    """A line per task. Each letter stands for what the task did in most of that time, ``rest`` for nothing of it."""
    label = max(map(len, tasks), default=0)
    cell = (end - begin) / width or 1.0
    lefts = [begin + number * cell for number in range(width)]
    return [
        f"{task:<{label}}  {''.join(_letter(did, left, left + cell, rest) for left in lefts)}"
        for task, did in tasks.items()
    ]


def _letter(did: Did, left: float, right: float, rest: str) -> str:
    part = {letter: covered(spans, left, right) for letter, spans in did.items()}
    return rest if sum(part.values()) * 2 < right - left else max(part, key=lambda letter: part[letter])
