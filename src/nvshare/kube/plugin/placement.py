"""Which devices a container had best get: least loaded card first (``spread``), or the fullest (``pack``).

Guarantees: exactly as many as asked for, the required ones among them, no device that somebody has while another is
free; devices of one container are on different cards as long as there are cards with free devices; with ``spread``
every one is on a card with the fewest devices in use among those, ties broken by promised memory, then by what the
scheduler sees happening there, then by UUID. Where memory is promised, cards that have enough of it left go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvshare.kube.plugin.state import Gpu, Node, Picture, number_of, uuid_of

SPREAD, PACK = "spread", "pack"

Load = tuple[float, int]  # part of the card's time in use, bytes allocated
NO_LOAD: Load = (0.0, 0)


class CannotPlace(Exception):
    """The request makes no sense, or cannot be met; the text says why."""


@dataclass(frozen=True)
class Request:
    """One container's, as the kubelet puts it."""

    available: tuple[str, ...]
    size: int
    required: tuple[str, ...] = ()
    memory: int | None = None  # MiB that its pod was promised; None: not yet, or never
    pod: str = ""  # and which pod that is


@dataclass(frozen=True)
class Surroundings:
    node: Node
    picture: Picture = field(default_factory=Picture)
    load: Mapping[str, Load] = field(default_factory=dict)


def choose(request: Request, around: Surroundings, policy: str = SPREAD) -> list[str]:
    """The devices, required ones first; ``CannotPlace`` when there are not as many."""
    chosen = list(dict.fromkeys(request.required))
    if len(chosen) > request.size:
        raise CannotPlace(f"{len(chosen)} devices are required, but only {request.size} asked for")
    free = _free_by_card(request, around, chosen)
    own = Counter(uuid_of(device) for device in chosen)
    tenants = _tenants(request, around)
    while len(chosen) < request.size:
        cards = [around.node.by_uuid[uuid] for uuid, devices in free.items() if devices]
        if not cards:
            raise CannotPlace(f"{request.size} devices are asked for, and {len(chosen)} are free")
        card = min(cards, key=lambda gpu: (own[gpu.uuid], *_rank(gpu, request, around, tenants, policy)))
        chosen.append(free[card.uuid].pop(0))
        own[card.uuid] += 1
    return chosen


def _free_by_card(request: Request, around: Surroundings, chosen: Sequence[str]) -> dict[str, list[str]]:
    """What may be given, by card: first those that nobody has, each in the order of their numbers."""
    free: dict[str, list[str]] = {}
    for device in sorted(set(request.available) - set(chosen), key=lambda d: (around.picture.in_use[d], number_of(d))):
        gpu = around.node.by_uuid.get(uuid_of(device))
        if gpu is not None and gpu.healthy and around.node.knows(device):
            free.setdefault(gpu.uuid, []).append(device)
    return free


def _tenants(request: Request, around: Surroundings) -> Counter[str]:
    """Devices in use by card. What the kubelet neither offers nor lists is taken too, by an init container for one."""
    offered = Counter(uuid_of(device) for device in {*request.available, *request.required})
    missing = Counter({gpu.uuid: around.node.devices_per_gpu - offered[gpu.uuid] for gpu in around.node.gpus})
    return missing | around.picture.tenants  # the larger of both


def _memory_wanted(request: Request, picture: Picture) -> int:
    """Most often the kubelet asks for a container's cards first and for its memory later, which then must be there. It
    is taken to want as much as the largest pod here; where no pod has any, this keeps no card away."""
    return picture.largest_promise if request.memory is None else request.memory


def _rank(
    gpu: Gpu, request: Request, around: Surroundings, tenants: Counter[str], policy: str
) -> tuple[bool, float, float, float, float, str]:
    lacks_room = around.picture.room(gpu, apart_from=request.pod) < _memory_wanted(request, around.picture)
    busy, allocated = around.load.get(gpu.uuid, NO_LOAD)
    sign = -1 if policy == PACK else 1
    promised = around.picture.promised(gpu.uuid)
    return lacks_room, sign * tenants[gpu.uuid], sign * promised, sign * busy, sign * allocated, gpu.uuid
