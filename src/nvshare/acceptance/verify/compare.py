"""Two busy tasks in every way to share a card: natively (the driver's time-slicing), under nvshare, under MPS."""

from __future__ import annotations

from collections.abc import Iterator

from nvshare.acceptance.verify.ground import KIT
from nvshare.bench.compute import live
from nvshare.bench.compute.kinds import ADD
from nvshare.bench.compute.rows import Row
from nvshare.bench.compute.scenarios import free
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed

_START = 0.5  # seconds


def compare(venue: Venue, size: int, seconds: float) -> Iterator[Row]:
    """Each task has ``size`` bytes. Shares are parts of the speed that one task has alone and natively."""
    with live.on(venue, KIT, seconds, _START, lambda passed: None, with_mps=True, size=size) as stage:
        try:
            yield from free(stage, [(ADD, ADD)])
        except WorkerFailed as error:
            yield Row("free", "the rest", ok=False, note=str(error))
