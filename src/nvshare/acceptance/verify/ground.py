"""Where checks happen: a node, its scheduler, and the processes that checks start and end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nvshare.bench.compute.kinds import ADD
from nvshare.bench.compute.live import LiveStage
from nvshare.bench.compute.workers import NVSHARE, Name, Workers
from nvshare.bench.processes import Venue
from nvshare.bench.worker import Worker
from nvshare.client.connection import Connection
from nvshare.launch.address import Address, Cards
from nvshare.launch.leasing import Lease, Site, wish_for

PROBE = ("-m", "nvshare.acceptance.verify.probe")
START = 0.3  # seconds that tasks run in before they are watched
GPU = 0  # the card of all checks except "spread"
_SMALL_PART = 8  # two tasks of one eighth of the card fit
_LARGE = 0.6  # of the card; two such tasks do not fit
_GRANULE = 2 << 20
KIT = "driver"


def task(number: int, how: str = NVSHARE) -> Name:
    return Name(how, ADD, number)


@dataclass(frozen=True)
class Ground:
    """``card_memory``: bytes that all tasks together may have on a card. ``seconds``: how long tasks are watched.
    ``own_scheduler``: the scheduler was started for these checks, so they may kill it."""

    venue: Venue
    card_memory: int
    seconds: float
    own_scheduler: bool

    @property
    def small(self) -> int:
        return self.card_memory // _SMALL_PART // _GRANULE * _GRANULE

    @property
    def large(self) -> int:
        return int(self.card_memory * _LARGE) // _GRANULE * _GRANULE

    @contextlib.contextmanager
    def crew(self, size: int, variables: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[Workers]:
        """Workers under nvshare with ``size`` bytes each; ``variables`` are added by how a worker runs."""
        shared = self.venue.shared_environment(GPU)
        environments = {how: {**shared, **more} for how, more in (variables or {}).items()}
        with Workers(KIT, {NVSHARE: shared, **environments}, reference=NVSHARE, size=size) as crew:
            yield crew

    @contextlib.contextmanager
    def stage(self, crew: Workers) -> Iterator[LiveStage]:
        with Connection(self.venue.socket) as connection:
            stage = LiveStage(crew, connection, self.seconds, START, None, lambda seconds: None)
            try:
                yield stage
            finally:
                stage.restore()

    @contextlib.contextmanager
    def probe(self, environment: Mapping[str, str]) -> Iterator[Worker]:
        """A process that allocates when it is told to."""
        worker = Worker(Name(NVSHARE, "probe"), [sys.executable, *PROBE, KIT], environment)
        try:
            yield worker
        finally:
            worker.dismiss()
            worker.close()

    def shared_environment(self, **variables: str) -> dict[str, str]:
        return {**self.venue.shared_environment(GPU), **variables}

    @contextlib.contextmanager
    def lease(self, mem: int | None = None) -> Iterator[Lease]:
        venue = self.venue
        sizes = dict.fromkeys(venue.uuids, self.card_memory)
        site = Site(Address(venue.socket, venue.variables), Cards(venue.uuids, venue.uuids, sizes))
        lease = Lease(site, wish_for(mem, None, label="nvshare verify", timeout=10.0))
        lease.acquire()
        try:
            yield lease
        finally:
            lease.release()

    def lease_environment(self, lease: Lease) -> dict[str, str]:
        """The environment of a process in a lease that finds the package of a source tree."""
        return {**lease.env(), "PYTHONPATH": self.shared_environment()["PYTHONPATH"]}

    def status(self) -> dict[str, Any]:
        with Connection(self.venue.socket) as connection:
            return connection.status()

    def card(self) -> dict[str, Any]:
        """The scheduler's view of the card that checks happen on."""
        uuid = self.venue.uuids[GPU]
        found: dict[str, Any] = next(gpu for gpu in self.status()["gpus"] if gpu["uuid"] == uuid)
        return found
