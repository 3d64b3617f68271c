"""Memory that leaves the card and comes back: contents, addresses, and who may run when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from nvshare.gpu import sim

if TYPE_CHECKING:
    from tests.integration.swap.conftest import Mover
    from tests.support.processes import Program

MIB = 1 << 20
pytestmark = pytest.mark.simulated

Start = Callable[..., "Program"]
Held = Callable[[], int]

MAPPED: dict[str, str] = {}
UNIFIED = {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}
ORDERED = {"ORDERED": "1"}  # the program allocates in stream order


def buffers(node: sim.SimNode, task: Program, at_least: int = 0) -> int:
    """Page-locked bytes on the host, once there are so many."""
    deadline = time.monotonic() + 30
    while (size := int(node.process_counters()[0][task.pid]["pinned_bytes"])) < at_least:
        assert time.monotonic() < deadline, size
        time.sleep(0.005)
    return size


@pytest.mark.parametrize("backend", [MAPPED, ORDERED], ids=["mapped", "ordered"])
def test_memory_leaves_and_returns_as_it_was(
    node: sim.SimNode, mover: Mover, start: Start, held: Held, backend: dict[str, str]
) -> None:
    # GIVEN a task with memory of all sizes
    task = start(**backend)
    mover.in_turn(task, "allocate", 20, 7)
    total = mover.allocated
    assert mover.hello is not None
    assert mover.hello.flags == 1
    assert held() == total > 300 * MIB
    # WHEN it is told to leave the card THEN the card is free, every byte is on the host, and that is what it says
    mover.swap_out(0)
    assert held() == 0
    assert (mover.memory.host, mover.memory.pinned) == (total, 0)
    assert node.counters()[0]["bytes_d2h"] >= total
    # AND everything that names memory answers as before
    assert task.call("names") == []
    # WHEN it may come back THEN it does, and every byte is as it was
    mover.swap_in()
    assert (mover.memory.host, mover.memory.resident) == (0, total)
    assert mover.in_turn(task, "verify") == 0
    # AND each chunk was told
    assert [update.applied for update in mover.updates] == sorted(update.applied for update in mover.updates)
    assert len({update.resident for update in mover.updates}) > 5
    mover.until(lambda: (mover.usage.swapped_out, mover.usage.swapped_in) == (total, total))
    said = task.end()
    assert sum("Swapped out" in line for line in said) == sum("Swapped in" in line for line in said) == 1


def test_only_what_must_leave_is_copied_and_only_once(node: sim.SimNode, mover: Mover, start: Start) -> None:
    # GIVEN a task with ten pieces of 30 MiB
    task = start()
    for _ in range(10):
        assert task.call("reserve", 30 * MIB) == 0
        mover.in_turn(task, "fill_last")
        mover.drop()
    before = node.counters()[0]["bytes_d2h"]
    # WHEN it may keep 100 MiB of the 300 THEN seven pieces go
    mover.swap_out(100 * MIB)
    assert mover.memory.resident == 90 * MIB
    assert node.counters()[0]["bytes_d2h"] - before == 210 * MIB
    # WHEN they come and go again without a turn in between THEN nothing is copied out: the host has them
    mover.swap_in()
    mover.swap_out(100 * MIB)
    assert mover.memory.resident == 90 * MIB
    assert node.counters()[0]["bytes_d2h"] - before == 210 * MIB
    # WHEN it had a turn THEN they are copied, because they may have changed
    mover.swap_in()
    assert mover.in_turn(task, "verify") == 0
    mover.swap_out(0)
    assert node.counters()[0]["bytes_d2h"] - before >= 510 * MIB


def test_buffers_are_ready_before_memory_has_to_leave(node: sim.SimNode, mover: Mover, start: Start) -> None:
    # GIVEN a task in its turn, with memory of all sizes
    task = start()
    mover.in_turn(task, "allocate", 20, 7)
    total = mover.allocated
    leaving = total * 2 // 3
    copied = node.counters()[0]["bytes_d2h"]
    # WHEN it hears how much may have to leave after it THEN buffers for that are made while it runs, and nothing moves
    for announced in (leaving // 4, leaving):
        mover.prepare(announced)
        made = buffers(node, task, at_least=announced)
        assert announced <= made < announced + 140 * MIB
    assert task.call("verify") == 0
    assert (mover.memory.resident, mover.target_number) == (total, 0)
    # AND when it leaves, no other ones are needed
    mover.swap_out(total - leaving)
    assert buffers(node, task) == made
    assert node.counters()[0]["bytes_d2h"] - copied >= leaving
    mover.swap_in()
    assert mover.in_turn(task, "verify") == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", [MAPPED, UNIFIED, ORDERED], ids=["mapped", "unified", "ordered"])
@pytest.mark.parametrize("seed", [1, 2])
def test_contents_survive_hundreds_of_rounds(
    mover: Mover, start: Start, held: Held, seed: int, backend: dict[str, str]
) -> None:
    # GIVEN a task that changes, frees and takes memory
    task, chooser = start(**backend), random.Random(seed)
    mover.in_turn(task, "allocate", 16, seed)
    for _ in range(200):
        # WHEN again and again parts of its memory leave, return, leave before they have returned
        mover.drop()
        for _ in range(chooser.randint(1, 3)):
            mover.set_target(chooser.randrange(mover.allocated + 1))
        if chooser.random() < 0.3:
            mover.until(lambda: mover.memory.applied == mover.target_number)
            assert task.call("free", 1)
        if chooser.random() < 0.5:
            mover.swap_out(chooser.randrange(mover.allocated + 1))
            assert task.call("names") == []
        if chooser.random() < 0.3:
            assert task.call("reserve", chooser.randint(1, 40 * MIB)) == 0
            mover.swap_in()
            mover.in_turn(task, "fill_last")
        mover.drop()
        mover.swap_in()
        # THEN whatever the order, everything is right when the turn comes
        assert mover.in_turn(task, "verify") == 0
        task.call("churn")
        task.call("allocate", chooser.randint(0, 8), chooser.getrandbits(32))
    # AND nothing is left behind when all is freed
    task.call("free", 1 << 30)
    mover.until(lambda: mover.allocated <= 2 * MIB)
    assert held() <= mover.memory.resident == mover.allocated
    task.end()


def test_a_grant_takes_effect_when_the_memory_is_there(node: sim.SimNode, mover: Mover, start: Start) -> None:
    # GIVEN a task whose memory is on the host
    task = start()
    mover.in_turn(task, "allocate", 12, 3)
    mover.swap_out(0)
    task.send("verify")
    mover.until(lambda: mover.waits)
    # WHEN it is granted first and may come back later, bit by bit
    mover.grant()
    for share in (0.3, 0.6, 1.0):
        mover.set_target(int(mover.allocated * share))
    # THEN it runs, on the right contents
    assert task.answer() == 0


def test_a_target_that_changes_on_the_way_is_kept_to(node: sim.SimNode, mover: Mover, start: Start) -> None:
    task = start()
    mover.in_turn(task, "allocate", 16, 5)
    mover.drop()
    # WHEN the target falls and rises before anything can have been moved THEN the last one counts
    for _ in range(10):
        mover.set_target(0)
        mover.set_target(mover.allocated)
    mover.until(lambda: mover.memory.applied == mover.target_number and mover.memory.resident == mover.allocated)
    assert mover.in_turn(task, "verify") == 0


@pytest.mark.parametrize("backend", [MAPPED, ORDERED], ids=["mapped", "ordered"])
def test_memory_taken_while_away_comes_into_being_with_the_turn(
    node: sim.SimNode, mover: Mover, start: Start, held: Held, backend: dict[str, str]
) -> None:
    # GIVEN a task that is away
    task = start(**backend)
    mover.in_turn(task, "allocate", 6, 3)
    mover.swap_out(0)
    copied = node.counters()[0]["bytes_d2h"]
    # WHEN it takes more THEN it gets it, but not on the card
    assert task.call("reserve", 200 * MIB) == 0
    assert task.call("reserve", 1000) == 0
    assert held() == 0
    assert task.call("names") == []
    # AND it can be used in its turn
    mover.swap_in()
    assert mover.memory.resident == mover.allocated
    assert mover.in_turn(task, "fill_last")
    assert task.call("verify") == 0
    assert node.counters()[0]["bytes_d2h"] - copied < 100 * MIB


def test_what_cannot_be_moved_waits_for_the_turn(mover: Mover, start: Start, held: Held) -> None:
    task = start()
    mover.in_turn(task, "allocate", 6, 3)
    mover.swap_out(0)
    # WHEN memory of the driver's own is asked for THEN that waits until it may be on the card
    task.send("managed", 64 * MIB)
    mover.until(lambda: mover.waits)
    assert held() == 0
    mover.swap_in()
    assert task.answer() == 0
    mover.until(lambda: mover.memory.pinned == 64 * MIB)
    # AND it stays there when the rest goes
    mover.swap_out(64 * MIB)
    assert mover.memory.resident == mover.memory.pinned == 64 * MIB


def test_a_capture_waits_for_the_turn(mover: Mover, start: Start) -> None:
    task = start()
    mover.in_turn(task, "allocate", 6, 3)
    mover.swap_out(0)
    task.send("capture")
    mover.until(lambda: mover.waits)
    mover.set_target(mover.allocated)
    mover.grant()
    assert task.answer() == 0
    assert task.call("verify") == 0


def test_unified_memory_leaves_and_returns_by_prefetches(
    node: sim.SimNode, mover: Mover, start: Start, held: Held
) -> None:
    # GIVEN a task whose memory is the driver's to move
    task = start(**UNIFIED)
    mover.in_turn(task, "allocate", 12, 3)
    assert mover.hello is not None
    assert mover.hello.flags == 3  # it can move, and may be larger than the card
    total = mover.allocated
    before = node.counters()[0]
    # WHEN it leaves and returns THEN that is done by prefetches, not by faults, and nobody can tell
    mover.swap_out(0)
    assert held() == 0
    assert mover.memory.host == total
    assert task.call("names") == []
    mover.swap_in()
    mover.until(lambda: (mover.usage.swapped_out, mover.usage.swapped_in) == (total, total))
    after = node.counters()[0]
    assert after["bytes_d2h"] - before["bytes_d2h"] <= total
    assert after["bytes_faulted"] == before["bytes_faulted"]
    assert mover.in_turn(task, "verify") == 0
    assert node.counters()[0]["bytes_faulted"] == before["bytes_faulted"]


def test_one_task_may_be_larger_than_the_card(mover: Mover, start: Start, held: Held) -> None:
    # GIVEN a task that allocates more than its target, in its turn
    task = start(**UNIFIED)
    mover.in_turn(task, "allocate", 8, 3)
    mover.set_target(13 << 30)
    mover.until(lambda: mover.memory.applied == mover.target_number)
    for _ in range(3):
        assert task.call("reserve", 5 << 30) == 0
        assert task.call("fill_last")
    # THEN it works, and never claims to have more on the card than it may
    assert task.call("verify") == 0
    mover.swap_out(0)
    assert max(update.resident for update in mover.updates) <= 13 << 30
    assert held() == 0
    mover.set_target(13 << 30)
    assert mover.in_turn(task, "verify") == 0
