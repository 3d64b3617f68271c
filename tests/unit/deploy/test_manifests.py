"""What is installed: rendered from the chart, with the names that users know and no more rights than needed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvshare import __version__
from nvshare.acceptance.kube_test.run import MANIFESTS, manifests

yaml = pytest.importorskip("yaml", reason="comes with nvshare[kube]")

TREE = Path(__file__).resolve().parents[3]
RENDERED = TREE / "deploy" / "manifests"
NO_HELM = 77


def objects() -> list[dict[str, Any]]:
    return [one for name in MANIFESTS for one in yaml.safe_load_all((RENDERED / name).read_text()) if one]


def the(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(daemonset: str) -> dict[str, Any]:
    spec: dict[str, Any] = the("DaemonSet", daemonset)["spec"]["template"]["spec"]
    return spec


def containers(daemonset: str) -> dict[str, dict[str, Any]]:
    pod = pod_of(daemonset)
    return {one["name"]: one for one in [*pod.get("initContainers", ()), *pod["containers"]]}


def test_they_are_what_the_chart_renders(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", str(TREE / "tools" / "manifests.sh"), str(tmp_path)], check=False, capture_output=True, text=True
    )
    if done.returncode == NO_HELM:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    for name in MANIFESTS:
        assert (RENDERED / name).read_text() == (tmp_path / name).read_text(), "run: make manifests"


def test_chart_and_images_carry_our_version() -> None:
    chart = yaml.safe_load((TREE / "deploy" / "chart" / "nvshare" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    for daemonset in ("nvshare-scheduler", "nvshare-device-plugin"):
        for container in containers(daemonset).values():
            assert container["image"].endswith(f":{__version__}")


def test_everything_is_in_the_one_namespace() -> None:
    assert the("Namespace", "nvshare-system")
    spread = {one["metadata"].get("namespace") for one in objects()}
    assert spread == {"nvshare-system", None}
    assert {one["kind"] for one in objects() if "namespace" not in one["metadata"]} == {
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
    }


def test_names_that_users_grep_for() -> None:
    assert list(containers("nvshare-scheduler")) == ["install-library", "scheduler", "pod-watch"]
    assert list(containers("nvshare-device-plugin")) == ["nvshare-device-plugin"]
    for daemonset in ("nvshare-scheduler", "nvshare-device-plugin"):
        spec = the("DaemonSet", daemonset)["spec"]
        assert spec["template"]["metadata"]["labels"]["name"] == daemonset
        assert spec["selector"]["matchLabels"] == {"name": daemonset}


def test_rights_are_to_read_pods_and_to_report_on_them() -> None:
    rules = [rule for one in objects() if one["kind"] in ("Role", "ClusterRole") for rule in one["rules"]]
    granted = {(verb, kind) for rule in rules for verb in rule["verbs"] for kind in rule["resources"]}
    assert granted == {("list", "pods"), ("watch", "pods"), ("create", "events")}
    subjects = [subject["name"] for one in objects() if one["kind"].endswith("Binding") for subject in one["subjects"]]
    assert subjects == ["nvshare-scheduler"]


def test_only_the_pod_watch_is_given_a_token() -> None:
    for daemonset in ("nvshare-scheduler", "nvshare-device-plugin"):
        assert pod_of(daemonset)["automountServiceAccountToken"] is False
        assert the("ServiceAccount", daemonset)["automountServiceAccountToken"] is False
    holders = [
        name
        for name, container in {**containers("nvshare-scheduler"), **containers("nvshare-device-plugin")}.items()
        if any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
    ]
    assert holders == ["pod-watch"]


def test_containers_are_confined() -> None:
    added = {}
    for daemonset in ("nvshare-scheduler", "nvshare-device-plugin"):
        for name, container in containers(daemonset).items():
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert "privileged" not in context
            assert context["capabilities"]["drop"] == ["ALL"]
            added[name] = context["capabilities"].get("add", [])
            assert "memory" in container["resources"]["limits"]
    assert {name: more for name, more in added.items() if more} == {"scheduler": ["SYS_PTRACE"]}
    assert [one for one in ("nvshare-scheduler", "nvshare-device-plugin") if pod_of(one).get("hostPID")] == [
        "nvshare-scheduler"
    ]
    assert not any(pod_of(one).get("hostNetwork") for one in ("nvshare-scheduler", "nvshare-device-plugin"))


def test_an_upgrade_meets_folders_and_not_files() -> None:
    """A file that is mounted stays the old one for as long as the mount lives."""
    for daemonset in ("nvshare-scheduler", "nvshare-device-plugin"):
        for volume in pod_of(daemonset)["volumes"]:
            assert volume.get("hostPath", {}).get("type", "Directory").startswith("Directory")
        assert the("DaemonSet", daemonset)["spec"]["updateStrategy"]["type"] == "RollingUpdate"


def test_kube_test_finds_them() -> None:
    assert manifests(None) == [RENDERED / name for name in MANIFESTS]


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All objects of a chart with everything about metrics turned on."""
    directory = tmp_path_factory.mktemp("monitored")
    parts = ("serviceMonitor", "podMonitor", "alerts", "dashboard")
    values = ["metrics.enabled=true", *(f"metrics.{part}.enabled=true" for part in parts)]
    values.append("metrics.alerts.runbooks=https://wiki.example/nvshare")
    script = ["sh", str(TREE / "tools" / "manifests.sh"), str(directory), "--set", ",".join(values)]
    done = subprocess.run(
        script, env={**os.environ, "PARTS": "scheduler metrics"}, check=False, capture_output=True, text=True
    )
    if done.returncode == NO_HELM:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return [one for path in directory.iterdir() for one in yaml.safe_load_all(path.read_text()) if one]


