"""What a test of the Kubernetes part may do with the world: the same for the doubles and for a real cluster.

A test body takes the fixture ``world`` and uses nothing but this. Doubles play it in ``make test``; ``make test-kube``
plays it on a cluster (``NVSHARE_KUBE=real``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nvshare.client.connection import Connection
from nvshare.gpu.sim import SimNode
from tests.support.processes import eventually, programs

_T = TypeVar("_T")

GPU = "nvshare.com/gpu"
GPUMEM = "nvshare.com/gpumem"
MEMORY_LIMIT = "nvshare.com/gpu-memory-limit"
CORE_LIMIT = "nvshare.com/gpu-core-limit"
CORE_REQUEST = "nvshare.com/gpu-core-request"


class NotAdmitted(Exception):
    """The kubelet did not take the pod; the text is its reason."""


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    namespace: str = "default"


def wait_for(what: str, look: Callable[[], _T | None], patience: float = 90.0) -> _T:
    """The first thing seen; fails the test when there is none in time."""
    seen = eventually(look, patience)
    assert seen, f"waited {patience:.0f} s for {what} in vain"
    return seen


class World(ABC):
    """A node with GPUs (simulated), a kubelet, a scheduler and a device plugin of nvshare. Waits are bounded."""

    def __init__(self, node: SimNode, socket: Path, library: Path) -> None:
        """``socket`` is the scheduler's, ``library`` what tasks preload."""
        self.sim = node
        self.socket = socket
        self._library = library

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the node's cards."""
        return self.sim.uuids

    @abstractmethod
    def create(
        self,
        name: str,
        *,
        gpus: int = 1,
        gpumem: int | None = None,
        annotations: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> Pod:
        """A pod with one container that asks for so many ``nvshare.com/gpu`` and MiB of ``nvshare.com/gpumem``.

        ``command`` runs under the library on the simulated node; None: it sleeps until the pod is deleted. Returns when
        the API has it; ``wait_running`` waits for the kubelet.
        """

    @abstractmethod
    def delete(self, pod: Pod, wait: bool = True) -> None:
        """Delete it at once (no grace); ``wait``: until the kubelet gave its devices back."""

    @abstractmethod
    def annotate(self, pod: Pod, key: str, value: str | None) -> None:
        """Set an annotation, or remove it (None)."""

    @abstractmethod
    def wait_running(self, pod: Pod) -> None:
        """Until its container was started; ``NotAdmitted`` when the kubelet refuses it."""

    @abstractmethod
    def wait_done(self, pod: Pod) -> int:
        """Until its command ended: the exit code."""

    @abstractmethod
    def devices(self, pod: Pod) -> tuple[str, ...]:
        """Ids of ``nvshare.com/gpu`` that the kubelet gave it, as PodResources lists them, sorted."""

    @abstractmethod
    def logs(self, pod: Pod) -> str:
        """What its command wrote so far, both streams."""

    @abstractmethod
    def execute(self, pod: Pod, command: Sequence[str]) -> tuple[int, str]:
        """A second process in its container, with the environment of the first: exit code and output."""

    @contextlib.contextmanager
    def outside(self, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[None]:
        """A process of the node, in no pod, on the first card and under the library, while the context lasts."""
        environment = {
            **os.environ,
            **self.sim.env(),
            "LD_PRELOAD": str(self._library),
            "NVSHARE_SOCK": str(self.socket),
            "CUDA_VISIBLE_DEVICES": self.gpus[0],
            **variables,
        }
        with programs() as run:
            run([sys.executable, *command[1:]], environment)
            yield

    @abstractmethod
    def events(self, pod: Pod) -> list[str]:
        """Its Kubernetes Events, oldest first: ``Reason: message``."""

    @abstractmethod
    def capacity(self, resource: str = GPU) -> int:
        """How many devices of this resource the node offers now (allocatable)."""

    @abstractmethod
    def restart_kubelet(self) -> None:
        """Returns when the plugin is registered again; running pods keep what they have."""

    @abstractmethod
    def restart_plugin(self) -> None:
        """Ends it as a crash does (SIGKILL) and starts it; returns when it is registered again."""

    def lose_gpu(self, uuid: str, lost: bool = True) -> None:
        """Let a card fall off the bus, or come back."""
        self.sim.lose(uuid, lost)

    @abstractmethod
    def stop_api(self) -> None:
        """The API server goes away; the node goes on."""

    @abstractmethod
    def start_api(self) -> None:
        """And comes back."""

    def scheduler_status(self) -> dict[str, Any]:
        """What ``nvsharectl status --json`` shows."""
        with Connection(self.socket) as connection:
            return connection.status()

    @abstractmethod
    def close(self) -> None:
        """Ends everything and leaves nothing behind."""
