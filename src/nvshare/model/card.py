"""A modelled card: memory that fills up, and engines that its users share."""

from __future__ import annotations

from nvshare.gpu.profiles import Profile
from nvshare.model.engine import Engine, Signal
from nvshare.model.fluid import Fluid


class OutOfMemory(Exception):
    """The card is full, or the scheduler said no."""


class Card:
    """One GPU: its memory, its compute engine, its copy engines."""

    def __init__(self, engine: Engine, uuid: str, profile: Profile) -> None:
        self.uuid = uuid
        self.profile = profile
        self.compute = Fluid(engine, profile.timeslice_efficiency)
        self.h2d = Fluid(engine, 1.0, self._link_changed)
        self.d2h = Fluid(engine, 1.0, self._link_changed)
        self.copied_bytes = 0
        self._used: dict[int, int] = {}

    def open_context(self, user: int) -> None:
        self.allocate(user, self.profile.context_bytes)

    def close_context(self, user: int) -> None:
        """The process is gone: its memory is free, its work is off the card."""
        self._used.pop(user, None)
        for engine in (self.compute, self.h2d, self.d2h):
            engine.cancel(user)

    def allocate(self, user: int, size: int) -> None:
        if sum(self._used.values()) + size > self.profile.memory_bytes:
            raise OutOfMemory(f"{size} bytes do not fit on {self.uuid}")
        self._used[user] = self._used.get(user, 0) + size

    def free(self, user: int, size: int) -> None:
        self._used[user] -= size

    def copy_in(self, user: int, size: int) -> Signal:
        """From ordinary host memory, as the workloads copy."""
        return self._copy(self.h2d, user, size, self.profile.pageable_h2d)

    def copy_out(self, user: int, size: int) -> Signal:
        """To ordinary host memory."""
        return self._copy(self.d2h, user, size, self.profile.pageable_d2h)

    def fetch(self, user: int, size: int) -> Signal:
        """From pinned host memory, as memory comes back."""
        return self._copy(self.h2d, user, size, self.profile.link_h2d)

    def write_back(self, user: int, size: int) -> Signal:
        """To pinned host memory, as memory leaves."""
        return self._copy(self.d2h, user, size, self.profile.link_d2h)

    def _copy(self, engine: Fluid, user: int, size: int, rate: float) -> Signal:
        self.copied_bytes += size
        return engine.submit(user, size / rate)

    def _link_changed(self) -> None:
        """Both directions at once go slower than each alone."""
        profile = self.profile
        both = self.h2d.busy and self.d2h.busy
        self.h2d.set_pace(profile.link_duplex / profile.link_h2d if both else 1.0)
        self.d2h.set_pace(profile.link_duplex / profile.link_d2h if both else 1.0)
