"""Settings of the scheduler core, with their bounds and defaults."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Mode(enum.Enum):
    AUTO = "auto"  # together when memory fits, in turns when not
    SERIAL = "serial"  # one task at a time per GPU
    CONCURRENT = "concurrent"  # all at once, time-sliced


class SwitchTime(enum.Enum):
    AUTO = "auto"  # the quantum follows from what a switch costs
    FIXED = "fixed"


class Priority(enum.IntEnum):
    NORMAL = 0
    HIGH = 1


class DenyReason(enum.IntEnum):
    QUOTA = 1
    CARD = 2
    HOST = 3


@dataclass(frozen=True)
class Settings:
    mode: Mode = Mode.AUTO
    anti_thrash: bool = True
    switch_time: SwitchTime = SwitchTime.AUTO
    quantum: float = 30.0  # seconds, when fixed
    multiplier: float = 5.0
    max_runtime: float = 300.0
    reserve_percent: int = 0  # part of each card kept free
    drain_deadline: float = 10.0  # seconds a client has to drain before it counts as stuck
    compute_window: float = 2.0
