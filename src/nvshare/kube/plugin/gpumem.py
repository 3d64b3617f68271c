"""``nvshare.com/gpumem``: memory of cards as a resource, one device for every MiB. See decision 8. Pure.

Its devices belong to no card: the kubelet picks those of each resource by itself, in any order, so a device of a card
could tie a container to one that its ``nvshare.com/gpu`` is not on. How much of which card is promised follows from the
cards of the pods that have some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nvshare.kube.plugin.state import Gpu, Node, Picture, PodUse

# 17 bytes each in the list that the kubelet reads, which may have 4 MiB.
MOST_OFFERED = 240_000
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_DIGIT_SET = frozenset(_DIGITS)
_ID_LENGTH = 4


class NoRoom(Exception):
    """The promise cannot be kept; the text says where how much is free."""


def memory_id(number: int) -> str:
    """Four letters or digits: short, because there are so many."""
    digits = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def shares(node: Node) -> dict[str, int]:
    """Devices by card: its MiB, or in proportion when all together are more than a kubelet can be told."""
    total = sum(gpu.memory for gpu in node.gpus)
    if total <= MOST_OFFERED:
        return {gpu.uuid: gpu.memory for gpu in node.gpus}
    return {gpu.uuid: gpu.memory * MOST_OFFERED // total for gpu in node.gpus}


def devices(node: Node) -> Iterator[tuple[str, bool]]:
    """Every device and whether it is healthy: as many are not as the lost cards had."""
    number = 0
    offered = shares(node)
    for gpu in node.gpus:
        for _ in range(offered[gpu.uuid]):
            yield memory_id(number), gpu.healthy
            number += 1


def known(node: Node) -> Callable[[str], bool]:
    """Tells whether a device is one of ours."""
    offered = sum(shares(node).values())

    def is_known(device: str) -> bool:
        return len(device) == _ID_LENGTH and set(device) <= _DIGIT_SET and int(device, len(_DIGITS)) < offered

    return is_known


@dataclass(frozen=True)
class LastAllocation:
    """The kubelet does not say whose devices it asks for. It admits one pod after the other, and lists a pod before it
    asks for its devices: while no new pod is listed, what it asks for is for the same pod as the last time."""

    devices: tuple[str, ...]
    names: frozenset[str]  # of the pods that were listed then

    def pod(self, picture: Picture) -> PodUse | None:
        """The pod that is being admitted, when it must be the one of this allocation."""
        return picture.holder(self.devices) if picture.names <= self.names else None


def check_promise(size: int, last: LastAllocation | None, node: Node, picture: Picture) -> None:
    """Before a container is promised ``size`` MiB: ``NoRoom`` when no card of its pod, or no card at all, has them."""
    pod = last.pod(picture) if last is not None else None
    if pod is not None and pod.gpus:
        check_cards(pod, size, node, picture)
        return
    rooms = {gpu.uuid: picture.room(gpu) for gpu in node.gpus if gpu.healthy}
    if not any(room >= size for room in rooms.values()):
        free = ", ".join(f"{max(0, room)} of {uuid}" for uuid, room in rooms.items()) or "no card is there"
        raise NoRoom(f"no GPU of this node has {size} MiB left to promise (MiB left: {free})")


def check_cards(pod: PodUse, more: int, node: Node, picture: Picture) -> None:
    """``NoRoom`` unless each card of the pod can keep what the pod was promised and ``more`` MiB."""
    wanted = len(pod.memory) + more
    for uuid in sorted(pod.gpus):
        gpu = node.by_uuid.get(uuid) or Gpu(uuid, 0)
        room = picture.room(gpu, apart_from=pod.name)
        if room < wanted:
            raise NoRoom(
                f"GPU {uuid} has {max(0, room)} of {gpu.memory} MiB left to promise, and pod {pod.name} on it wants "
                f"{wanted} (NVSHARE_GPU_MEMORY_OVERSUB_RATIO says how much of a card may be promised)"
            )
