"""What switches cost, as seen from outside: the scheduler's own account of its last switch, asked for often enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvshare.bench.outcome import Turns
from nvshare.client.connection import SchedulerError

PERIOD = 0.1  # seconds between two questions: a turn lasts at least a second


@dataclass(frozen=True)
class Switch:
    """One switch of one card, as the scheduler tells it. Seconds are wall-clock ones."""

    out_bytes: int
    in_bytes: int
    seconds: float  # from the end of the turn before, its drain included
    stall: float  # nobody had the card


class SwitchWatch:
    """Use as a context: collects every switch that happens inside."""

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        seen: Callable[[float, dict[str, Any]], None] = lambda now, status: None,
    ) -> None:
        """``seen`` is told each answer too, with the time on the monotonic clock."""
        self._status = status
        self._tell = seen
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen: dict[str, dict[str, Any] | None] = {}
        self._counted_first = self._counted = 0
        self.switches: list[Switch] = []

    def __enter__(self) -> SwitchWatch:
        self._look(first=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def turns(
        self, copied: tuple[int, int] | None, before: tuple[int, int] | None, own: tuple[int, int], speed: float
    ) -> Turns:
        """All of them together, in the card's seconds. Bytes come from the driver's counters (to the card, from it)
        where it has any, less what the workloads copied themselves; else from the scheduler's account. The first switch
        counts what came before the watch too, so it cannot be the largest."""
        seen = self.switches
        count = max(len(seen), self._counted - self._counted_first)
        scale = speed * count / len(seen) if seen else 0.0  # one that followed another at once may have been missed
        if copied is not None and before is not None:
            into, out = (now - then - mine for now, then, mine in zip(copied, before, own, strict=True))
        else:
            into, out = sum(switch.in_bytes for switch in seen), sum(switch.out_bytes for switch in seen)
        return Turns(
            switches=count,
            out_bytes=out,
            in_bytes=into,
            stall_s=scale * sum(switch.stall for switch in seen),
            drain_s=scale * sum(max(0.0, switch.seconds - switch.stall) for switch in seen),
            largest_bytes=max((max(switch.out_bytes, switch.in_bytes) for switch in seen[1:]), default=None),
        )

    def _watch(self) -> None:
        while not self._over.wait(PERIOD):
            self._look()
        self._look()

    def _look(self, first: bool = False) -> None:
        try:
            status = self._status()
        except SchedulerError:
            return  # it is busy or gone; the run itself will tell
        self._tell(time.monotonic(), status)
        self._counted = status["counters"]["switches"]
        if first:
            self._counted_first = self._counted
        for gpu in status["gpus"]:
            last = gpu.get("last_switch")
            if last is not None and last != self._seen.get(gpu["uuid"]) and not first:
                self.switches.append(Switch(last["bytes_out"], last["bytes_in"], last["seconds"], last["stall_s"]))
            self._seen[gpu["uuid"]] = last
