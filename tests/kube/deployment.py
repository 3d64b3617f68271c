"""A node with simulated cards on which nvshare is deployed as a user would deploy it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import Cluster
from image import IMAGE

from nvshare import __version__, native
from nvshare.gpu import sim
from nvshare.kube.plugin.simulated import PROCESSES_INSIDE

TREE = Path(__file__).resolve().parents[2]
CHART = TREE / "deploy" / "chart" / "nvshare"
SYSTEM = "nvshare-system"
DAEMONSETS = ("nvshare-scheduler", "nvshare-device-plugin")
PREFIX = "localhost/nvshare"
SPEED = 10.0
DRIVER_INSIDE = "/opt/nvshare-sim"


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def kubectl(*arguments: str, given: str | None = None) -> str:
    return run("kubectl", *arguments, given=given)


def kube_test(*arguments: str) -> str:
    """The report of a test that passed."""
    return run(sys.executable, "-m", "nvshare", "kube-test", "--image", IMAGE, "--speed", f"{SPEED:g}", *arguments)


@dataclass(frozen=True)
class Ground:
    """Where nvshare can be deployed; ``values`` are those of the chart that this node needs."""

    node: sim.SimNode
    values: Path


@contextlib.contextmanager
def ground(cluster: Cluster, directory: Path) -> Iterator[Ground]:
    ctr = ("ctr", f"--address={cluster.settings.containerd_socket}", "--namespace=k8s.io")
    for name in DAEMONSETS:
        run(*ctr, "images", "tag", "--force", IMAGE, f"{PREFIX}/{name}:{__version__}")
    kubectl("label", "nodes", "--all", "--overwrite", "nvidia.com/gpu.present=true")
    node = sim.up("8xT4", SPEED, name="deployed")
    values = directory / "values.json"
    values.write_text(json.dumps(_simulated(node)))
    try:
        yield Ground(node, values)
    finally:
        kubectl("delete", "namespace", SYSTEM, "--wait", "--timeout", "120s", "--ignore-not-found")
        sim.down(node.name)


def _simulated(node: sim.SimNode) -> dict[str, Any]:
    """What takes the place of NVIDIA's container toolkit: the node's directory and the simulated driver, mounted."""
    volumes = [
        {"name": "sim-node", "hostPath": {"path": str(node.directory), "type": "Directory"}},
        {"name": "sim-driver", "hostPath": {"path": str(native.simulated_driver()), "type": "Directory"}},
        {"name": "processes", "hostPath": {"path": "/proc", "type": "Directory"}},
    ]
    mounts = [
        {"name": "sim-node", "mountPath": str(node.directory)},
        {"name": "sim-driver", "mountPath": DRIVER_INSIDE, "readOnly": True},
        {"name": "processes", "mountPath": PROCESSES_INSIDE, "readOnly": True},
    ]
    given = {
        "env": {
            "NVSHARE_SIM_NODE": str(node.directory),
            "NVSHARE_SIM_PROC": PROCESSES_INSIDE,
            "LD_LIBRARY_PATH": DRIVER_INSIDE,
        },
        "extraVolumes": volumes,
        "extraVolumeMounts": mounts,
    }
    simulated = [f"--simulated={node.directory}", f"--simulated-driver={native.simulated_driver()}"]
    return {"scheduler": given, "devicePlugin": {**given, "extraArgs": simulated}}
