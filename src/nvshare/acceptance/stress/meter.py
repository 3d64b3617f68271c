"""Memory, processes and utilization of cards as seen from outside the workers: by NVML, or from a simulated node."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from nvshare import config
from nvshare.acceptance.waiting import every
from nvshare.bench.machine import source_of_cards
from nvshare.gpu import sim
from nvshare.launch.address import Address

_PERIOD = 1.0  # seconds between two samples of the log


class Meter(Protocol):
    def memory(self) -> dict[str, int]:
        """Bytes in use on each card."""

    def processes(self) -> dict[str, set[int]]:
        """The processes that have a context on each card."""

    def utilization(self) -> dict[str, int]:
        """Percent of the time since the last call (or of the last second) in which each card was busy."""


class SimulatedMeter:
    def __init__(self, node: sim.SimNode) -> None:
        self._node = node
        self._busy: dict[str, tuple[float, int]] = {}

    def memory(self) -> dict[str, int]:
        return {gpu["uuid"]: int(gpu["memory_used"]) for gpu in self._node.counters()}

    def processes(self) -> dict[str, set[int]]:
        return {gpu["uuid"]: {int(one["pid"]) for one in gpu["contexts"]} for gpu in self._node.counters()}

    def utilization(self) -> dict[str, int]:
        percent = {}
        for gpu in self._node.counters():
            now, busy = time.monotonic(), int(gpu["busy_ns"])
            before, earlier = self._busy.get(gpu["uuid"], (now - 1e-9, busy))
            elapsed = max(1e-9, now - before) * self._node.speed
            percent[gpu["uuid"]] = min(100, round(100 * (busy - earlier) / 1e9 / elapsed))
            self._busy[gpu["uuid"]] = now, busy
        return percent


class NvmlMeter:
    def __init__(self) -> None:
        import pynvml

        from nvshare.gpu.cards import NvmlCards

        self._nvml = pynvml
        self._cards = NvmlCards()

    def memory(self) -> dict[str, int]:
        return {uuid: int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used) for uuid, handle in self._handles()}

    def processes(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {uuid: set() for uuid, _ in self._handles()}
        for uuid, pid in self._cards.process_memory():
            found[uuid].add(pid)
        return found

    def utilization(self) -> dict[str, int]:
        percent = {}
        for uuid, handle in self._handles():
            try:
                percent[uuid] = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._nvml.NVMLError:
                percent[uuid] = 0  # MIG instances have none
        return percent

    def _handles(self) -> list[tuple[str, object]]:
        return [(card.uuid, self._nvml.nvmlDeviceGetHandleByUUID(card.uuid)) for card in self._cards.cards()]


def meter_of(address: Address) -> Meter:
    """The meter of an address: of the simulated node that it or the environment names, else NVML."""
    directory = _node_directory(address)
    return SimulatedMeter(sim.find(Path(directory).name)) if directory else NvmlMeter()


def source_of(address: Address) -> str:
    """What the cards of an address are: ``simulated`` or ``gpu``."""
    return source_of_cards(address.variables)


def _node_directory(address: Address) -> str | None:
    return config.child_environment(address.variables).get("NVSHARE_SIM_NODE")


@contextlib.contextmanager
def gpu_log(path: Path, meter: Meter, cards: tuple[str, ...], lost: Callable[[str], None]) -> Iterator[None]:
    """Write ``--gpu-log``: timestamp, index, utilization (percent) and memory (MiB), a line per card and second. When
    the file cannot be written, ``lost`` is called once with the reason."""
    written = [True]

    def write(rows: Iterable[tuple[object, ...]]) -> None:
        try:
            if written[0]:
                with path.open("a", newline="") as file:
                    csv.writer(file).writerows(rows)
        except OSError as error:
            written[0] = False
            lost(str(error.strerror))

    def sample() -> None:
        memory, busy = meter.memory(), meter.utilization()
        now = f"{time.time():.3f}"
        write((now, index, busy.get(uuid, 0), memory.get(uuid, 0) >> 20) for index, uuid in enumerate(cards))

    if path.is_file():
        path.write_text("")
    write([("timestamp", "index", "utilization", "memory")])
    with every(_PERIOD, sample):
        yield
