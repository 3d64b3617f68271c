"""First come, first served (FCFS), in sets that fit.

Guarantees: the set is always a prefix of the order of arrival, so nobody is overtaken and nobody starves; it is never
empty while the whole card is free; and its needs fit together into what is free. In serial mode every client needs the
whole card, so the set is one.
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
