"""Memory that the application creates and maps itself, moved like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.swap.conftest import Mover
    from tests.support.processes import Program

MIB = 1 << 20
EXPORTABLE = 1
pytestmark = pytest.mark.simulated

Start = Callable[..., "Program"]
Held = Callable[[], int]


def test_mapped_memory_leaves_and_returns_as_it_was(mover: Mover, start: Start, held: Held) -> None:
    # GIVEN a task with segments of 20 MiB, and one large exportable handle
    task = start()
    assert task.call("map", 6, 20 * MIB)
    assert task.call("map", 1, 300 * MIB, EXPORTABLE)
    assert mover.in_turn(task, "fill")
    assert mover.allocated == held() == 420 * MIB
    for _ in range(3):
        # WHEN it has to leave THEN all of it does, and what names it answers as before
        mover.swap_out(0)
        assert held() == 0
        assert (mover.memory.host, mover.memory.pinned) == (420 * MIB, 0)
        assert task.call("names") == []
        # AND it comes back as it was
        mover.swap_in()
        assert mover.in_turn(task, "verify") == 0
        assert task.call("names") == []
    task.end()


def test_memory_is_mapped_and_unmapped_while_it_is_away(mover: Mover, start: Start, held: Held) -> None:
    # GIVEN a task whose memory is away
    task = start()
    assert task.call("map", 2, 20 * MIB)
    assert mover.in_turn(task, "fill")
    mover.swap_out(0)
    # WHEN it grows, moves memory to other addresses, shows it twice, without a turn
    assert task.call("map_last_elsewhere")
    assert task.call("alias_last")
    assert task.call("map", 3, 20 * MIB)
    # THEN it is counted, nothing is on the card, and nothing waits
    assert mover.allocated == 100 * MIB
    assert held() == 0
    assert task.call("names") == []
    # WHEN it shrinks THEN its share shrinks at once
    assert task.call("release_last")
    assert mover.allocated == 100 * MIB
    assert task.call("unmap_last")
    mover.until(lambda: mover.allocated == 80 * MIB)
    # AND in its turn all is there, at every address
    mover.swap_in()
    assert held() == 80 * MIB
    mover.in_turn(task, "fill_last")
    task.call("unmap_last")
    task.call("unmap_last")
    assert task.call("verify") == 0
    task.end()


def test_released_memory_counts_until_it_is_unmapped(mover: Mover, start: Start, held: Held) -> None:
    # GIVEN memory at two addresses, whose handle is released
    task = start()
    assert task.call("map", 1, 140 * MIB)
    assert mover.in_turn(task, "fill")
    assert task.call("alias_last")
    assert task.call("release_last")
    # THEN it is moved, and right at both
    mover.swap_out(0)
    assert held() == 0
    mover.swap_in()
    assert mover.in_turn(task, "verify") == 0
    # WHEN it is unmapped at one THEN it still counts; at both: it is gone, and the card has it again
    assert task.call("unmap_last")
    assert mover.allocated == held() == 140 * MIB
    assert task.call("unmap_last")
    mover.until(lambda: mover.allocated == 0)
    assert held() == 0
    task.end()


def test_memory_stays_where_swapping_is_off(mover: Mover, start: Start) -> None:
    task = start(NVSHARE_DISABLE_SWAP="1")
    assert task.call("map", 2, 20 * MIB)
    mover.until(lambda: mover.memory.pinned == 40 * MIB)
    assert mover.in_turn(task, "fill")
    assert task.call("verify") == 0
    task.end()


def test_a_child_does_not_have_its_parents_memory(mover: Mover, start: Start) -> None:
    task = start()
    assert task.call("map", 2, 20 * MIB)
    assert mover.in_turn(task, "fill")
    assert task.call("fork") == 0
    mover.swap_out(0)
    mover.swap_in()
    assert mover.in_turn(task, "verify") == 0
    task.end()
