"""Demand for compute: the part of a card's time that a client uses when nothing keeps it from doing so, as measured.

Guarantees: where memory makes clients take turns, clients whose turns overlap do not want more of the card's time than
there is, as far as is known. Side by side they would only be slower, by what time-slicing costs. One client may always
run. A client that was not measured yet counts as busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WHOLE = 1.1  # of a card's time; measured demands are estimates
SPAN = 2.0  # seconds that the moving average looks back


def measured(demand: float, used: float, seconds: float) -> float:
    """The demand of a client that used the card for ``used`` of the ``seconds`` in which it could have."""
    if seconds <= 0.0:
        return demand
    now = max(0.0, min(1.0, used / seconds))
    return demand + (now - demand) * min(1.0, seconds / SPAN)


def compatible(waiting: Sequence[float], running: Iterable[float]) -> int:
    """How many of ``waiting``, from the first on, may run beside ``running`` and each other, by their demands."""
    wanted = list(running)
    for count, demand in enumerate(waiting):
        wanted.append(demand)
        if len(wanted) > 1 and sum(wanted) > WHOLE:
            return count
    return len(waiting)
