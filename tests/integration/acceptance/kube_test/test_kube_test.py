"""``nvshare kube-test`` against pods that are real tasks under the real library and scheduler."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nvshare.cli.report import command as report
from tests.support.processes import Run

pytestmark = pytest.mark.simulated

Make = Callable[..., Any]
SHORT = ("--skip-setup", "--iterations", "2500")  # more than a second of a whole card


def verdicts(text: str) -> dict[str, str]:
    return {name: word for word, name in re.findall(r"^\[(PASS|FAIL|SKIP)\] ([a-z ]+):", text, re.MULTILINE)}


def test_four_pods_share_two_gpus_in_parallel(make_cluster: Make, tmp_path: Path, recorded: Make) -> None:
    cluster = make_cluster()
    rows, page = tmp_path / "result.json", tmp_path / "result.html"
    done = cluster.test(*SHORT, "--json", str(rows), "--html", str(page), "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(done.stdout) == {"finished": "PASS", "shared": "PASS", "spread": "PASS", "parallel": "PASS"}
    assert "Total: 4, Pass: 4, Fail: 0" in done.stdout
    for pod in range(1, 5):
        assert re.search(rf"^nvshare-small-{pod} +\| [0-9a-f]{{16}}   \| GPU-", done.stdout, re.MULTILINE)
    result = json.loads(rows.read_text())
    recorded("nvshare kube-test --json ROWS 4", done.returncode, result)
    assert (result["kind"], result["version"], result["source"]) == ("kube-test", 1, "kubernetes")
    assert result["date"]
    assert result["passed"]
    assert sorted(card["gpu"] for card in result["timeline"]) == sorted(cluster.gpus)
    assert cluster.pods() == []
    # AND the page drawn later from the file is the one drawn at once
    again = tmp_path / "again.html"
    shown = CliRunner().invoke(report, [str(rows), "--html", str(again)])
    assert shown.exit_code == 0, shown.output
    assert again.read_bytes() == page.read_bytes()
    assert page.read_text().count('data-plot="held"') >= 4


def test_serial_is_set_seen_and_put_back(make_cluster: Make) -> None:
    cluster = make_cluster(gpus=1)
    done = cluster.test(*SHORT, "--serial", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(done.stdout)["serial"] == "PASS"
    assert [call.split(" -- ")[1] for call in cluster.calls() if "set --mode" in call] == [
        "nvsharectl set --mode serial",
        "nvsharectl set --mode auto",
    ]


def test_a_memory_limit_lets_small_pods_pass_and_large_ones_not(make_cluster: Make) -> None:
    done = make_cluster().test(*SHORT, "--mem", "1Gi", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(done.stdout)["memory limit"] == "PASS"
    assert "Total: 2, Pass: 1, Fail: 0, Stopped as intended: 1" in done.stdout


def test_a_limit_raised_while_pods_run_lets_them_grow(make_cluster: Make) -> None:
    cluster = make_cluster()
    done = cluster.test(*SHORT, "--dynamic", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(done.stdout)["raised live"] == "PASS"
    assert sum(call.startswith("annotate") for call in cluster.calls()) == 2


@pytest.mark.parametrize(
    ("fault", "arguments", "verdict"),
    [
        ("one-gpu", ("2",), "spread"),
        ("mode-ignored", ("--serial", "3"), "serial"),
        ("limit-ignored", ("--mem", "1Gi", "2"), "memory limit"),
        ("raise-ignored", ("--dynamic", "--timeout", "4", "2"), "raised live"),
        ("unmanaged", ("2",), "shared"),
    ],
)
def test_what_is_broken_fails_its_verdict(
    make_cluster: Make, fault: str, arguments: tuple[str, ...], verdict: str
) -> None:
    cluster = make_cluster(fault)
    done = cluster.test(*SHORT, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(done.stdout)[verdict] == "FAIL"
    assert done.stdout.endswith("FAILED\n")
    assert cluster.pods() == []


def test_a_scheduler_that_never_runs_tasks_together_fails_the_verdict(make_cluster: Make) -> None:
    done = make_cluster("mode-ignored", gpus=1, mode="serial").test(*SHORT, "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(done.stdout)["parallel"] == "FAIL"


def test_set_up_installs_and_waits_for_both_daemonsets(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster()
    names = ("namespace", "rbac", "scheduler", "device-plugin")
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    for name in names:
        (manifests / f"{name}.yaml").touch()
    done = cluster.test("--manifests", str(manifests), "--iterations", "100", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    applied = next(call for call in cluster.calls() if call.startswith("apply"))
    assert re.findall(r"([a-z-]+)\.yaml", applied) == list(names)
    for daemonset in ("nvshare-scheduler", "nvshare-device-plugin"):
        assert any(call.startswith(f"rollout status daemonset/{daemonset}") for call in cluster.calls())


def test_what_helm_installed_is_not_replaced(make_cluster: Make) -> None:
    cluster = make_cluster("helm")
    done = cluster.test("1")
    assert done.returncode == 2
    assert "Helm installed nvshare here (release mine): use it as it is with --skip-setup" in done.stderr
    assert not any(call.startswith("apply") for call in cluster.calls())


def test_ctrl_c_removes_the_pods_and_restores_the_mode(make_cluster: Make, run_program: Run) -> None:
    cluster = make_cluster(gpus=1)
    arguments = cluster.command("--skip-setup", "--serial", "2")
    running = run_program(arguments)
    running.heard("Running")
    running.send_signal(signal.SIGINT)
    code, _ = running.result()
    assert code == 130
    assert "interrupted; its pods are gone" in "\n".join(running.said)
    assert cluster.pods() == []
    assert cluster.calls()[-1].endswith("nvsharectl set --mode auto")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("unreachable", "The connection to the server localhost:8080 was refused"),
        ("no-scheduler", "no scheduler runs in this cluster"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(make_cluster: Make, fault: str, words: str) -> None:
    done = make_cluster(fault).test(*SHORT, "1")
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "words"),
    [("no-image", "ImagePullBackOff: no such image"), ("refused", "UnexpectedAdmissionError: no such device")],
)
def test_pods_that_will_never_run_are_not_waited_for(make_cluster: Make, fault: str, words: str) -> None:
    began = time.monotonic()
    done = make_cluster(fault).test(*SHORT, "1")
    assert done.returncode == 1, done.stderr
    assert words in done.stdout
    assert time.monotonic() - began < 60
