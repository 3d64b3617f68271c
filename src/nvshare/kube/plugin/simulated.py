"""A node with simulated cards: the plugin does for its containers what the container runtime does on real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nvshare.kube.api import deviceplugin_pb2 as api

PROCESSES_INSIDE = "/mnt/nvshare-proc"  # the host's process table, by which the simulated driver tells processes apart


@dataclass(frozen=True)
class SimulatedNode:
    """Both directories have the same path in the container as on the host."""

    directory: Path  # of the node, as NVSHARE_SIM_NODE names it
    driver: Path  # of the simulated libcuda.so.1 and libnvidia-ml.so.1

    def add_to(self, container: api.ContainerAllocateResponse, uuids: list[str]) -> None:
        container.envs["NVSHARE_SIM_NODE"] = str(self.directory)
        container.envs["NVSHARE_SIM_PROC"] = PROCESSES_INSIDE
        container.envs["LD_LIBRARY_PATH"] = str(self.driver)
        container.envs["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        container.mounts.append(api.Mount(container_path=str(self.directory), host_path=str(self.directory)))
        container.mounts.append(api.Mount(container_path=PROCESSES_INSIDE, host_path="/proc", read_only=True))
        container.mounts.append(api.Mount(container_path=str(self.driver), host_path=str(self.driver), read_only=True))
