"""What is deployed, as it is deployed: the chart on a real cluster, and ``nvshare kube-test`` on top of it.

Runs before the tests that have the programs of nvshare beside the kubelet: a node has room for one device plugin.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from image import IMAGE

from nvshare import __version__, native
from nvshare.gpu import sim
from nvshare.kube.plugin.simulated import PROCESSES_INSIDE

pytestmark = pytest.mark.timeout(400)

TREE = Path(__file__).resolve().parents[2]
MANIFESTS = TREE / "deploy" / "manifests"
EXAMPLES = TREE / "examples" / "kubernetes"
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


@dataclass(frozen=True)
class Deployed:
    image: str
    node: sim.SimNode

    def kube_test(self, *arguments: str) -> str:
        """The report of a test that passed."""
        common = ("--skip-setup", "--image", self.image, "--speed", f"{SPEED:g}")
        return run(sys.executable, "-m", "nvshare", "kube-test", *common, *arguments)


@pytest.fixture(scope="module")
def deployed(cluster: Cluster, runtime_directory: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """The chart, installed by Helm, on a node with simulated cards."""
    ctr = ("ctr", f"--address={cluster.settings.containerd_socket}", "--namespace=k8s.io")
    for name in DAEMONSETS:
        run(*ctr, "images", "tag", "--force", IMAGE, f"{PREFIX}/{name}:{__version__}")
    kubectl("label", "nodes", "--all", "--overwrite", "nvidia.com/gpu.present=true")
    node = sim.up("8xT4", SPEED, name="deployed")
    values = tmp_path_factory.mktemp("values") / "values.json"
    values.write_text(json.dumps(_simulated(node)))
    run("helm", "install", "nvshare", str(TREE / "deploy" / "chart" / "nvshare"), "--namespace", SYSTEM,
        "--create-namespace", "--values", str(values))  # fmt: skip
    try:
        for name in DAEMONSETS:
            try:
                kubectl("rollout", "status", f"daemonset/{name}", "--namespace", SYSTEM, "--timeout", "120s")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{kubectl('describe', 'pods', '--namespace', SYSTEM)}") from None
        yield Deployed(IMAGE, node)
    finally:
        run("helm", "uninstall", "nvshare", "--namespace", SYSTEM, "--wait")
        kubectl("delete", "namespace", SYSTEM, "--wait", "--timeout", "120s")
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


@pytest.mark.parametrize("name", ["namespace", "rbac", "scheduler", "device-plugin"])
def test_the_api_server_takes_the_manifests(deployed: Deployed, name: str) -> None:
    kubectl("apply", "--dry-run=server", "--filename", str(MANIFESTS / f"{name}.yaml"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_api_server_takes_the_examples(cluster: Cluster, path: Path) -> None:
    kubectl("apply", "--dry-run=server", "--filename", str(path))


@pytest.mark.parametrize(
    ("account", "rights"),
    [("nvshare-scheduler", {("pods", "list watch"), ("events", "create")}), ("nvshare-device-plugin", set())],
)
def test_accounts_may_do_what_they_need_and_no_more(
    deployed: Deployed, account: str, rights: set[tuple[str, str]]
) -> None:
    def rights_of(user: str) -> set[tuple[str, str]]:
        listed = kubectl("auth", "can-i", "--list", "--no-headers", f"--as=system:serviceaccount:{SYSTEM}:{user}")
        return set(re.findall(r"^(\S+)\s+\[\]\s+\[\]\s+\[(.*)\]$", listed, re.MULTILINE))

    assert rights_of(account) - rights_of("nobody-in-particular") == rights


def test_the_scheduler_sees_the_cards_and_says_so(deployed: Deployed) -> None:
    where = ("--namespace", SYSTEM, "daemonset/nvshare-scheduler", "--container", "scheduler")
    status = json.loads(kubectl("exec", *where, "--", "nvsharectl", "status", "--json"))
    assert sorted(gpu["uuid"] for gpu in status["gpus"]) == sorted(deployed.node.uuids)


def test_pods_share_cards(deployed: Deployed) -> None:
    assert "[PASS] spread" in deployed.kube_test("--iterations", "2000", "4")


def test_pods_that_meet_on_a_card_run_in_parallel(deployed: Deployed) -> None:
    report = deployed.kube_test("--iterations", "8000", "10")
    assert "[PASS] parallel" in report
    assert "[PASS] spread" in report


def test_pods_take_turns_when_told_to(deployed: Deployed) -> None:
    assert "[PASS] serial" in deployed.kube_test("--iterations", "8000", "--serial", "10")


def test_idle_pods(deployed: Deployed) -> None:
    assert "Total: 6, Pass: 6" in deployed.kube_test("--workload", "add-idle-small", "--iterations", "200", "6")


def test_a_memory_limit_by_annotation(deployed: Deployed) -> None:
    assert "[PASS] memory limit" in deployed.kube_test("--iterations", "2000", "--mem", "1Gi", "2")


def test_a_memory_limit_that_is_raised(deployed: Deployed) -> None:
    assert "[PASS] raised live" in deployed.kube_test("--dynamic", "2")


def test_an_upgrade_ends_no_task(deployed: Deployed) -> None:
    """Both DaemonSets are replaced, and with them the library, while a pod works."""
    name = "upgraded"
    command = ["python3", "-m", "nvshare.lab.workloads", "add-small", "--progress", "--time-scale", f"{SPEED:g}"]
    container = {"name": "task", "image": deployed.image, "command": [*command, "--iterations", "30000"],
                 "resources": {"limits": {"nvshare.com/gpu": "1"}}}  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
           "spec": {"restartPolicy": "Never", "containers": [container]}}  # fmt: skip
    kubectl("create", "--filename", "-", given=json.dumps(pod))
    try:
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
        for daemonset in DAEMONSETS:
            kubectl("rollout", "restart", f"daemonset/{daemonset}", "--namespace", SYSTEM)
        for daemonset in DAEMONSETS:
            kubectl("rollout", "status", f"daemonset/{daemonset}", "--namespace", SYSTEM, "--timeout", "120s")
        kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        assert "\nPASS\n" in kubectl("logs", name)
    finally:
        kubectl("delete", "pod", name, "--now", "--ignore-not-found")
