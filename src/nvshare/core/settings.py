"""Settings of the scheduler core, with their bounds and defaults."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from nvshare.cores import Cores as Cores  # noqa: PLC0414 (the core knows it from here)

QUANTUM_MIN = 1.0  # seconds; a fixed quantum lies between this and max_runtime
MAX_RUNTIME_MIN = 10.0  # seconds
MAX_GPUS = 16  # that one client may have attached
SIZE_MAX = 1 << 56  # bytes; no card, host or quota is larger, so a larger figure is a mistake or a lie


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


class SliceEnd(enum.IntEnum):
    """Why a slice is over."""

    ENDED = 0  # its time is used up
    IDLE = 1  # nothing to do for a while
    TOLD = 2
    OVERRUN = 3  # what was submitted did not end in time; it runs on beside the others


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
    sleeps: bool = True  # clients are put to sleep where their contexts are in the way
    sleep_after: float | None = None  # seconds without work after which they are anyway; None: never
    host_budget: int | None = None  # bytes that may be allocated beyond the cards, in host memory; None: any number

    def changed(
        self,
        *,
        mode: Mode | None = None,
        anti_thrash: bool | None = None,
        switch_time: SwitchTime | None = None,
        quantum: float | None = None,
        max_runtime: float | None = None,
    ) -> Settings:
        """These settings with an operator's changes; None leaves one as it is, a quantum alone makes it the fixed one.

        ``ValueError`` names the value and the allowed range.
        """
        longest = self.max_runtime if max_runtime is None else max_runtime
        if not MAX_RUNTIME_MIN <= longest < float("inf"):
            raise ValueError(f"max runtime {longest:g} s is not allowed: {MAX_RUNTIME_MIN:g} s or more")
        if quantum is not None and not QUANTUM_MIN <= quantum <= longest:
            raise ValueError(
                f"quantum {quantum:g} s is not allowed: {QUANTUM_MIN:g} to {longest:g} s (the max runtime per task)"
            )
        if quantum is not None and switch_time is None:
            switch_time = SwitchTime.FIXED
        return replace(
            self,
            mode=self.mode if mode is None else mode,
            anti_thrash=self.anti_thrash if anti_thrash is None else anti_thrash,
            switch_time=self.switch_time if switch_time is None else switch_time,
            quantum=self.quantum if quantum is None else quantum,
            max_runtime=longest,
        )

    def operable(self) -> dict[str, str | bool | float | None]:
        """What an operator can change, by the names that people use. The quantum is None where it follows from what a
        switch costs."""
        fixed = self.switch_time is SwitchTime.FIXED
        return {"mode": self.mode.value, "anti_thrash": self.anti_thrash, "quantum": self.quantum if fixed else None}

    def as_started(self, configured: Settings) -> Settings:
        """These settings without an operator's changes."""
        return replace(
            self,
            mode=configured.mode,
            anti_thrash=configured.anti_thrash,
            switch_time=configured.switch_time,
            quantum=configured.quantum,
        )
