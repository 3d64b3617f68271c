"""What a card says of itself at one moment."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """None where the driver does not tell."""

    utilization: float | None  # part of the time in which the card worked, of late
    celsius: float | None
    watts: float | None
