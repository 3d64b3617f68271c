"""The example pods: names that people know, programs that exist, limits that parse."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvshare import config
from nvshare.bench.workloads import grow, program
from nvshare.bench.workloads.spec import WORKLOADS

yaml = pytest.importorskip("yaml", reason="comes with nvshare[kube]")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"
PODS = {
    "two-sharing": ["nvshare-sharing-1", "nvshare-sharing-2"],
    "cross-gpu": [f"nvshare-cross-gpu-{number}" for number in range(1, 5)],
    "small": [f"nvshare-small-{number}" for number in range(1, 5)],
    "idle-small": [f"nvshare-idle-small-{number}" for number in range(1, 7)],
    "memory-limit": ["nvshare-mem-below", "nvshare-mem-beyond", "nvshare-mem-resource"],
    "dynamic-limits": ["nvshare-dynamic-mem", "nvshare-dynamic-cores"],
}
RESOURCES = {"nvshare.com/gpu", "nvshare.com/gpumem"}
ANNOTATIONS: dict[str, Callable[[str], int]] = {
    "nvshare.com/gpu-memory-limit": config.parse_size,
    "nvshare.com/gpu-core-limit": int,
}


def pods() -> list[dict[str, Any]]:
    return [pod for name in PODS for pod in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())]


def test_every_example_is_known_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.yaml")) == sorted(PODS)


@pytest.mark.parametrize("name", PODS)
def test_pods_have_the_names_that_people_know(name: str) -> None:
    found = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
    assert [pod["metadata"]["name"] for pod in found] == PODS[name]
    assert {pod["kind"] for pod in found} == {"Pod"}


@pytest.mark.parametrize("pod", pods(), ids=lambda pod: pod["metadata"]["name"])
def test_each_pod_asks_for_one_share_with_limits_that_parse(pod: dict[str, Any]) -> None:
    (container,) = pod["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits["nvshare.com/gpu"] == 1
    assert set(limits) <= RESOURCES
    for key, value in pod["metadata"].get("annotations", {}).items():
        assert isinstance(value, str), "annotations are strings"
        assert ANNOTATIONS[key](value) > 0


@pytest.mark.parametrize("pod", pods(), ids=lambda pod: pod["metadata"]["name"])
def test_each_pod_runs_a_program_that_takes_its_arguments(pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter, option, module, *arguments = pod["spec"]["containers"][0]["command"]
    assert (interpreter, option) == ("python3", "-m")
    assert all(isinstance(argument, str) for argument in arguments), "a command is made of strings"
    ran: list[tuple[Any, ...]] = []
    known = {"nvshare.lab.workloads": program, "nvshare.lab.workloads.grow": grow}[module]
    monkeypatch.setattr(known, "run", lambda *given: ran.append(given) or 0)
    assert known.main(arguments) == 0
    assert len(ran) == 1


def test_the_limited_pods_are_below_and_beyond_as_they_say() -> None:
    by_name = {pod["metadata"]["name"]: pod for pod in pods()}
    limit = config.parse_size(by_name["nvshare-mem-below"]["metadata"]["annotations"]["nvshare.com/gpu-memory-limit"])
    size = int(by_name["nvshare-mem-below"]["spec"]["containers"][0]["command"][-1])
    small = WORKLOADS["add-small"]
    assert small.buffers * size * size * 4 < limit < small.bytes
    text = (EXAMPLES / "memory-limit.yaml").read_text()
    assert re.search(r"n = 6000: 687 MiB", text)
    assert round(small.buffers * size * size * 4 / 2**20) == 687
