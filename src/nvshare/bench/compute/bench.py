"""All parts, one after the other, on one stage; rows come as they are found."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from nvshare.bench.compute import live
from nvshare.bench.compute.rows import Row
from nvshare.bench.compute.scenarios import PARTS
from nvshare.bench.compute.stage import Rehearsal
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed

START_PART = 0.25  # of a window: how long tasks run in before one
BEGIN_SECONDS = {"gpu": 25.0, "simulated": 5.0}  # of a part, until all its processes are ready


class NoTorch(Exception):
    """The workloads of a real card need PyTorch."""

    def __init__(self) -> None:
        super().__init__(
            "bench compute on a real card computes with PyTorch, which this Python does not have: install torch beside "
            "nvshare, or use --sim H200 (simulated)"
        )


def kit_for(venue: Venue) -> str:
    """What the workers compute with."""
    if venue.source != "gpu":
        return "driver"
    if importlib.util.find_spec("torch") is None:
        raise NoTorch
    return "torch"


def scene_seconds(part: str, seconds: float, with_mps: bool) -> float:
    """How long the scenes of a part take, from playing them all in no time."""
    rehearsal = Rehearsal(seconds, START_PART * seconds, mps=None if with_mps else "not here")
    for _ in PARTS[part](rehearsal):
        pass
    return rehearsal.clock


@dataclass
class ComputeBench:
    """``told`` hears how many more of the estimated seconds of scenes have passed."""

    venue: Venue
    seconds: float
    told: Callable[[float], None] = lambda _: None
    versions: dict[str, str] = field(default_factory=dict)

    def rows(self, parts: Sequence[str]) -> Iterator[Row]:
        """Parts share a stage, so that processes are started once; after one that failed, the next has a new one."""
        kit = kit_for(self.venue)
        left = list(parts)
        while left:
            with self._stage(kit, left) as stage:
                while left:
                    part = left.pop(0)
                    try:
                        for row in PARTS[part](stage):
                            self.versions |= stage.versions
                            yield row
                    except WorkerFailed as error:
                        yield Row(part, "the rest of this part", ok=False, note=str(error))
                        break

    def _stage(self, kit: str, parts: Sequence[str]) -> AbstractContextManager[live.LiveStage]:
        start = START_PART * self.seconds
        return live.on(self.venue, kit, self.seconds, start, self.told, with_mps="free" in parts)

    def conditions(self) -> dict[str, Any]:
        """What was measured on what, with what."""
        return {"machine": {"node": self.venue.title}, "versions": dict(self.versions), "seconds": self.seconds}
