"""Where a stress test happens: its address, cards and directory, and the mark that all its processes carry."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from nvshare import procfs
from nvshare.acceptance.stress.meter import Meter
from nvshare.acceptance.stress.verdicts import State
from nvshare.acceptance.waiting import eventually
from nvshare.client.connection import Connection
from nvshare.launch.address import Address, Cards
from nvshare.launch.leasing import Site

MARK = "NVSHARE_STRESS"  # in the environment of every process of a test


@dataclass(frozen=True)
class Scene:
    address: Address
    cards: Cards
    meter: Meter
    directory: Path  # for results
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def site(self) -> Site:
        return Site(self.address, self.cards)

    @property
    def marked(self) -> dict[str, str]:
        return {MARK: self.mark}

    def processes(self) -> frozenset[int]:
        """Every process of this test, also those whose parent has died."""
        numbers = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        return frozenset(pid for pid in numbers if procfs.variable(pid, MARK) == self.mark and procfs.start_time(pid))

    def leases(self) -> frozenset[str]:
        with Connection(self.address.socket) as connection:
            return frozenset(lease["id"] for lease in connection.status()["leases"])

    def state(self) -> State:
        contexts = {uuid: frozenset(pids) for uuid, pids in self.meter.processes().items()}
        return State(self.processes(), contexts, self.meter.memory(), self.leases())

    def restored(self, before: State, tolerance: int, patience: float) -> State:
        """The state once nothing of this test is left, or after ``patience`` seconds."""

        def clean() -> bool:
            now = self.state()
            contexts = all(pids <= before.contexts.get(uuid, frozenset()) for uuid, pids in now.contexts.items())
            memory = all(used - before.memory.get(uuid, 0) <= tolerance for uuid, used in now.memory.items())
            return now.leases <= before.leases and now.processes <= before.processes and contexts and memory

        eventually(clean, patience)
        return self.state()
