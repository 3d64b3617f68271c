"""The cards of this node, found through NVML; under a simulated driver the same code finds the simulated ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

from nvshare.gpu.reading import Reading

# Bytes that each process takes, by (uuid of the card, process id); None where the driver does not tell.
ProcessMemory = dict[tuple[str, int], int | None]


class NoCards(Exception):
    """There is no usable GPU; the text says why."""


@dataclass(frozen=True)
class Card:
    """A GPU, or one MIG instance of one."""

    uuid: str
    name: str
    total: int  # bytes that processes can have


class CardSource(Protocol):
    """What a scheduler needs to know of the hardware."""

    def cards(self) -> list[Card]:
        """Every card, in driver order."""

    def process_memory(self) -> ProcessMemory:
        """Who is on the cards. May take a while: call from a thread."""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class NvmlCards:
    """Cards through NVML, which stays initialised until ``close``."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoCards(f"no NVIDIA driver answers ({error})") from error
        try:
            self._handles = {_uuid(handle): handle for handle in _instances()}
        except pynvml.NVMLError as error:
            self.close()
            raise NoCards(f"the NVIDIA driver does not list its GPUs ({error})") from error
        if not self._handles:
            self.close()
            raise NoCards("the NVIDIA driver lists no GPU that answers")

    def cards(self) -> list[Card]:
        return [_card(uuid, handle) for uuid, handle in self._handles.items()]

    def answering(self) -> list[Card]:
        """The cards without those that fell off the bus since."""
        found = []
        for uuid, handle in self._handles.items():
            with contextlib.suppress(pynvml.NVMLError):
                found.append(_card(uuid, handle))
        return found

    def release(self) -> tuple[str, str]:
        """Of the driver, such as 580.159.04, and of the newest CUDA that it can do, such as 13.0; empty where it does
        not tell."""
        driver, cuda = "", ""
        with contextlib.suppress(pynvml.NVMLError):
            driver = _text(pynvml.nvmlSystemGetDriverVersion())
            major, minor = divmod(int(pynvml.nvmlSystemGetCudaDriverVersion_v2()), 1000)
            cuda = f"{major}.{minor // 10}"
        return driver, cuda

    def process_memory(self) -> ProcessMemory:
        taken: ProcessMemory = {}
        for uuid, handle in self._handles.items():
            for pid, size in _processes(handle).items():
                taken[uuid, pid] = size
        return taken

    def readings(self) -> dict[str, Reading]:
        """By UUID. May take a while: call from a thread."""
        return {
            uuid: Reading(
                _told(handle, lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).gpu / 100),
                _told(handle, lambda card: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU)),
                _told(handle, lambda card: pynvml.nvmlDeviceGetPowerUsage(card) / 1000),
            )
            for uuid, handle in self._handles.items()
        }

    def close(self) -> None:
        pynvml.nvmlShutdown()


class CardWatch:
    """Which cards answer, asked again and again. A card that was seen once is told of for ever, as lost when it is."""

    def __init__(self) -> None:
        self._known: dict[str, Card] = {}
        self._nvml: NvmlCards | None = None
        self.problem: str | None = None  # why there is no card at all

    def look(self) -> list[tuple[Card, bool]]:
        """Every card and whether it answers, by UUID. May take a while: call from a thread."""
        answering = self._ask()
        if not answering or self._known.keys() - answering.keys():
            self.close()  # a card that came back is seen by a new session only
            answering = self._ask()
        self._known.update(answering)
        return [(card, uuid in answering) for uuid, card in sorted(self._known.items())]

    def _ask(self) -> dict[str, Card]:
        try:
            self._nvml = self._nvml or NvmlCards()
        except NoCards as error:
            self.problem = str(error)
            return {}
        self.problem = None
        return {card.uuid: card for card in self._nvml.answering()}

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None


def _told(handle: Any, ask: Callable[[Any], float]) -> float | None:
    try:
        return float(ask(handle))
    except pynvml.NVMLError:
        return None


def _uuid(handle: Any) -> str:
    return _text(pynvml.nvmlDeviceGetUUID(handle))


def _card(uuid: str, handle: Any) -> Card:
    return Card(uuid, _text(pynvml.nvmlDeviceGetName(handle)), _usable(handle))


def _processes(handle: Any) -> dict[int, int | None]:
    """Of a card that fell off the bus, none; the others still count. A process may be in both lists, with one size."""
    found: dict[int, int | None] = {}
    without_number = 0  # bytes of those that have no number in our namespace
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            processes = ask(handle)
        except pynvml.NVMLError:
            continue
        for process in processes:
            pid, size = int(process.pid), process.usedGpuMemory
            if pid == 0:
                without_number += int(size or 0)
            elif size is None:
                found.setdefault(pid, None)
            else:
                found[pid] = max(int(size), found.get(pid) or 0)
    if without_number:
        found[0] = without_number
    return found


def _usable(handle: Any) -> int:
    """The card's memory without what the driver keeps for itself, where it tells."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError, AttributeError):  # an older driver, or an older binding
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(memory.total) - int(memory.reserved)


def _instances() -> Iterator[Any]:
    """Handles of all GPUs that answer; a GPU in MIG mode is replaced by its instances."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            _uuid(handle)
        except pynvml.NVMLError:
            continue  # off the bus
        instances = list(mig_instances(handle))
        yield from instances or [handle]


def mig_instances(handle: Any) -> Iterator[Any]:
    """Handles of the MIG instances of a GPU; none where it is not in MIG mode."""
    try:
        enabled, _pending = pynvml.nvmlDeviceGetMigMode(handle)
        slots = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0
    except pynvml.NVMLError:
        return  # the card or the driver knows no MIG
    for slot in range(slots):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError:
            continue  # an empty slot
