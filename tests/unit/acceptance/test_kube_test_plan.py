"""Which pods a test on a cluster takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvshare.acceptance.kube_test import plan
from nvshare.acceptance.kube_test.kubectl import Kubectl, KubectlFailed
from nvshare.acceptance.kube_test.plan import MIB, Request
from nvshare.bench.workloads import grow, program
from nvshare.bench.workloads.spec import WORKLOADS

GIB = 1 << 30
REQUEST = Request(4, WORKLOADS["add-small"], "example/image:1", "cafe")


@pytest.mark.parametrize(
    ("workload", "stem"), [("add", "cross-gpu"), ("add-small", "small"), ("add-idle-small", "idle-small")]
)
def test_names_are_those_that_people_know(workload: str, stem: str) -> None:
    pods = plan.pods(replace(REQUEST, workload=WORKLOADS[workload], count=2))
    assert [pod.name for pod in pods] == [f"nvshare-{stem}-1", f"nvshare-{stem}-2"]


def test_a_pod_asks_for_one_share_and_says_whose_it_is() -> None:
    pod = plan.pod_object(plan.pods(REQUEST)[0], REQUEST)
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvshare.com/gpu": "1"}
    assert container["image"] == "example/image:1"
    assert pod["metadata"]["labels"] == {plan.RUN_LABEL: "cafe"}
    assert pod["spec"]["restartPolicy"] == "Never"
    json.dumps(pod)


def test_a_baseline_asks_for_whole_gpus() -> None:
    request = replace(REQUEST, baseline=True)
    assert plan.pod_object(plan.pods(request)[0], request)["spec"]["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": "1"
    }


def test_no_two_pods_have_the_same_data() -> None:
    seeds = [pod.command[pod.command.index("--seed") + 1] for pod in plan.pods(REQUEST)]
    assert len(set(seeds)) == 4


@pytest.mark.parametrize("limit", [64 * MIB, GIB, 100 * GIB])
def test_under_a_limit_one_asks_for_more_and_the_next_for_less(limit: int) -> None:
    over, below = plan.pods(replace(REQUEST, count=2, mem=limit))
    assert (over.expected, below.expected) == ("OOM", "PASS")
    assert below.bytes <= plan.BELOW * limit < limit < over.bytes
    assert over.annotations == below.annotations == {plan.MEMORY_ANNOTATION: str(limit)}


@pytest.mark.parametrize("mem", [None, 4 * GIB, 10**9, plan.LEAST_LIMIT])
def test_growing_pods_pass_their_limit_and_not_the_raised_one(mem: int | None) -> None:
    request = replace(REQUEST, dynamic=True, mem=mem)
    assert request.limit is not None
    assert request.limit < request.grown <= request.raised_limit
    assert 0 < request.step < request.limit
    assert request.step % (2 * MIB) == 0, "what is not counted as it is held cannot be judged"
    assert plan.pods(request)[0].annotations == {plan.MEMORY_ANNOTATION: str(request.limit)}


@pytest.mark.parametrize("request_", [REQUEST, replace(REQUEST, mem=GIB, speed=10), replace(REQUEST, dynamic=True)])
def test_commands_are_taken_by_the_programs(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (program, grow):
        monkeypatch.setattr(module, "run", lambda *given: 0)
    for pod in plan.pods(request_):
        _, _, module_name, *arguments = pod.command
        module = {"nvshare.lab.workloads": program, "nvshare.lab.workloads.grow": grow}[module_name]
        assert module.main(arguments) == 0


def test_of_what_kubectl_says_its_log_lines_are_left_out(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        'for i in 1 2 3; do echo "E1115 21:59:03.1    1234 memcache.go:265] couldn\'t get API group list" >&2; done\n'
        'echo "The connection to the server localhost:8080 was refused" >&2; exit 1\n'
    )
    program.chmod(0o755)
    with pytest.raises(KubectlFailed) as failed:
        Kubectl(str(program)).call("get", "pods")
    assert str(failed.value) == "kubectl get pods: The connection to the server localhost:8080 was refused"
