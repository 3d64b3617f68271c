"""First come, first served (FCFS), in sets that fit.

Guarantees: the set is a prefix of the order of arrival, so no client is overtaken and none starves. Its needs together
fit into what is free. It is never empty while the whole card is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def fitting_set(waiting: Iterable[T], need: Callable[[T], int], capacity: int) -> list[T]:
    """The longest prefix of ``waiting`` whose needs together are at most ``capacity``; looks at one more at most."""
    chosen: list[T] = []
    for one in waiting:
        capacity -= need(one)
        if capacity < 0:
            break
        chosen.append(one)
    return chosen
