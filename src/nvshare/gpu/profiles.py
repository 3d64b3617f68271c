"""What cards can do: the figures that the simulated GPU and the model in virtual time share.

A profile is a data file under ``profiles/``. Where a figure was measured it is the measured one; else it is the
vendor's published figure, reduced to what programs reach.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

MAX_GPUS = 16

_DIRECTORY = Path(__file__).resolve().parent / "profiles"
_NODE = re.compile(r"(?:(\d{1,4})x)?([A-Za-z0-9-]+)", re.ASCII)


@dataclass(frozen=True)
class Profile:
    """One kind of card. Bytes, seconds, and rates per second throughout."""

    name: str
    """Short name, as in ``2xT4``."""
    display_name: str
    """Name that the driver reports."""
    memory_bytes: int
    """Memory of the card that processes can use, bytes."""
    context_bytes: int
    """Memory that each process takes before it allocates anything, bytes."""
    memory_bandwidth: float
    """What kernels move through the card's memory, bytes/s."""
    flops: float
    """What kernels compute, float32 operations/s."""
    link_h2d: float
    """Copy from pinned host memory to the card while nothing goes the other way, bytes/s."""
    link_d2h: float
    """Copy from the card to pinned host memory while nothing goes the other way, bytes/s."""
    link_duplex: float
    """Copies of pinned memory while both directions are in use, bytes/s each way."""
    pageable_h2d: float
    """Copy from ordinary host memory to the card, bytes/s."""
    pageable_d2h: float
    """Copy from the card to ordinary host memory, bytes/s."""
    prefetch_h2d: float
    """Managed memory that a prefetch brings to the card, bytes/s."""
    prefetch_d2h: float
    """Managed memory that a prefetch brings to the host, bytes/s."""
    fault_bandwidth: float
    """Managed memory that comes to the card by page faults, or goes because others need the room, bytes/s."""
    timeslice_efficiency: float
    """Sum of the speeds of two or more busy contexts, as a share of one context's speed when alone."""
    launch_overhead: float
    """Time between two kernels, or before a copy, in which the engine is not in use, seconds."""
    host_register_per_gib: float
    """Time to page-lock ordinary host memory (``cuMemHostRegister``), seconds per GiB."""
    host_alloc_per_gib: float
    """Time to allocate page-locked host memory (``cuMemHostAlloc``), seconds per GiB."""
    mem_create: float
    """Time of a ``cuMemCreate``, seconds, whatever the size; likewise the next four."""
    mem_map: float
    """Time of a ``cuMemMap``, seconds."""
    mem_set_access: float
    """Time of a ``cuMemSetAccess``, seconds per mapping."""
    mem_unmap: float
    """Time of a ``cuMemUnmap``, seconds per mapping."""
    mem_release: float
    """Time of a ``cuMemRelease``, seconds."""
    checkpoint_out: float
    """Time of a ``cuCheckpointProcessCheckpoint`` of a process without memory, seconds."""
    checkpoint_in: float
    """Time of its ``cuCheckpointProcessRestore``, seconds."""
    checkpoint_d2h: float
    """Memory beside the contexts that a checkpoint brings to the host, bytes/s."""
    checkpoint_h2d: float
    """Memory beside the contexts that a restore brings to the card, bytes/s."""
    checkpointed_bytes: int
    """What a process with a context keeps on the card while it is checkpointed, bytes."""
    compute_major: int
    """Compute capability, major."""
    compute_minor: int
    """Compute capability, minor."""
    multiprocessors: int
    """Streaming multiprocessors."""

    def kernel_seconds(self, bytes_moved: float, flops: float = 0.0) -> float:
        """How long a kernel takes when the card has nothing else to do."""
        return self.launch_overhead + max(bytes_moved / self.memory_bandwidth, flops / self.flops)

    def scaled(self, link: float = 1.0, kernel: float = 1.0) -> Profile:
        """The same card with links ``link`` times as fast and kernels that take ``kernel`` times as long."""
        if link <= 0 or kernel <= 0:
            raise ValueError(f"link={link:g} and kernel={kernel:g} must be greater than 0 (1 changes nothing)")
        links = (
            "link_h2d",
            "link_d2h",
            "link_duplex",
            "pageable_h2d",
            "pageable_d2h",
            "prefetch_h2d",
            "prefetch_d2h",
            "fault_bandwidth",
        )
        return dataclasses.replace(
            self,
            **{field: getattr(self, field) * link for field in links},
            memory_bandwidth=self.memory_bandwidth / kernel,
            flops=self.flops / kernel,
        )


def names() -> list[str]:
    """The known profiles, sorted."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.json"))


@functools.cache
def _read(name: str) -> Profile:
    return Profile(**json.loads((_DIRECTORY / f"{name}.json").read_text()))


def load(name: str) -> Profile:
    """The profile of that name, in any case; ``ValueError`` that lists the known ones."""
    for known in names():
        if known.lower() == name.lower():
            return _read(known)
    raise ValueError(f"no card profile {name!r}: known are {', '.join(names())}")


def of_card(display_name: str) -> Profile | None:
    """The profile of a card by NVML's name for it; None for a card that has none."""
    return next((profile for profile in map(_read, names()) if profile.display_name == display_name), None)


def parse_node(spec: str) -> tuple[int, Profile]:
    """``2xT4`` to (2, T4); a name alone is one card. ``ValueError`` that says what is allowed."""
    match = _NODE.fullmatch(spec.strip())
    count = int(match[1] or 1) if match else 0
    if match is None or not 1 <= count <= MAX_GPUS:
        raise ValueError(
            f"{spec!r} is not a node: write COUNTxCARD such as 2xT4, with 1 to {MAX_GPUS} cards of {', '.join(names())}"
        )
    return count, load(match[2])
