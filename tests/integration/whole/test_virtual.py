"""The application's own virtual memory beyond the card: real processes, scheduler and library on a simulated driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated

SCRIBBLER = Path(__file__).with_name("scribbler.py")
MIB = 1 << 20
SWITCHES = 24


def scribbler(node: Node, seed: int, memory: str, mib: int) -> Program:
    options = ("--seed", str(seed), "--bytes", str(mib), "--memory", memory)
    task = node.start(str(SCRIBBLER), *options, NVSHARE_IDLE_MS="20")  # each of its pauses is to be a switch
    task.line_with("filled")
    return task


def client(status: dict[str, Any], task: Program) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in status["clients"] if each["pid"] == task.pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "mib", "card"), [("segments", 900, "1GiB"), ("arena", 1000, "4GiB")])
def test_every_byte_survives_switches(node: Node, memory: str, mib: int, card: str) -> None:
    # GIVEN a card that is too small for a task with virtual memory of its own and a neighbour
    node.restart_scheduler("--card-memory", card)
    neighbour = scribbler(node, 1, "plain", 900 if memory == "segments" else 2000)
    task = scribbler(node, 2, memory, mib)
    # WHEN they have taken many turns
    node.await_status(lambda status: status["counters"]["switches"] >= SWITCHES)
    # THEN its memory was moved, none of it is pinned
    status = node.status()
    assert status["counters"]["swapped_bytes"] > SWITCHES * 100 * MIB
    (gpu,) = client(status, task)["gpus"]
    assert gpu["pinned"] == 0
    if memory == "arena":
        assert gpu["allocated"] == 3072 * MIB
    # AND every byte of both is as it was written
    for each in (task, neighbour):
        code, _ = each.result()
        assert code == 0, each.said
    node.await_status(lambda status: status["clients"] == [])


def test_quota_is_the_end_of_virtual_memory_too(node: Node) -> None:
    # GIVEN a task with a quota of 1Gi WHEN it makes handles of 20 MiB without end
    task = node.start("-c", UNTIL_REFUSED, NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    # THEN 51 fit; after one is gone another one does; and what is released but still mapped counts
    assert task.line_with("made") == "made 51"
    assert task.line_with("mapped") == "mapped: refused"
    assert task.line_with("unmapped") == "unmapped: made"
    code, _ = task.result()
    assert code == 0, task.said


UNTIL_REFUSED = """
import ctypes
from nvshare.bench.driver import Context, CudaError, Driver
SEGMENT = 20 << 20
def create():
    handle = ctypes.c_ulonglong()
    context.driver.call("cuMemCreate", ctypes.byref(handle), SEGMENT, (ctypes.c_int * 8)(1, 0, 1, 0), 0)
    return handle
def attempt():
    try:
        create()
    except CudaError as error:
        assert error.name == "CUDA_ERROR_OUT_OF_MEMORY", error
        return "refused"
    return "made"
with Context(Driver()) as context:
    last, made = create(), 1
    while attempt() == "made":
        made += 1
    print("made", made, flush=True)
    with context.address_range(SEGMENT) as pointer:
        context.driver.call("cuMemMap", pointer, SEGMENT, 0, last, 0)
        context.driver.call("cuMemRelease", last)
        print("mapped:", attempt(), flush=True)
        context.driver.call("cuMemUnmap", pointer, SEGMENT)
    print("unmapped:", attempt(), flush=True)
"""
