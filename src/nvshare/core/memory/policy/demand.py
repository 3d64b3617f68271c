"""Demand for compute: which part of a card's time a client uses when nothing keeps it from doing so, as measured.

Guarantees: where memory makes clients take turns, those whose turns overlap do not want more of the card's time than
there is, as far as is known: side by side they would only be slower, by what time-slicing costs. One may always run.
Who was not measured yet counts as busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvshare.core.state import Attachment

WHOLE = 1.1  # of a card's time; measured demands are estimates
SPAN = 2.0  # seconds that the moving average looks back


def measured(demand: float, used: float, seconds: float) -> float:
    """The demand of a client that used the card for ``used`` of the ``seconds`` in which it could have."""
    if seconds <= 0.0:
        return demand
    now = max(0.0, min(1.0, used / seconds))
    return demand + (now - demand) * min(1.0, seconds / SPAN)


def compatible(waiting: Sequence[Attachment], running: Iterable[Attachment]) -> list[Attachment]:
    """The longest prefix of ``waiting`` that may run beside ``running`` and each other."""
    wanted = [attachment.demand for attachment in running]
    chosen: list[Attachment] = []
    for attachment in waiting:
        wanted.append(attachment.demand)
        if len(wanted) > 1 and sum(wanted) > WHOLE:
            break
        chosen.append(attachment)
    return chosen