def test_the_exporter_is_a_sidecar_without_rights(monitored: list[dict[str, Any]]) -> None:
    (daemonset,) = [one for one in monitored if one["kind"] == "DaemonSet"]
    (exporter,) = [one for one in daemonset["spec"]["template"]["spec"]["containers"] if one["name"] == "exporter"]
    assert exporter["args"] == ["--listen=:9402"]
    assert exporter["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert exporter["securityContext"]["readOnlyRootFilesystem"] is True
    assert [mount["readOnly"] for mount in exporter["volumeMounts"]] == [True]
    (service,) = [one for one in monitored if one["kind"] == "Service"]
    assert service["spec"]["selector"].items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()


def test_monitors_keep_the_labels_of_tasks(monitored: list[dict[str, Any]]) -> None:
    by_kind = {one["kind"]: one["spec"] for one in monitored if one["kind"].endswith("Monitor")}
    (pods,), (services,) = by_kind["PodMonitor"]["podMetricsEndpoints"], by_kind["ServiceMonitor"]["endpoints"]
    assert pods == services
    assert pods["honorLabels"] is True
    assert [rule["action"] for rule in pods["relabelings"]] == ["replace", "labeldrop"]


def test_alerts_and_dashboard_are_those_of_the_tree(monitored: list[dict[str, Any]]) -> None:
    by_kind = {one["kind"]: one for one in monitored}
    groups = yaml.safe_load((TREE / "deploy/chart/nvshare/alerts.yaml").read_text())["groups"]
    rendered = by_kind["PrometheusRule"]["spec"]["groups"]
    assert [rule["expr"] for rule in rendered[0]["rules"]] == [rule["expr"] for rule in groups[0]["rules"]]
    links = [rule["annotations"]["runbook_url"] for rule in rendered[0]["rules"]]
    assert all(link.startswith("https://wiki.example/nvshare#") for link in links)
    board = json.loads(by_kind["ConfigMap"]["data"]["nvshare.json"])
    assert board == json.loads((TREE / "deploy/chart/nvshare/dashboard.json").read_text())


def test_values_that_are_none_are_refused(tmp_path: Path) -> None:
    script = ["sh", str(TREE / "tools" / "manifests.sh"), str(tmp_path), "--set", "metrics.port=none"]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    if done.returncode == NO_HELM:
        pytest.skip(done.stderr.strip())
    assert done.returncode != 0
    assert "port" in done.stderr
