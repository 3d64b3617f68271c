"""Who a task is, the kernel says: what it claims of itself changes nothing."""

from __future__ import annotations

import re

import pytest

from tests.kube.test_quotas import group_of, seen, task
from tests.kube.world import CORE_LIMIT, MEMORY_LIMIT, World, wait_for

pytestmark = pytest.mark.timeout(600)

CLAIM = """
import os, sys
os.environ.update(name.split("=", 1) for name in {claims!r})
os.execvp(sys.argv[1], sys.argv[1:])
"""


def claiming(command: list[str], *claims: str) -> list[str]:
    """The same command after a task edited its environment."""
    return ["python3", "-c", CLAIM.format(claims=list(claims)), *command]


def test_task_that_claims_another_pods_name_gets_its_own_pods_quota(world: World) -> None:
    rich = world.create("rich", annotations={MEMORY_LIMIT: "8Gi", CORE_LIMIT: "90"}, command=task("watch"))
    claims = ("NVSHARE_POD_NAME=rich", "NVSHARE_POD_NAMESPACE=default", "HOSTNAME=rich")
    liar = world.create(
        "liar", annotations={MEMORY_LIMIT: "1Gi", CORE_LIMIT: "30"}, command=claiming(task("watch"), *claims)
    )
    seen(world, rich, "Core limit = 90%")
    seen(world, liar, "Core limit = 30%")
    seen(world, liar, r"total 1024\b")
    names = {client["group"]: client["pod"] for client in world.scheduler_status()["clients"]}
    assert names == {f"pod:{rich.uid}": "rich", f"pod:{liar.uid}": "liar"}
    # AND a change of the other's quota is not its own
    world.annotate(rich, CORE_LIMIT, "80")
    seen(world, rich, "Core limit = 80%")
    assert re.findall(r"Core limit = (\d+)%", world.logs(liar)) == ["30"]


def test_task_that_edits_its_environment_gets_its_own_pods_quota(world: World) -> None:
    claims = ("NVSHARE_GPU_MEMORY_LIMIT=12Gi", "NVSHARE_GPU_CORE_LIMIT=100")
    pod = world.create("greedy", annotations={MEMORY_LIMIT: "1Gi"}, command=claiming(task("watch"), *claims))
    seen(world, pod, r"total 1024\b")
    code, text = world.execute(pod, claiming(task("once", 2000), *claims))
    assert (code, "CUDA_ERROR_OUT_OF_MEMORY" in text) == (3, True), text


def test_environment_counts_again_when_the_annotation_is_gone(world: World) -> None:
    pod = world.create(
        "start",
        annotations={MEMORY_LIMIT: "1Gi"},
        command=claiming(task("watch"), "NVSHARE_GPU_MEMORY_LIMIT=3Gi"),
    )
    seen(world, pod, r"total 1024\b")
    world.annotate(pod, MEMORY_LIMIT, None)
    seen(world, pod, r"total 3072\b")


def test_task_may_not_change_quotas(world: World) -> None:
    pod = world.create("rebel", annotations={MEMORY_LIMIT: "1Gi"}, command=task("watch"))
    seen(world, pod, r"total 1024\b")
    rise = ["python3", "-m", "nvshare.cli.ctl", "set", "--pod", "default/rebel", "--mem", "8GiB"]
    code, text = world.execute(pod, rise)
    assert (code, "only root or the scheduler's own user" in text) == (2, True), text
    tell = (
        "import os, pathlib; from nvshare.client.connection import Connection; "
        f"Connection(pathlib.Path(os.environ['NVSHARE_SOCK'])).request('pods', gone=['{pod.uid}'])"
    )
    code, text = world.execute(pod, ["python3", "-c", tell])
    assert (code, "only root" in text) == (1, True), text
    assert group_of(world, pod)["mem_limit"] == 1 << 30


def test_task_outside_of_any_pod_gets_the_default(world: World) -> None:
    pod = world.create("inside", annotations={MEMORY_LIMIT: "1Gi", CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    claims = {"NVSHARE_POD_NAME": "inside", "NVSHARE_POD_NAMESPACE": "default", "KUBERNETES_SERVICE_HOST": "x"}
    with world.outside(task("watch"), claims):
        wait_for("it", lambda: len(world.scheduler_status()["clients"]) == 2)
        (client,) = [client for client in world.scheduler_status()["clients"] if client["group"] != f"pod:{pod.uid}"]
        assert client["group"].startswith("process:")
        assert (client["mem_limit"], client["core_limit"], client["pod"]) == (None, 100, "")
