"""What is deployed, as it is deployed: the chart on a real cluster, and ``nvshare kube-test`` on top of it.

Runs before the tests that have the programs of nvshare beside the kubelet: a node has room for one device plugin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from image import IMAGE

from tests.kube.deployment import CHART, DAEMONSETS, SPEED, SYSTEM, TREE, Ground, ground, kube_test, kubectl, run

pytestmark = pytest.mark.timeout(400)

MANIFESTS = TREE / "deploy" / "manifests"
EXAMPLES = TREE / "examples" / "kubernetes"


@pytest.fixture(scope="module")
def deployed(cluster: Cluster, runtime_directory: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The chart, installed by Helm, on a node with simulated cards."""
    with ground(cluster, tmp_path_factory.mktemp("values")) as place:
        run("helm", "install", "nvshare", str(CHART), "--namespace", SYSTEM, "--create-namespace",
            "--values", str(place.values))  # fmt: skip
        try:
            for name in DAEMONSETS:
                try:
                    kubectl("rollout", "status", f"daemonset/{name}", "--namespace", SYSTEM, "--timeout", "120s")
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{kubectl('describe', 'pods', '--namespace', SYSTEM)}") from None
            yield place
        finally:
            run("helm", "uninstall", "nvshare", "--namespace", SYSTEM, "--wait")


@pytest.mark.parametrize("name", ["namespace", "rbac", "scheduler", "device-plugin"])
def test_the_api_server_takes_the_manifests(deployed: Ground, name: str) -> None:
    kubectl("apply", "--dry-run=server", "--filename", str(MANIFESTS / f"{name}.yaml"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_api_server_takes_the_examples(cluster: Cluster, path: Path) -> None:
    kubectl("apply", "--dry-run=server", "--filename", str(path))


@pytest.mark.parametrize(
    ("account", "rights"),
    [("nvshare-scheduler", {("pods", "list watch"), ("events", "create")}), ("nvshare-device-plugin", set())],
)
def test_accounts_may_do_what_they_need_and_no_more(
    deployed: Ground, account: str, rights: set[tuple[str, str]]
) -> None:
    def rights_of(user: str) -> set[tuple[str, str]]:
        listed = kubectl("auth", "can-i", "--list", "--no-headers", f"--as=system:serviceaccount:{SYSTEM}:{user}")
        return set(re.findall(r"^(\S+)\s+\[\]\s+\[\]\s+\[(.*)\]$", listed, re.MULTILINE))

    assert rights_of(account) - rights_of("nobody-in-particular") == rights


def test_the_scheduler_sees_the_cards_and_says_so(deployed: Ground) -> None:
    where = ("--namespace", SYSTEM, "daemonset/nvshare-scheduler", "--container", "scheduler")
    status = json.loads(kubectl("exec", *where, "--", "nvsharectl", "status", "--json"))
    assert sorted(gpu["uuid"] for gpu in status["gpus"]) == sorted(deployed.node.uuids)


def test_pods_share_cards(deployed: Ground) -> None:
    assert "[PASS] spread" in kube_test("--skip-setup", "--iterations", "2000", "4")


def test_pods_that_meet_on_a_card_run_in_parallel(deployed: Ground) -> None:
    report = kube_test("--skip-setup", "--iterations", "8000", "10")
    assert "[PASS] parallel" in report
    assert "[PASS] spread" in report


@pytest.mark.parametrize(("count", "verdict"), [("10", "[PASS] serial"), ("4", "Total: 4, Pass: 4")])
def test_pods_take_turns_when_told_to(deployed: Ground, count: str, verdict: str) -> None:
    assert verdict in kube_test("--skip-setup", "--iterations", "8000", "--serial", count)


def test_idle_pods(deployed: Ground) -> None:
    assert "Total: 6, Pass: 6" in kube_test("--skip-setup", "--workload", "add-idle-small", "--iterations", "200", "6")


def test_a_memory_limit_by_annotation(deployed: Ground) -> None:
    assert "[PASS] memory limit" in kube_test("--skip-setup", "--iterations", "2000", "--mem", "1Gi", "2")


def test_a_memory_limit_that_is_raised(deployed: Ground) -> None:
    assert "[PASS] raised live" in kube_test("--skip-setup", "--dynamic", "2")


def test_an_upgrade_ends_no_task(deployed: Ground) -> None:
    """Both DaemonSets are replaced, and with them the library, while a pod works."""
    name = "upgraded"
    command = ["python3", "-m", "nvshare.bench.workloads", "add-small", "--progress", "--time-scale", f"{SPEED:g}"]
    container = {"name": "task", "image": IMAGE, "command": [*command, "--iterations", "30000"],
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
