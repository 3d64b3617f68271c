"""A launch costs at most 60 instructions inside the library, in a compute turn and for a stream-ordered pair 600."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "launch_cost.py"


@pytest.fixture(scope="module")
def launch_cost() -> Any:
    spec = importlib.util.spec_from_file_location("launch_cost", BENCHMARK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_only_the_cost_of_an_object_itself_is_counted(launch_cost: Any) -> None:
    # GIVEN callgrind's output for two objects, one calling the other, with names that are given once and then by number
    text = "\n".join(
        [
            "ob=(1) /usr/bin/program",
            "fn=(1) main",
            "10 7",
            "cob=(2) /lib/libnvshare.so",
            "cfn=(2) cuLaunchKernel",
            "calls=3 20",
            "11 900",
            "+1 5",
            "ob=(2)",
            "fn=(2)",
            "20 100",
            "* 20",
            "totals: 132",
        ]
    )
    # WHEN it is summed up THEN a call's cost belongs to the callee alone
    assert launch_cost.instructions_by_object(text) == {"/usr/bin/program": 12, "/lib/libnvshare.so": 120}


@pytest.mark.simulated
@pytest.mark.parametrize("what", ["launches", "turns", "pairs"])
def test_frequent_calls_are_cheap(launch_cost: Any, what: str) -> None:
    # GIVEN 10,000 launches, or allocations and frees in stream order, under the library WHEN callgrind counts
    result = launch_cost.measure(what, 10_000)
    if "skipped" in result:
        pytest.skip(result["skipped"])
    # THEN the mean is within the limit
    assert result["instructions_each"] <= result["limit"]
