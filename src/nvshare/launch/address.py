"""Where workers run: the machine's own GPUs or a simulated node, its scheduler, and the cards they may use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvshare import config, native
from nvshare.client.connection import Connection, SchedulerError
from nvshare.client.spawn import SchedulerNotStarted, ensure_scheduler, is_running
from nvshare.gpu import sim
from nvshare.launch.errors import LaunchError, NoGpu
from nvshare.launch.visible import bound

PACKAGE_PARENT = Path(__file__).resolve().parents[2]  # so that children find this package in a source tree too
_SEEN_TIMEOUT = 30.0


@dataclass(frozen=True)
class Address:
    """The scheduler's socket and the variables of a process there that differ from ours."""

    socket: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    simulated: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        return config.child_environment(self.variables)


def find_address(spec: str | None = None, speed: float | None = None) -> Address:
    """The machine's own GPUs (or the simulated node that our environment is in), or the simulated node of this spec,
    made when it is not there. ``ValueError``, ``sim.SimError`` or ``native.NativeMissing`` when it cannot be."""
    if spec is not None:
        node = sim.up(spec, speed)
        return Address(node.socket, node.env(), node.name)
    if speed is not None:
        raise ValueError("--speed is that of a simulated node: give --sim, or leave it out")
    socket = config.find_socket()
    if socket == config.SYSTEM_SOCKET and not is_running(socket):
        socket = config.user_socket()
    return Address(socket)


@dataclass(frozen=True)
class Cards:
    """``all`` are the node's cards in the order of their indices; CUDA_VISIBLE_DEVICES leaves those in ``allowed``."""

    all: tuple[str, ...]
    allowed: tuple[str, ...]
    sizes: Mapping[str, int]
    started: bool = False  # the scheduler was started for this

    def index(self, uuid: str) -> int:
        return self.all.index(uuid)


def find_cards(address: Address) -> Cards:
    """Start a scheduler where none answers, and ask it for its cards. ``NoGpu`` where there is none to be had."""
    environment = address.environment
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    try:
        native.interposer()
        started = ensure_scheduler(address.socket, environment)
        with Connection(address.socket) as connection:
            status = connection.status()
    except SchedulerNotStarted as error:
        raise NoGpu(str(error)) from error
    except (SchedulerError, native.NativeMissing) as error:
        raise LaunchError(str(error)) from error
    cards = tuple(status["scheduler"]["cards"])
    sizes = {gpu["uuid"]: int(gpu["declared"] or gpu["total"]) for gpu in status["gpus"]}
    allowed = bound(visible, _in_cuda_order(status, cards, environment))
    return Cards(cards, allowed, sizes, started)


def _in_cuda_order(status: dict[str, Any], cards: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    """What indices in CUDA_VISIBLE_DEVICES count. CUDA's own order is that of the bus where all cards are alike, or
    where CUDA_DEVICE_ORDER says so; else only CUDA knows it."""
    alike = len({gpu["name"] for gpu in status["gpus"]}) == 1
    if alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return cards
    seen = _seen_without_bound(environment)
    return seen if set(seen) <= set(cards) and seen else cards


def _seen_without_bound(environment: Mapping[str, str]) -> tuple[str, ...]:
    shown = {name: value for name, value in environment.items() if name not in ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")}
    shown["PYTHONPATH"] = str(PACKAGE_PARENT)
    command = [sys.executable, "-m", "nvshare.launch.seen"]
    try:
        answer = subprocess.run(
            command, env=shown, capture_output=True, text=True, timeout=_SEEN_TIMEOUT, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(answer.split())
