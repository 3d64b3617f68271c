"""Places where real processes run: a simulated node of our own, or the GPUs of this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from nvshare import config
from nvshare.bench.machine import source_of_cards
from nvshare.bench.processes import Venue
from nvshare.client.connection import Connection, SchedulerError
from nvshare.client.spawn import IDLE_EXIT, end_unused, is_running
from nvshare.gpu import sim
from nvshare.gpu.cards import NvmlCards
from nvshare.gpu.profiles import Profile, parse_node

_SIMULATED_HOST = "1TiB"  # what lies in host memory is simulated too: sparse, however large
_DECLARED_IDLE_EXIT = 5.0  # seconds: a scheduler with another idea of the cards must not outlive the measurement


@contextlib.contextmanager
def simulated(
    spec: str, speed: float, purpose: str, profile: Profile | None = None, card_memory: int | None = None
) -> Iterator[Venue]:
    """A fresh simulated node that nobody else uses; it and its scheduler are gone afterwards."""
    count, plain = parse_node(spec)
    sim.end_abandoned()
    with sim.held(spec, speed=speed, name=f"{purpose}-{os.getpid()}", profile=profile) as node:
        yield Venue(
            source="simulated",
            title=f"{count} x {plain.name} (simulated)",
            uuids=node.uuids,
            socket=node.socket,
            variables={**node.env(), "NVSHARE_HOST_MEMORY": _SIMULATED_HOST},
            speed=speed,
            copied=lambda: _copied(node),
            profile=node.profile,
            card=plain.display_name,
            card_memory=card_memory,
        )


def _copied(node: sim.SimNode) -> tuple[int, int]:
    counters = node.counters()
    return sum(gpu["bytes_h2d"] for gpu in counters), sum(gpu["bytes_d2h"] for gpu in counters)


@contextlib.contextmanager
def real(card_memory: int | None = None) -> Iterator[Venue]:
    """The GPUs of this machine and the scheduler that is there or will be started; ``NoCards`` when there is none. One
    that was started for this is gone afterwards, unless others use it by then.

    With ``card_memory`` the scheduler declares that much of each card: one that runs and declares something else is in
    the way, which ``SchedulerError`` says.
    """
    source = NvmlCards()
    try:
        cards = source.cards()
    finally:
        source.close()
    socket = config.find_socket()
    if socket == config.SYSTEM_SOCKET and not is_running(socket):
        socket = config.user_socket()
    if card_memory is not None and is_running(socket):
        _check_declared(socket, card_memory)
    names = sorted({card.name for card in cards})
    started: list[bool] = []
    venue = Venue(
        source=source_of_cards(),
        title=f"{len(cards)} x {' and '.join(names)}",
        uuids=tuple(card.uuid for card in cards),
        socket=socket,
        variables={},
        card=names[0] if len(names) == 1 else "",
        card_memory=card_memory,
        idle_exit=IDLE_EXIT if card_memory is None else _DECLARED_IDLE_EXIT,
        starting=lambda: started.append(True),
    )
    try:
        yield venue
    finally:
        if started:
            end_unused(socket)


@contextlib.contextmanager
def chosen(spec: str | None, purpose: str, card_memory: int | None = None) -> Iterator[Venue]:
    """A simulated node that runs as fast as life; the GPUs of this machine where none is named."""
    if spec is None:
        with real(card_memory) as venue:
            yield venue
        return
    with simulated(spec, 1.0, purpose, card_memory=card_memory) as venue:
        yield venue


def _check_declared(socket: Path, card_memory: int) -> None:
    with Connection(socket) as connection:
        status = connection.request("status")["status"]
    if any(gpu["declared"] != card_memory for gpu in status["gpus"]):
        pid = status["scheduler"]["pid"]
        raise SchedulerError(
            f"the scheduler on {socket} does not declare {config.format_size(card_memory)} of each card: end it, and "
            f"one that does is started for this (kill {pid}; its tasks go on meanwhile), or start it so yourself: "
            f"nvshare-scheduler --card-memory {card_memory}"
        )
