"""Device memory that two processes share while a third makes both leave the card, with a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

PROGRAM = Path(__file__).parents[1] / "interposer" / "ipc_program.py"
MIB = 1 << 20
OUT_OF_MEMORY = 2
ROUNDS = 12

pytestmark = pytest.mark.simulated


class Sharer:
    """ipc_program.py, which has memory of its own as well."""

    def __init__(self, task: Program) -> None:
        self.task = task

    def __call__(self, command: str, *arguments: Any) -> Any:
        return self.task.ask(json.dumps([command, *arguments]))


@pytest.fixture
def small(node: Node) -> Node:
    """A card of one gigabyte."""
    node.restart_scheduler("--card-memory", "1GiB")
    return node


def sharer(node: Node, **variables: str) -> Sharer:
    return Sharer(node.start(str(PROGRAM), gpu=0, **variables))


def client(status: dict[str, Any], task: Sharer) -> dict[str, Any]:
    [found] = [each for each in status["clients"] if each["pid"] == task.task.pid]
    [place] = [each for each in found["gpus"] if each["allocated"] > 0]
    place_of: dict[str, Any] = place
    return place_of


@pytest.mark.slow
def test_every_byte_is_right_in_both_while_a_neighbour_makes_them_leave(small: Node) -> None:
    # GIVEN two processes that share 200 MiB and have 300 each of their own, and a neighbour: together too much
    owner, other, neighbour = (sharer(small) for _ in range(3))
    shared, owned = owner("allocate", 200 * MIB), owner("allocate", 300 * MIB)
    theirs = other("allocate", 300 * MIB)
    [opened] = other("open", owner("share", shared), 200 * MIB)
    filler = neighbour("allocate", 500 * MIB)
    # THEN what is shared stays, and the scheduler knows
    status = small.await_status(lambda status: client(status, owner)["pinned"] == 200 * MIB)
    assert client(status, other)["allocated"] == 300 * MIB
    for turn in range(ROUNDS):
        byte = turn + 1
        # WHEN each in turn needs the card
        assert owner("fill", owned, byte)
        assert owner("fill", shared, byte)
        assert neighbour("fill", filler, byte)
        assert other("fill", theirs, byte)
        # THEN what one wrote to what is shared the other reads, and all that left the card came back right
        assert other("wrong", opened, byte) == 0
        assert other("fill", opened, 200 - turn)
        assert neighbour("wrong", filler, byte) == 0
        assert owner("wrong", shared, 200 - turn) == 0
        assert owner("wrong", owned, byte) == 0
        assert other("wrong", theirs, byte) == 0
    status = small.status()
    assert status["counters"]["switches"] >= 2 * ROUNDS
    assert all(client(status, each)["swapped_out"] >= ROUNDS * 100 * MIB for each in (owner, other, neighbour))
    # AND it ends as it began
    assert other("close", opened) == 0
    assert owner("free", shared) == 0
    small.await_status(lambda status: client(status, owner)["pinned"] == 0)


def test_memory_that_would_keep_another_from_running_is_not_shared(small: Node) -> None:
    # GIVEN a task that needs three quarters of the card in its turns, and one with more than the last quarter
    owner, neighbour = sharer(small), sharer(small)
    large, little = owner("allocate", 400 * MIB), owner("allocate", 100 * MIB)
    filler = neighbour("allocate", 700 * MIB)
    neighbour("fill", filler, 1)
    # WHEN it shares what would have to stay there for ever THEN it is refused, as memory that never moves is
    assert owner("share", large) == OUT_OF_MEMORY
    owner.task.heard("400 MiB cannot be shared with other processes")
    assert isinstance(owner("share", little), str)
    # AND all go on
    assert owner("fill", large, 2)
    assert neighbour("wrong", filler, 1) == 0
    assert owner("wrong", large, 2) == 0
