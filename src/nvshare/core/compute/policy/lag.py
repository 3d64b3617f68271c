"""Lag: what a group is owed of a card, after start-time fair queueing and EEVDF.

*Virtual time* of a group grows by used / share. The card's virtual time V is the mean of its groups' virtual times,
weighted with their shares, as in EEVDF (Stoica and Abdel-Wahab, 1995). A group's lag is share * (V - virtual), in
seconds of the card: positive when the group has had less than its share. Lags of a card's groups add up to zero.

Lag survives a sleep within ``LONG``, as in start-time fair queueing (Goyal, Vin and Cheng, 1996) a flow that comes
back begins no earlier than the virtual time, less what the bound allows. So a task that thinks is served when it wakes,
and one that slept for long is not owed all of it. One that was away for seconds begins level with the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Owed(Protocol):
    """What lag is computed from."""

    @property
    def share(self) -> float: ...

    @property
    def virtual(self) -> float: ...


@dataclass(frozen=True)
class Standing:
    """One group's virtual time and share."""

    virtual: float
    share: float


def virtual_time(groups: Iterable[Owed]) -> float | None:
    """V of a card with these groups; None without any."""
    total = weighted = 0.0
    for group in groups:
        total += group.share
        weighted += group.share * group.virtual
    return weighted / total if total else None


def lag(group: Owed, time: float) -> float:
    """Seconds of the card that the group is owed at virtual time ``time``."""
    return group.share * (time - group.virtual)


def bounded(group: Owed, time: float, most: float) -> float:
    """The group's virtual time, such that its lag lies between ``-most`` and ``most``."""
    reach = most / group.share
    return min(max(group.virtual, time - reach), time + reach)


def rescaled(group: Owed, time: float, share: float) -> float:
    """The group's virtual time after its share changed: its lag stays what it is."""
    return time - lag(group, time) / share
