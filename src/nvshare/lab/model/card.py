"""A modelled card: memory that fills up, and engines that its users share."""

from __future__ import annotations

from nvshare.gpu.profiles import Profile
from nvshare.lab.model.engine import Engine, Signal
from nvshare.lab.model.fluid import Fluid


class OutOfMemory(Exception):
    """The card is full, or the scheduler said no."""


class Card:
    """One GPU: its memory, its compute engine, its copy engines."""

    def __init__(self, engine: Engine, uuid: str, profile: Profile) -> None:
        self.uuid = uuid
        self.profile = profile
        self.compute = Fluid(engine, profile.timeslice_efficiency)
        self.h2d = Fluid(engine, 1.0)
        self.d2h = Fluid(engine, 1.0)
        self.copied_bytes = 0
        self._used: dict[int, int] = {}

    def open_context(self, user: int) -> None:
        self.allocate(user, self.profile.context_bytes)

    def close_context(self, user: int) -> None:
        self._used.pop(user, None)

    def allocate(self, user: int, size: int) -> None:
        if sum(self._used.values()) + size > self.profile.memory_bytes:
            raise OutOfMemory(f"{size} bytes do not fit on {self.uuid}")
        self._used[user] = self._used.get(user, 0) + size

    def copy_in(self, user: int, size: int) -> Signal:
        """From ordinary host memory, as the workloads copy."""
        self.copied_bytes += size
        return self.h2d.submit(user, size / self.profile.pageable_h2d)

    def copy_out(self, user: int, size: int) -> Signal:
        """To ordinary host memory."""
        self.copied_bytes += size
        return self.d2h.submit(user, size / self.profile.pageable_d2h)
