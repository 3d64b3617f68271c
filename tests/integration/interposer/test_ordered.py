"""Stream-ordered memory under the preloaded library, in real processes on a simulated node, without a scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvshare import native
from nvshare.gpu import sim

PROGRAM = Path(__file__).with_name("ordered_program.py")
MIB = 1 << 20
OUT_OF_MEMORY = 2

pytestmark = pytest.mark.simulated


def run(case: str, **variables: str) -> dict[str, Any]:
    """The report of a case of ordered_program.py, run preloaded."""
    node = sim.up("1xT4", name=f"ordered-{os.getpid()}")
    environment = {
        **os.environ,
        **node.env(),
        "LD_PRELOAD": str(native.interposer()),
        "NVSHARE_SOCK": str(node.directory / "no-scheduler.sock"),
        **variables,
    }
    try:
        result = subprocess.run(
            [sys.executable, PROGRAM, case], env=environment, capture_output=True, text=True, timeout=100, check=False
        )
    finally:
        sim.down(node.name)
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_contents_survive_any_order_of_allocations_and_frees_in_many_streams() -> None:
    assert run("shuffled", NVSHARE_GPU_MEMORY_LIMIT="12Gi") == {"wrong": 0, "agrees": True, "left": 0}


def test_streams_that_hand_memory_over_never_share_it_too_early() -> None:
    assert run("handed_over") == {"wrong": 0, "early": 0}


def test_quota_is_an_out_of_memory_error_and_freeing_makes_room() -> None:
    assert run("quota", NVSHARE_GPU_MEMORY_LIMIT="1Gi") == {
        "too_much": OUT_OF_MEMORY,
        "after_a_free_in_another_stream": True,
        "used": 900 * MIB,
        "free": 124 * MIB,
    }


def test_a_pool_keeps_what_is_freed_until_it_is_trimmed() -> None:
    assert run("given_back") == {"is_its_pool": True, "kept": 100 * MIB, "after_trim": 0, "used_high": 100 * MIB}


def test_a_plain_free_waits_for_work() -> None:
    assert run("plain_free")["intact"]


def test_memory_of_a_destroyed_stream_waits_for_its_work() -> None:
    assert run("destroyed_stream") == {"intact": True}
