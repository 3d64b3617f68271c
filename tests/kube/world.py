"""What a test of the Kubernetes part may do with the world: the same for the doubles and for a real cluster.

A test body takes the fixture ``world`` and uses nothing but this. Doubles play it in ``make test``; ``make test-kube``
plays it on a cluster (``NVSHARE_KUBE=real``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

GPU = "nvshare.com/gpu"
GPUMEM = "nvshare.com/gpumem"
MEMORY_LIMIT = "nvshare.com/gpu-memory-limit"
CORE_LIMIT = "nvshare.com/gpu-core-limit"


class NotAdmitted(Exception):
    """The kubelet did not take the pod; the text is its reason."""


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    namespace: str = "default"


class World(Protocol):
    """A node with GPUs (simulated), a kubelet, a scheduler and a device plugin of nvshare. Waits are bounded."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the node's cards."""

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

    def delete(self, pod: Pod, wait: bool = True) -> None:
        """Delete it at once (no grace); ``wait``: until the kubelet gave its devices back."""

    def annotate(self, pod: Pod, key: str, value: str | None) -> None:
        """Set an annotation, or remove it (None)."""

    def wait_running(self, pod: Pod) -> None:
        """Until its container was started; ``NotAdmitted`` when the kubelet refuses it."""

    def wait_done(self, pod: Pod) -> int:
        """Until its command ended: the exit code."""

    def devices(self, pod: Pod) -> tuple[str, ...]:
        """Ids of ``nvshare.com/gpu`` that the kubelet gave it, as PodResources lists them, sorted."""

    def logs(self, pod: Pod) -> str:
        """What its command wrote so far, both streams."""

    def execute(self, pod: Pod, command: Sequence[str]) -> tuple[int, str]:
        """A second process in its container, with the environment of the first: exit code and output."""

    def outside(self, command: Sequence[str], variables: Mapping[str, str]) -> AbstractContextManager[None]:
        """A process of the node, in no pod, on the first card and under the library, while the context lasts."""

    def events(self, pod: Pod) -> list[str]:
        """Its Kubernetes Events, oldest first: ``Reason: message``."""

    def capacity(self, resource: str = GPU) -> int:
        """How many devices of this resource the node offers now (allocatable)."""

    def restart_kubelet(self) -> None:
        """Returns when the plugin is registered again; running pods keep what they have."""

    def restart_plugin(self) -> None:
        """Ends it as a crash does (SIGKILL) and starts it; returns when it is registered again."""

    def lose_gpu(self, uuid: str, lost: bool = True) -> None:
        """Let a card fall off the bus, or come back."""

    def stop_api(self) -> None:
        """The API server goes away; the node goes on."""

    def start_api(self) -> None:
        """And comes back."""

    def scheduler_status(self) -> dict[str, Any]:
        """What ``nvsharectl status --json`` shows."""

    def close(self) -> None:
        """Ends everything and leaves nothing behind."""
