"""Places where real processes run: a simulated node of our own, or the GPUs of this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from nvshare import config
from nvshare.client.spawn import is_running
from nvshare.gpu import sim
from nvshare.gpu.cards import NvmlCards
from nvshare.gpu.profiles import Profile, parse_node
from nvshare.lab.processes import Place


@contextlib.contextmanager
def simulated(spec: str, speed: float, purpose: str, profile: Profile | None = None) -> Iterator[Place]:
    """A fresh simulated node that nobody else uses; it and its scheduler are gone afterwards."""
    count, plain = parse_node(spec)
    node = sim.up(spec, speed=speed, name=f"{purpose}-{os.getpid()}", profile=profile)
    try:
        yield Place(
            source="simulated",
            title=f"{count} x {plain.name} (simulated)",
            uuids=node.uuids,
            socket=node.socket,
            variables=node.env(),
            speed=speed,
            copied=lambda: _copied(node),
        )
    finally:
        sim.down(node.name)


def _copied(node: sim.SimNode) -> int:
    return sum(counters["bytes_h2d"] + counters["bytes_d2h"] for counters in node.counters())


def real() -> Place:
    """The GPUs of this machine and the scheduler that is there or will be started; ``NoCards`` when there is none."""
    source = NvmlCards()
    try:
        cards = source.cards()
    finally:
        source.close()
    socket = config.find_socket()
    if socket == config.SYSTEM_SOCKET and not is_running(socket):
        socket = config.user_socket()
    names = sorted({card.name for card in cards})
    return Place(
        source="gpu",
        title=f"{len(cards)} x {' and '.join(names)}",
        uuids=tuple(card.uuid for card in cards),
        socket=socket,
        variables={},
    )
