"""What a container is given beside its devices: its cards, the library, the way to the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nvshare.config import GPU_MEMORY_LIMIT, SOCKET_NAME
from nvshare.kube.api import deviceplugin_pb2 as api
from nvshare.kube.plugin.state import uuid_of

ENVVAR, CDI = "envvar", "cdi"

LIBRARY_INSIDE = "/usr/lib/nvshare"
SOCKETS_INSIDE = "/var/run/nvshare"


class Extra(Protocol):
    """What is given beyond that, on nodes that are not what they seem."""

    def add_to(self, container: api.ContainerAllocateResponse, uuids: list[str]) -> None: ...


@dataclass(frozen=True)
class Places:
    """On the host."""

    library: Path = Path("/var/lib/nvshare/lib")  # directory with libnvshare.so
    sockets: Path = Path("/var/run/nvshare")


def for_gpus(
    devices: Iterable[str], places: Places, strategy: str = ENVVAR, extra: Extra | None = None
) -> api.ContainerAllocateResponse:
    """The answer for ``nvshare.com/gpu``. Directories are mounted, not files: a restarted scheduler makes a new socket,
    an upgrade a new library."""
    uuids = sorted({uuid_of(device) for device in devices})
    container = api.ContainerAllocateResponse(
        envs={
            # Images of CUDA ask for all cards; with CDI the name of the device says which.
            "NVIDIA_VISIBLE_DEVICES": ",".join(uuids) if strategy == ENVVAR else "void",
            "LD_PRELOAD": f"{LIBRARY_INSIDE}/libnvshare.so",
            "NVSHARE_SOCK": f"{SOCKETS_INSIDE}/{SOCKET_NAME}",
        },
        mounts=[
            api.Mount(container_path=LIBRARY_INSIDE, host_path=str(places.library), read_only=True),
            api.Mount(container_path=SOCKETS_INSIDE, host_path=str(places.sockets), read_only=True),
        ],
    )
    if strategy == CDI:
        container.cdi_devices.extend(api.CDIDevice(name=f"nvidia.com/gpu={uuid}") for uuid in uuids)
    if extra is not None:
        extra.add_to(container, uuids)
    return container


def for_memory(size: int) -> api.ContainerAllocateResponse:
    """The answer for ``size`` MiB of ``nvshare.com/gpumem``: the quota that its tasks start with."""
    return api.ContainerAllocateResponse(envs={GPU_MEMORY_LIMIT.name: f"{size}Mi"})
