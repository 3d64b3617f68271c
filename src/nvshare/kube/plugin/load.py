"""What the scheduler sees happening on the cards: the tie-break between cards with as many tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvshare.client.connection import Connection, SchedulerError
from nvshare.kube.plugin.placement import NO_LOAD, Load

_PATIENCE = 0.5  # seconds: a placement does not wait long for what is only a tie-break
_WINDOW = 1  # of the windows over which status tells delivered time: the last 10 s


def load_of(status: Mapping[str, Any]) -> dict[str, Load]:
    """By card, from the scheduler's status."""
    found: dict[str, Load] = {}
    for client in status.get("clients", ()):
        for place in client.get("gpus", ()):
            busy, allocated = found.get(place["uuid"], NO_LOAD)
            found[place["uuid"]] = (busy + place["delivered"][_WINDOW], allocated + place["allocated"])
    return {uuid: (round(busy, 2), allocated) for uuid, (busy, allocated) in found.items()}


def _ask(socket: Path) -> dict[str, Load]:
    try:
        with Connection(socket, timeout=_PATIENCE) as connection:
            return load_of(connection.status())
    except (SchedulerError, KeyError, IndexError, TypeError):
        return {}  # not there, or of another release: then there is no tie-break


async def current(socket: Path) -> dict[str, Load]:
    """Nothing where no scheduler answers."""
    return await asyncio.to_thread(_ask, socket)
