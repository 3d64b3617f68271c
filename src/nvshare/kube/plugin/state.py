"""What the plugin knows: the node's cards, the devices it makes of them, and who has which. Pure, frozen data.

Nothing here is counted up or down. Every picture of use is made anew from what the kubelet says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

GPU = "nvshare.com/gpu"
GPUMEM = "nvshare.com/gpumem"
VENDOR = "nvidia.com/gpu"  # of the card's maker: whole cards

_SEPARATOR = "__"


def device_id(uuid: str, number: int) -> str:
    return f"{uuid}{_SEPARATOR}{number}"


def uuid_of(device: str) -> str:
    """The card behind a device of ours."""
    return device.rpartition(_SEPARATOR)[0]


def number_of(device: str) -> int:
    """Which one of its card's devices it is; 0 when it is none of ours."""
    digits = device.rpartition(_SEPARATOR)[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


@dataclass(frozen=True)
class Gpu:
    """A card, as it is offered."""

    uuid: str
    memory: int  # MiB that may be promised to containers: the ratio is in it
    healthy: bool = True


@dataclass(frozen=True)
class Node:
    """The cards in the order of their UUIDs, and how many devices each is."""

    gpus: tuple[Gpu, ...] = ()
    devices_per_gpu: int = 10

    def devices(self) -> Iterator[tuple[str, bool]]:
        """Every device of ``nvshare.com/gpu`` and whether it is healthy."""
        for gpu in self.gpus:
            for number in range(1, self.devices_per_gpu + 1):
                yield device_id(gpu.uuid, number), gpu.healthy

    @cached_property
    def by_uuid(self) -> Mapping[str, Gpu]:
        return {gpu.uuid: gpu for gpu in self.gpus}

    def knows(self, device: str) -> bool:
        return uuid_of(device) in self.by_uuid and 1 <= number_of(device) <= self.devices_per_gpu


@dataclass(frozen=True)
class PodUse:
    """What one pod has been given, over all its containers."""

    name: str  # namespace/name
    devices: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()  # one of ``nvshare.com/gpumem`` for every MiB
    whole: tuple[str, ...] = ()  # cards that the vendor's plugin gave it

    @cached_property
    def gpus(self) -> frozenset[str]:
        return frozenset(uuid_of(device) for device in self.devices)


@dataclass(frozen=True)
class Picture:
    """Who has what, at the moment at which the kubelet was asked. Pods that have nothing of ours are in it too."""

    pods: tuple[PodUse, ...] = ()
    waiting: frozenset[str] = field(default=frozenset())  # pods that were told to wait for memory: they hold none

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(pod.name for pod in self.pods)

    @cached_property
    def in_use(self) -> Counter[str]:
        """Devices that somebody has. The kubelet can give one twice (a pod that ends while it is asked): counted so."""
        return Counter(device for pod in self.pods for device in pod.devices)

    @cached_property
    def tenants(self) -> Counter[str]:
        """Devices in use, by card; a pod that has the whole card from the vendor's plugin is one more."""
        found = Counter(uuid_of(device) for device in self.in_use.elements())
        found.update(uuid for pod in self.pods for uuid in pod.whole)
        return found

    @cached_property
    def largest_promise(self) -> int:
        """MiB of the pod that has most; 0 when none has any."""
        return max((len(pod.memory) for pod in self.pods), default=0)

    def promised(self, uuid: str, apart_from: str = "") -> int:
        """MiB of the card that pods were promised. A pod's quota holds on each of its cards, so it counts on each."""
        return sum(
            len(pod.memory)
            for pod in self.pods
            if uuid in pod.gpus and pod.name != apart_from and pod.name not in self.waiting
        )

    def room(self, gpu: Gpu, apart_from: str = "") -> int:
        """MiB of the card that can still be promised; below 0 when the ratio was lowered under running pods."""
        return gpu.memory - self.promised(gpu.uuid, apart_from)

    def holder(self, devices: Sequence[str]) -> PodUse | None:
        """The pod that has these devices, of either resource."""
        wanted = set(devices)
        for pod in self.pods:
            if wanted and (wanted <= set(pod.devices) or wanted <= set(pod.memory)):
                return pod
        return None


def node_of(
    cards: Iterable[tuple[str, int, bool]], devices_per_gpu: int, ratio: float, card_memory: int | None = None
) -> Node:
    """From (uuid, bytes, healthy) of the cards; ``card_memory`` bounds what a card has, as the scheduler's does."""
    gpus = [
        Gpu(uuid, int(min(total, card_memory or total) * ratio) >> 20, healthy)
        for uuid, total, healthy in sorted(cards)
    ]
    return Node(tuple(gpus), devices_per_gpu)
