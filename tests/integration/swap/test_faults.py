"""What may happen while memory is away or on the way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvshare.gpu import sim
from nvshare.wire.messages import ReleaseReason

if TYPE_CHECKING:
    from tests.integration.swap.conftest import Mover
    from tests.support.processes import Program

MIB = 1 << 20
PATIENCE = 30.0
pytestmark = pytest.mark.simulated

Start = Callable[..., "Program"]

OUT_OF_MEMORY = 2
BACKENDS = [
    pytest.param({}, id="mapped"),
    pytest.param({"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}, id="unified"),
]

# Takes memory on the card, outside of nvshare, until its standard input ends.
OUTSIDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def pinned_on_host(node: sim.SimNode, task: Program) -> int:
    return int(node.process_counters()[0][task.pid]["pinned_bytes"])


@pytest.fixture
def away(mover: Mover, start: Start) -> Program:
    """A task whose memory is on the host."""
    task = start()
    mover.in_turn(task, "allocate", 14, 11)
    mover.swap_out(0)
    return task


def test_freeing_what_is_away_leaves_nothing(node: sim.SimNode, mover: Mover, away: Program) -> None:
    before = mover.allocated
    assert pinned_on_host(node, away) == mover.memory.host > 0
    assert away.call("free", 7)
    mover.until(lambda: pinned_on_host(node, away) == mover.memory.host == mover.allocated < before)
    assert away.call("free", 7)
    mover.until(lambda: mover.allocated <= 2 * MIB)
    assert pinned_on_host(node, away) == mover.memory.host == mover.allocated


def test_freeing_what_is_on_the_way_waits_for_it(node: sim.SimNode, mover: Mover, away: Program) -> None:
    # WHEN memory is freed while it comes in, and the rest while it goes out
    mover.set_target(mover.allocated)
    assert away.call("free", 7)
    mover.swap_in()
    assert mover.in_turn(away, "verify") == 0
    mover.drop()
    mover.set_target(0)
    assert away.call("free", 7)
    mover.until(lambda: mover.allocated <= 2 * MIB and mover.memory.resident == 0)
    assert pinned_on_host(node, away) == mover.memory.host == mover.allocated


def test_a_context_can_end_while_its_memory_is_away_or_on_the_way(
    node: sim.SimNode, mover: Mover, away: Program
) -> None:
    mover.set_target(mover.allocated)
    assert away.call("destroy")
    mover.until(lambda: mover.allocated == 0 and mover.memory.resident == 0 and mover.memory.host == 0)
    assert node.counters()[0]["memory_used"] == 0
    assert pinned_on_host(node, away) == 0
    assert not any("WARN" in line for line in away.end())


@pytest.mark.parametrize("on_the_way", [False, True])
def test_a_program_ends_cleanly_and_quickly_while_its_memory_is_away(
    node: sim.SimNode, mover: Mover, away: Program, on_the_way: bool
) -> None:
    if on_the_way:
        mover.set_target(mover.allocated)
    before = time.monotonic()
    assert not any("WARN" in line for line in away.end())
    assert time.monotonic() - before < 5
    wait_for(lambda: node.counters()[0]["memory_used"] == 0)


def test_a_killed_program_leaves_nothing(node: sim.SimNode, mover: Mover, away: Program) -> None:
    mover.set_target(mover.allocated)
    mover.until(lambda: mover.memory.resident > 0)
    away.kill()
    wait_for(lambda: node.counters()[0]["memory_used"] == 0)


def test_a_forked_child_disturbs_nothing(mover: Mover, away: Program) -> None:
    assert away.call("fork") == 0
    mover.swap_in()
    assert mover.in_turn(away, "verify") == 0
    mover.swap_out(0)
    mover.set_target(mover.allocated)
    assert away.call("fork") == 0
    mover.swap_in()
    assert mover.in_turn(away, "verify") == 0


def test_a_scheduler_that_returns_is_told_what_is_where(node: sim.SimNode, mover: Mover, away: Program) -> None:
    # GIVEN a task of which a part is on the card
    part = mover.allocated // 2
    mover.set_target(part)
    mover.until(lambda: 0 < mover.memory.resident <= part)
    allocated = mover.allocated
    away.send("verify")
    # WHEN the scheduler dies and another one takes its place
    mover.close()
    successor = type(mover)(node.socket)
    try:
        successor.until(lambda: successor.hello)
        # THEN it hears the truth, and nothing runs or moves before it says so
        assert successor.hello is not None
        entry = successor.hello.gpus[0]
        assert entry.allocated == allocated
        assert 0 < entry.resident < allocated
        successor.until(lambda: successor.waits)
        successor.swap_in()
        successor.grant()
        assert away.answer() == 0
    finally:
        successor.close()


@pytest.mark.slow
def test_a_task_that_is_left_alone_brings_itself_back(node: sim.SimNode, mover: Mover, away: Program) -> None:
    # GIVEN a task that waits, away WHEN the scheduler dies
    away.send("verify")
    mover.until(lambda: mover.waits)
    mover.close()
    died = time.monotonic()
    # THEN after ten seconds it comes back and goes on
    assert away.answer() == 0
    assert 9 < time.monotonic() - died < 20
    assert sum("no scheduler for 10 s" in line for line in away.end()) == 1


def test_a_card_that_somebody_outside_fills_is_waited_for(node: sim.SimNode, mover: Mover, away: Program) -> None:
    # GIVEN a process outside of nvshare that took the card meanwhile
    free = 14913 * MIB - int(node.counters()[0]["memory_used"])
    outsider = subprocess.Popen(
        [sys.executable, "-c", OUTSIDER, str(free - 1009 * MIB - 64 * MIB)],
        env={**os.environ, **node.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert outsider.stdout is not None
        assert outsider.stdout.readline() == "ready\n"
        # WHEN the task may come back THEN it waits, and says for what
        mover.set_target(mover.allocated)
        away.send("verify")
        mover.until(lambda: mover.waits)
        mover.grant()
        said = away.heard("waiting for").text
        assert f"outside nvshare uses it: {Path(sys.executable).name} (pid {outsider.pid}, " in said
        assert str(away.pid) not in said
    finally:
        outsider.communicate()
    # AND goes on when there is room
    assert away.answer() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_host_memory_the_allocation_that_asks_is_refused(
    node: sim.SimNode, mover: Mover, start: Start, backend: dict[str, str]
) -> None:
    # GIVEN a task that is away, and has host memory for itself and 64 MiB more
    task = start(NVSHARE_SIM_HOST_MEMORY=str(1 << 30), **backend)
    assert task.call("reserve", (1 << 30) - 64 * MIB) == 0
    mover.in_turn(task, "fill_last")
    mover.swap_out(0)
    # WHEN it asks for more than that THEN it is told so as CUDA does, and nothing is counted
    allocated = mover.allocated
    assert task.call("reserve", 100 * MIB) == OUT_OF_MEMORY
    mover.until(lambda: mover.allocated == allocated)
    assert "host" in task.heard("denied").text
    # AND what fits it gets; AND all goes on
    assert task.call("reserve", 50 * MIB) == 0
    mover.swap_in()
    assert mover.in_turn(task, "verify") == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_for_which_the_host_has_no_room_stays_and_is_known_to(
    node: sim.SimNode, mover: Mover, start: Start, backend: dict[str, str]
) -> None:
    # GIVEN a task with host memory for a third of its pieces
    task = start(NVSHARE_SIM_HOST_MEMORY=str(100 * MIB), **backend)
    for _ in range(6):
        assert task.call("reserve", 50 * MIB) == 0
        mover.in_turn(task, "fill_last")
        mover.drop()
    # THEN it said from the start what cannot leave
    mover.until(lambda: mover.memory.pinned == 200 * MIB)
    # AND that does not, whatever it is told, and works
    mover.set_target(0)
    mover.until(lambda: mover.memory.applied == mover.target_number and mover.memory.resident == 200 * MIB)
    mover.swap_in()
    assert mover.in_turn(task, "verify") == 0


def test_a_task_whose_work_does_not_end_stays_on_the_card(node: sim.SimNode, mover: Mover, away: Program) -> None:
    # GIVEN a task whose work never ends
    mover.swap_in()
    mover.in_turn(away, "hang")
    # WHEN its turn is taken THEN it says that it cannot stop, and nothing of it moves, whatever the target
    mover.drop(deadline_ms=100)
    assert mover.release is not None
    assert mover.release.reason == ReleaseReason.STUCK
    assert "did not end" in away.heard("WARN").text
    copied = node.counters()[0]["bytes_d2h"]
    mover.set_target(0)
    mover.until(lambda: mover.memory.applied == mover.target_number)
    assert mover.memory.resident == mover.allocated
    assert copied == node.counters()[0]["bytes_d2h"]
    # AND it goes on beside the others when the work ends after all, and can then be moved as any other
    mover.set_target(mover.allocated)
    assert away.call("unhang")
    assert away.call("verify") == 0
    mover.grant()
    mover.swap_out(0)
    mover.swap_in()
    assert mover.in_turn(away, "verify") == 0
