"""The rows of ``nvshare bench mission``: their fields, and how tables show them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from nvshare import config
from nvshare.bench import columns, survivor
from nvshare.bench.columns import JUDGED, SOURCE, Column, Compared, seconds_text
from nvshare.bench.history import CardHistory
from nvshare.bench.outcome import PLAIN, TaskResult


def _plain(row: columns.Row) -> bool:
    return bool(row["mode"] == PLAIN)


def _whole(row: columns.Row) -> bool:
    """Shared, and every task stayed to the end: its ratio says something."""
    return not _plain(row) and not row["has_survivor"]


def _moved_per_switch(row: columns.Row) -> float | None:
    return row["swapped_bytes"] / row["switches"] / columns.GIB if _whole(row) and row["switches"] else None


def _survivor(row: columns.Row) -> str:
    """``0.95s (link 0.94s)``; empty where no neighbour went."""
    if not row["has_survivor"]:
        return ""
    seconds, link = row.get("survivor_s"), row.get("survivor_limit_s")
    limit = "" if link is None else f" (link {link:.2f}s)"
    return f"{'never' if seconds is None else f'{seconds:.2f}s'}{limit}"


_DURATION = Compared("duration, s", -1, "{:.2f}", value=lambda row: row["duration_s"] if _plain(row) else None)
_RATIO = Compared("ratio", -1, value=lambda row: row["ratio"] if _whole(row) else None)
_MOVED = Compared("moved per switch, GiB", -1, "{:.2f}", value=_moved_per_switch)
_BACK = Compared("survivor, s", -1, "{:.2f}")


@dataclass(frozen=True)
class Row:
    """One line of the result.

    ``variant`` tells the rows of one test apart. ``duration_s`` is the mean over the tasks of their own loop, from the
    first add to the end of the last: the loop and not the process, because a shortened run would else measure how fast
    Python starts. Of tasks in turns it is the longest one, because their mean only says in which order they ended.
    ``ratio`` is ``duration_s`` over ``baseline_s``, the same of one plain task.
    ``survivor_s``: seconds after a neighbour's end from which on the other task runs at its solo speed again;
    ``survivor_limit_s``: what the link needs alone to bring its memory back.
    """

    test: Annotated[int, Column("test", cell=lambda row: row["name"])]
    title: Annotated[str, Column("what")]
    tasks: Annotated[int, Column("tasks")]
    gpus: int
    workload: str
    mode: Annotated[str, Column("mode")]
    duration_s: Annotated[float, Column("duration", seconds_text, compared=_DURATION)]
    baseline_s: Annotated[float, Column("baseline", seconds_text)]
    ratio: Annotated[float, Column("ratio", "{:.3f}", compared=_RATIO)]
    swapped_bytes: Annotated[int, Column("swapped", config.format_size, compared=_MOVED)]
    switches: Annotated[int, Column("switches")]
    source: Annotated[str, SOURCE]
    setup_s: float
    its: float  # of all tasks together
    details: tuple[TaskResult, ...] = ()
    messages: tuple[str, ...] = ()
    variant: str = ""
    survivor_s: Annotated[float | None, Column("survivor", cell=_survivor, compared=_BACK)] = None
    survivor_limit_s: float | None = None
    # What the model says of the same scenario, where the source is another.
    model_ratio: Annotated[float | None, Column("model", "{:.3f}")] = None
    timeline: tuple[CardHistory, ...] = ()

    @property
    def name(self) -> Annotated[str, Column()]:
        return f"{self.test}{self.variant}"

    @property
    def has_survivor(self) -> Annotated[bool, Column()]:
        """One of its tasks went before the other was done: durations say little, ``survivor_s`` much."""
        return self.variant.strip() in survivor.HOW

    @property
    def passed(self) -> Annotated[bool, JUDGED]:
        return all(task.status == task.expected for task in self.details)

    @property
    def recovered(self) -> bool:
        """The survivor, where there is one, was back in time."""
        return not self.has_survivor or (self.survivor_s is not None and self.survivor_s <= self.survivor_allowed_s)

    @property
    def survivor_allowed_s(self) -> float:
        return survivor.allowed(self.survivor_limit_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "passed": self.passed and self.recovered,
            "has_survivor": self.has_survivor,
            **asdict(self),
        }
