"""What a supervisor is told: the lease to get, the command to start in it, and how to talk to the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvshare import config, native
from nvshare.cores import Cores
from nvshare.launch.address import PACKAGE_PARENT, Address, Cards
from nvshare.wire import messages as wire

_LOG = logging.getLogger("nvshare")

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_WIRE = {
    "header": wire.HEADER.format,
    "magic": wire.MAGIC,
    "version": wire.VERSION,
    "control": int(wire.MessageType.CONTROL),
    "reply": int(wire.MessageType.CONTROL_REPLY),
    "refused": int(wire.MessageType.REFUSED),
}


@dataclass(frozen=True)
class Wish:
    """A lease to ask for. ``among``: the cards it may be on; empty: no lease and no GPU, the CPU only."""

    mem: int | None = None
    cores: Cores | None = None
    gpus: int = 1
    among: tuple[str, ...] = ()
    label: str = ""
    timeout: float | None = None  # seconds to wait for it

    def fields(self) -> dict[str, Any]:
        """The scheduler's request."""
        return {
            "mem": self.mem,
            "cores": None if self.cores is None else self.cores.plain,
            "gpus": self.gpus,
            "among": list(self.among),
            "label": self.label[:64],
        }


@dataclass(frozen=True)
class Order:
    argv: Sequence[str]
    address: Address
    wish: Wish
    cards: Cards | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # beyond those of the address
    cwd: str | None = None
    fds: tuple[int, ...] = ()  # that the worker inherits
    grace: float = GRACE

    def to_dict(self, launcher: int) -> dict[str, Any]:
        """As the supervisor reads it."""
        on_gpu = bool(self.wish.among)
        return {
            "argv": list(self.argv),
            "env": self._environment(),
            "cwd": self.cwd,
            "fds": list(self.fds),
            "grace": self.grace,
            "launcher": launcher,
            "socket": str(self.address.socket.absolute()) if on_gpu else None,
            "request": self.wish.fields(),
            "timeout": self.wish.timeout,
            "index": {uuid: number for number, uuid in enumerate(self.cards.all)} if self.cards else {},
            "wire": _WIRE,
            "lease_variable": config.LEASE_VARIABLE,
        }

    def _environment(self) -> dict[str, str]:
        address, wish = self.address, self.wish
        if not wish.among:
            return cpu_environment({**address.environment, **self.variables})
        return {**lease_environment(address, wish), **self.variables}


def warn_if_inside(inside: str | None) -> None:
    """``inside``: the pod, run or lease that a lease's processes belong to instead, as the scheduler says."""
    if inside is not None:
        _LOG.warning("inside %s: its quotas count, not those of the lease", inside.replace(":", " ", 1))


def lease_environment(address: Address, wish: Wish) -> dict[str, str]:
    """The environment of a process in a lease, but for what only the granted lease says."""
    changes = {"NVSHARE_SOCK": str(address.socket), "LD_PRELOAD": config.preload_with(native.interposer())}
    changes["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if wish.mem is not None:
        changes["NVSHARE_GPU_MEMORY_LIMIT"] = str(wish.mem)
    if wish.cores is not None:
        changes["NVSHARE_GPU_CORE_LIMIT"] = str(wish.cores)
    return {**address.environment, **changes}


def cpu_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Of a process that is to see no GPU, and its children neither."""
    shown = {name: value for name, value in environment.items() if name != config.LEASE_VARIABLE}
    return {**shown, "CUDA_VISIBLE_DEVICES": ""}


def with_package(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """``PYTHONPATH`` that finds this very package."""
    path = config.child_environment({}, environment).get("PYTHONPATH", "")
    return {"PYTHONPATH": ":".join(filter(None, [str(PACKAGE_PARENT), path]))}
