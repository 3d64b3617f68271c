"""What a pod should have, from its object as the API has it. Pure.

A value that cannot be used changes nothing: what was in force for that quota stays, and a complaint says what is
allowed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from nvshare.config import CORE_BOUNDS, CORES_ANNOTATION, FLOOR_ANNOTATION, MAX_SIZE, MEMORY_ANNOTATION, parse_size

GPU_RESOURCE = "nvshare.com/gpu"
GPUMEM_RESOURCE = "nvshare.com/gpumem"  # in MiB
MIB = 1 << 20

_MIRROR = "kubernetes.io/config.mirror"  # the API's picture of a static pod; its value is the uid the node knows
_STATIC_UID = re.compile(r"[0-9a-f]{32}")
_UID = re.compile(r"[0-9a-f-]{1,64}")
_NAME = re.compile(r"[a-z0-9.-]{1,253}")
_ANNOTATIONS = {MEMORY_ANNOTATION, CORES_ANNOTATION, FLOOR_ANNOTATION}
_FINISHED = ("Succeeded", "Failed")
_MAX_VALUE = 64  # characters of an annotation that can mean something
_MAX_SHOWN = 40  # characters of one that cannot, in a message

_SUFFIXES = {"": Fraction(1), "m": Fraction(1, 1000)}
_SUFFIXES |= {letter: Fraction(1000) ** power for power, letter in enumerate("kMGTP", start=1)}
_SUFFIXES |= {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTP", start=1)}
_QUANTITY = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?(?:e(\d{1,2})|([A-Za-z]{0,2}))", re.ASCII)


class _Keep(enum.Enum):
    KEEP = "keep"


KEEP: Final = _Keep.KEEP  # not known now: the scheduler keeps what is in force
Quota = int | None | _Keep


class NotAPod(Exception):
    """An object that cannot be a pod."""


@dataclass(frozen=True)
class Wanted:
    """A pod on this node; None: without a quota."""

    uid: str  # as the node knows it
    namespace: str
    name: str
    mem: Quota = None  # bytes, by its annotation
    cores: Quota = None  # the cap in percent, by its annotation
    gpumem: int | None = None  # bytes, by its resources
    uses_gpu: bool = False
    floor: Quota = None  # percent, by its annotation
    object_uid: str = field(default="", compare=False)  # of the API's object

    def entry(self) -> dict[str, Any]:
        """As the scheduler is told."""
        entry: dict[str, Any] = {"uid": self.uid, "namespace": self.namespace, "name": self.name}
        quotas = {"mem": self.mem, "cores": self.cores, "core_floor": self.floor}
        entry |= {name: value for name, value in quotas.items() if value is not KEEP}
        return entry if self.gpumem is None else {**entry, "gpumem": self.gpumem}


@dataclass(frozen=True)
class Complaint:
    """An annotation that cannot be used, or not now, for the pod's owner."""

    namespace: str
    name: str
    uid: str  # of the API's object
    annotation: str
    value: str
    text: str


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether all of its processes have ended for good."""
    return _mapping(pod, "status").get("phase") in _FINISHED


def uid_of(pod: Mapping[str, Any]) -> str:
    """The uid that the node's cgroups have; ``NotAPod``.

    That of a static pod is in an annotation. Anybody may write one: it counts only in the form that static pods have
    and no other pod does, and in a pod that belongs to a node, which only kubelets make.
    """
    metadata = _mapping(pod, "metadata")
    mirrored = _mapping(metadata, "annotations").get(_MIRROR)
    if isinstance(mirrored, str) and _STATIC_UID.fullmatch(mirrored) and _belongs_to_a_node(metadata):
        return mirrored
    return _text(metadata, "uid", _UID)


def _belongs_to_a_node(metadata: Mapping[str, Any]) -> bool:
    owners = metadata.get("ownerReferences")
    return isinstance(owners, list) and any(isinstance(one, dict) and one.get("kind") == "Node" for one in owners)


def desired(pod: Mapping[str, Any], before: Wanted | None = None) -> tuple[Wanted, tuple[Complaint, ...]]:
    """What it should have and what cannot be used, after ``before`` was in force; ``NotAPod``."""
    metadata = _mapping(pod, "metadata")
    namespace, name = _text(metadata, "namespace", _NAME), _text(metadata, "name", _NAME)
    object_uid = _text(metadata, "uid", _UID)
    annotations = _mapping(metadata, "annotations")
    complaints: list[Complaint] = []

    def quota(annotation: str, parse: Callable[[str], int], in_force: Quota) -> Quota:
        value = annotations.get(annotation)
        if value is None:
            return None
        try:
            return parse(value if isinstance(value, str) and len(value) <= _MAX_VALUE else _refuse(value))
        except ValueError as error:
            shown = str(value)[: 2 * _MAX_VALUE]
            text = f"{annotation}: {error}; what was in force before stays"
            complaints.append(Complaint(namespace, name, object_uid, annotation, shown, text))
            return in_force

    cap = quota(CORES_ANNOTATION, _percent, KEEP if before is None else before.cores)
    floor = quota(FLOOR_ANNOTATION, _percent, KEEP if before is None else before.floor)
    if isinstance(floor, int) and isinstance(cap, int) and floor > cap:
        text = f"{FLOOR_ANNOTATION}: {floor} is above {CORES_ANNOTATION}, which is {cap}; nothing is guaranteed"
        complaints.append(Complaint(namespace, name, object_uid, FLOOR_ANNOTATION, f"{floor} above {cap}", text))
        floor = None
    wanted = Wanted(
        uid_of(pod),
        namespace,
        name,
        mem=quota(MEMORY_ANNOTATION, parse_size, KEEP if before is None else before.mem),
        cores=cap,
        gpumem=_gpumem(pod),
        uses_gpu=_total(pod, GPU_RESOURCE) > 0 or bool(annotations.keys() & _ANNOTATIONS),
        floor=floor,
        object_uid=object_uid,
    )
    return wanted, tuple(complaints)


def without_room(wanted: Wanted, reason: str) -> Complaint:
    """That what the pod asks to be guaranteed is not, for this reason, until there is room."""
    text = f"{FLOOR_ANNOTATION}: {reason}"
    return Complaint(
        wanted.namespace, wanted.name, wanted.object_uid, FLOOR_ANNOTATION, f"{wanted.floor} without room", text
    )


def _refuse(value: Any) -> str:
    text = str(value)
    raise ValueError(f"{text[:_MAX_SHOWN]!a}… ({len(text)} characters) is too long to be a quota")


def _percent(text: str) -> int:
    low, high = CORE_BOUNDS
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and low <= int(text) <= high):
        raise ValueError(f'{text[:_MAX_SHOWN]!a} is not a whole number of percent from {low} to {high}, such as "30"')
    return int(text)


def _gpumem(pod: Mapping[str, Any]) -> int | None:
    size = int(_total(pod, GPUMEM_RESOURCE)) * MIB
    return size if 0 < size <= MAX_SIZE else None


def _total(pod: Mapping[str, Any], resource: str) -> Fraction:
    """What a pod has of a resource, as Kubernetes counts it: all containers that run side by side, or the one of those
    that run before them that has most."""
    spec = _mapping(pod, "spec")
    starters = list(_objects(spec, "initContainers"))
    beside = [one for one in starters if one.get("restartPolicy") == "Always"]
    before = [_amount(one, resource) for one in starters if one not in beside]
    together = sum((_amount(one, resource) for one in (*_objects(spec, "containers"), *beside)), Fraction(0))
    return max(together, *before, Fraction(0))


def _amount(container: Mapping[str, Any], resource: str) -> Fraction:
    resources = _mapping(container, "resources")
    value = {**_mapping(resources, "requests"), **_mapping(resources, "limits")}.get(resource, "0")
    return quantity(str(value)) or Fraction(0)


def quantity(text: str) -> Fraction | None:
    """A quantity as the API writes it: 4000 comes back as ``4k``. None: not one."""
    match = _QUANTITY.fullmatch(text)
    suffix = _SUFFIXES.get(match[4] or "") if match else None
    if match is None or suffix is None:
        return None
    fraction = match[2] or ""
    power = Fraction(10) ** int(match[3] or 0)
    return Fraction(int(match[1] + fraction), 10 ** len(fraction)) * power * suffix


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _objects(value: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    found = value.get(name)
    return (one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()


def _text(metadata: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = metadata.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise NotAPod(f"an object with {name} {str(value)[:_MAX_SHOWN]!a} is no pod")
    return value
