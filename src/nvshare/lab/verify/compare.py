"""Two busy tasks in every way to share a card: natively (the driver's time-slicing), under nvshare, under MPS."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.lab.compute import live
from nvshare.lab.compute.crew import WorkerFailed
from nvshare.lab.compute.kinds import ADD
from nvshare.lab.compute.rows import Row
from nvshare.lab.compute.scenarios import free
from nvshare.lab.processes import Place
from nvshare.lab.verify.ground import KIT

_START = 0.5  # seconds


def compare(place: Place, size: int, seconds: float) -> Iterator[Row]:
    """Each task with so many bytes; shares of the speed that one has alone and natively."""
    with live.on(place, KIT, seconds, _START, lambda passed: None, with_mps=True, size=size) as stage:
        try:
            yield from free(stage, [(ADD, ADD)])
        except WorkerFailed as error:
            yield Row("free", "the rest", ok=False, note=str(error))
