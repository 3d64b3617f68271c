"""A simulated node with its own scheduler, for workers of nvshare.launch."""

from __future__ import annotations

import os
import secrets
from typing import Any

from nvshare import procfs
from tests.support.nodes import Node
from tests.support.processes import eventually

PATIENCE = 20.0
MARK = "NVSHARE_LAUNCH_TEST"


class LaunchNode(Node):
    """Our own environment is that of the node while a test runs, as it is of a program under ``nvshare run``."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec, speed=1.0)
        self.env.pop(MARK, None)
        self.mark = secrets.token_hex(8)
        self.variables = {**self.sim.env(), MARK: self.mark}
        self.start_scheduler()

    @property
    def uuids(self) -> tuple[str, ...]:
        return self.sim.uuids

    def leases(self) -> list[dict[str, Any]]:
        leases: list[dict[str, Any]] = self.status()["leases"]
        return leases

    def processes(self) -> set[int]:
        """All that carry the mark of this test, except ourselves."""
        numbers = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - {os.getpid()}
        return {pid for pid in numbers if procfs.variable(pid, MARK) == self.mark and procfs.start_time(pid)}

    def contexts(self) -> list[int]:
        return [context["pid"] for gpu in self.sim.counters() for context in gpu["contexts"]]

    def is_clean(self) -> bool:
        return not self.processes() and not self.leases() and not self.contexts()

    def await_clean(self, patience: float = PATIENCE) -> None:
        assert eventually(self.is_clean, patience), (self.processes(), self.leases(), self.contexts())
