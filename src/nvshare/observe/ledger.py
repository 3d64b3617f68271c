"""Counters of tasks that never go back, whatever becomes of their processes.

A series counts what all processes of a task used, also of those that have ended. Ten minutes after the last of them it
ends. A process that registers with another scheduler goes on where it was.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator

from nvshare.observe.families import Family
from nvshare.observe.figures import Sample, Status, Task, attachments, counted

KEPT_S = 600.0  # seconds for which the counters of a task are shown after its end
REMEMBERED = 20_000  # processes on cards, those that ended too

_Key = tuple[Family, tuple[str, ...]]  # a family, and its labels beyond those of the task


class Ledger:
    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], dict[_Key, float]] = OrderedDict()  # by client and card
        self._totals: dict[Task, dict[_Key, float]] = {}
        self._seen: dict[Task, float] = {}

    def book(self, status: Status, now: float) -> None:
        """Add what was used since the last status."""
        for task, client, view in attachments(status):
            totals = self._totals.setdefault(task, defaultdict(float))
            self._seen[task] = now
            who = client["id"], view["uuid"]
            last = self._last.setdefault(who, {})
            self._last.move_to_end(who)
            for family, labels, value in counted(view):
                before = last.get((family, labels), 0.0)
                totals[family, labels] += value - before if value >= before else value
                last[family, labels] = value
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    def samples(self, now: float) -> Iterator[Sample]:
        """The counters of all tasks, those of ended tasks too, for a while."""
        for task in [task for task, seen in self._seen.items() if now - seen > KEPT_S]:
            del self._seen[task], self._totals[task]
        for task, totals in self._totals.items():
            for (family, labels), value in totals.items():
                yield Sample(family, (*task, *labels), value)
