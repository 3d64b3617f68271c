"""Memory under the preloaded library, in real processes on a simulated node, without a scheduler."""

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

PROGRAM = Path(__file__).with_name("memory_program.py")
MIB = 1 << 20
OUT_OF_MEMORY = 2
T4_BYTES = 14913 * MIB

pytestmark = pytest.mark.simulated


def run(case: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Run a case of memory_program.py preloaded; its report, and what the library said."""
    node = sim.up("2xT4", name=f"memory-{os.getpid()}")
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
    return report, result.stderr


def test_contents_survive_any_order_of_allocations_and_frees() -> None:
    # GIVEN a program that allocates, fills, checks and frees memory of all sizes in random order
    # WHEN it runs under the library, with a quota that never bites
    report, _ = run("shuffled", NVSHARE_GPU_MEMORY_LIMIT="12Gi")
    # THEN no byte changed, no two allocations overlapped
    assert report["wrong"] == 0
    assert report["overlaps"] == 0
    # AND the count went up and came back, but for one spare slab of 2 MiB
    assert report["in_use"] > 100 * MIB
    assert report["left"] in (0, 2 * MIB)


def test_pointers_answer_as_for_plain_memory() -> None:
    report, said = run("pointers")
    assert report == {
        "context": True,
        "type": 2,
        "start": True,
        "size": 5 * MIB,
        "ids_differ": True,
        "range": [True, 1000],
        "ipc": 0,
        "free_inside": 1,
        "free": 0,
        "free_again": 1,
        "free_null": 0,
    }
    assert "cuIpcGetMemHandle" not in said


def test_free_during_capture_waits_for_its_end() -> None:
    # GIVEN a stream that captures WHEN memory is freed THEN the capture survives and the memory goes afterwards
    report, _ = run("capture", NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    assert report == {"while_capturing": 68 * MIB, "after": 4 * MIB}


def test_memory_goes_only_when_its_work_is_finished() -> None:
    # GIVEN work under way on memory WHEN it is freed THEN that work neither fails nor reaches what comes after it
    report, _ = run("busy")
    assert report == {"synchronize": 0, "intact": True}


def test_destroyed_context_leaves_nothing_counted() -> None:
    report, _ = run("contexts", NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    assert report == {"before": 53 * MIB, "after": 0}


def test_memory_of_the_driver_is_counted() -> None:
    report, _ = run("counted", NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    assert report == {"managed": 3 * MIB, "exportable_pool": 5 * MIB, "left": 0}


def test_forked_child_cannot_touch_the_parents_memory() -> None:
    report, _ = run("forked")
    assert report == {"child": 0, "contents": "parent"}


def test_task_at_1gi_gets_the_error_and_goes_on_after_freeing() -> None:
    # GIVEN a quota of 1Gi WHEN a task allocates up to it
    report, _ = run("quota", NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    # THEN the card has 1024 MiB, 276 of them free beside 748
    assert report["device_total"] == 1024 * MIB
    assert report["at_start"] == [1024 * MIB, 1024 * MIB]
    assert report["with_748"] == [276 * MIB, 1024 * MIB]
    # AND what goes over is refused with the error that frameworks know, to the last byte
    assert report["too_much"] == OUT_OF_MEMORY
    assert report["full"] == [0, 1024 * MIB]
    assert report["small_when_full"] == OUT_OF_MEMORY
    # AND after a free it goes on
    assert report["after_free"] == 0


def test_nvml_shows_the_quota_before_and_after_a_context() -> None:
    # GIVEN a quota in the environment WHEN a program asks NVML, first without and then with a context
    report, _ = run("nvml", NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    # THEN the card has the size of the quota both times
    assert report["without_context"][0] == 1024 * MIB
    # AND with a context, what is used is the program's own, as cuMemGetInfo says
    assert report["with_100"] == [1024 * MIB, 924 * MIB, 100 * MIB]


def test_without_quota_and_scheduler_nvml_answers_itself() -> None:
    report, _ = run("nvml")
    assert report["without_context"][0] == T4_BYTES
