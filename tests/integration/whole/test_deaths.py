"""However a task ends, nothing of it stays: not in the scheduler's books, not on the card, not in host memory."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated

MIB = 1 << 20
BROKEN = {"error": "CUDA_ERROR_ILLEGAL_ADDRESS"}
ENDS: dict[str, tuple[Callable[[Program], Any], int]] = {
    "exit": (lambda task: task.tell("quit"), 0),
    "exception": (lambda task: task.tell("raise"), 1),
    "SIGTERM": (lambda task: task.send_signal(signal.SIGTERM), -signal.SIGTERM),
    "SIGKILL": (lambda task: task.kill(), -signal.SIGKILL),
    "_exit": (lambda task: task.tell("_exit"), 7),
}


@pytest.fixture
def small(node: Node) -> Node:
    """A card that holds one of two tasks of 700 MiB."""
    node.restart_scheduler("--card-memory", "1GiB")
    return node


def of(status: dict[str, Any], task: Program) -> dict[str, Any]:
    """What the scheduler has on record of a task on its card."""
    place: dict[str, Any] = next(client["gpus"][0] for client in status["clients"] if client["pid"] == task.pid)
    return place


def on_card(node: Node) -> set[int]:
    """Processes that have something on the first card, by the driver's books."""
    return {context["pid"] for context in node.sim.counters()[0]["contexts"]}


def swapped_out(node: Node) -> tuple[Program, Program]:
    """Two tasks; the first one's memory is on the host, wholly or in part, and the other one runs."""
    victim, neighbour = node.holder(), node.holder()
    for task in (victim, neighbour):
        assert task.ask("alloc 700") == {"did": "alloc"}
        assert task.ask("spin 1") == {"did": "spin"}
    node.await_status(lambda status: of(status, victim)["host"] > 0)
    return victim, neighbour


def nothing_is_left_of(node: Node, gone: Program, survivor: Program) -> None:
    """In the scheduler's books and the driver's there is only the survivor, with all of its memory on the card."""
    status = node.await_status(
        lambda status: len(status["clients"]) == 1 and of(status, survivor)["resident"] == 700 * MIB
    )
    (client,) = status["clients"]
    assert client["gpus"][0]["host"] == 0
    assert [group["clients"] for group in status["groups"]] == [[client["id"]]]
    gpu = next(gpu for gpu in status["gpus"] if gpu["allocated"])
    assert (gpu["allocated"], gpu["waiting"], gpu["unmanaged"]) == (700 * MIB, [], [])
    assert on_card(node) == {survivor.pid}
    assert survivor.ask("spin 1") == {"did": "spin"}
    assert "no answer" not in node.log()


@pytest.mark.parametrize("how", ENDS)
def test_a_task_that_ends_while_its_memory_is_away_leaves_nothing(small: Node, how: str) -> None:
    # GIVEN a task whose memory is on the host
    victim, neighbour = swapped_out(small)
    # WHEN it ends, one way or another
    end, code = ENDS[how]
    end(victim)
    # THEN it does so at once, and nothing is left of it
    assert victim.result()[0] == code
    nothing_is_left_of(small, victim, neighbour)


@pytest.mark.parametrize("how", ENDS)
def test_a_task_that_ends_while_it_waits_for_its_turn_leaves_nothing(small: Node, how: str) -> None:
    # GIVEN a task that waits for its turn, in a call to the driver, while another computes
    victim, neighbour = swapped_out(small)
    neighbour.tell("spin 30000")
    victim.tell("spin 1")
    small.await_status(lambda status: any(gpu["waiting"] for gpu in status["gpus"]))
    # WHEN it is ended THEN it is gone, if need be when its turn has come
    end, code = ENDS[how]
    end(victim)
    assert victim.result()[0] == code
    assert neighbour.answer() == {"did": "spin"}
    nothing_is_left_of(small, victim, neighbour)


def test_a_broken_context_stays_the_matter_of_its_task(node: Node) -> None:
    # GIVEN two tasks side by side, of which one reads where nothing is
    broken, neighbour = node.holder(), node.holder()
    for task in (broken, neighbour):
        assert task.ask("alloc 700") == {"did": "alloc"}
    assert broken.ask("break") == {"did": "break", **BROKEN}
    # THEN all it does from now on fails, and the other one notices nothing
    assert broken.ask("spin 1") == {"did": "spin", **BROKEN}
    for _ in range(3):
        assert neighbour.ask("spin 1") == {"did": "spin"}
    # AND it ends as any other
    broken.tell("quit")
    broken.result()
    nothing_is_left_of(node, broken, neighbour)


def test_a_broken_task_does_not_hold_up_the_turns_of_others(small: Node) -> None:
    # GIVEN tasks that take turns
    broken, neighbour = swapped_out(small)
    # WHEN one breaks in its turn
    assert broken.ask("break") == {"did": "break", **BROKEN}
    # THEN the other one has its turns as before
    for _ in range(3):
        assert neighbour.ask("spin 1") == {"did": "spin"}
    assert broken.ask("spin 1") == {"did": "spin", **BROKEN}
    assert neighbour.ask("spin 1") == {"did": "spin"}
    log = small.log()
    assert "stuck" not in log
    # AND all of the card when it has ended
    broken.tell("quit")
    broken.result()
    nothing_is_left_of(small, broken, neighbour)


def test_a_task_that_broke_before_others_came_makes_room_for_them(small: Node) -> None:
    # GIVEN a task that broke with most of the card, and sits there
    broken = small.holder()
    assert broken.ask("alloc 700") == {"did": "alloc"}
    assert broken.ask("break") == {"did": "break", **BROKEN}
    # WHEN another one comes THEN it has the card
    neighbour = small.holder()
    assert neighbour.ask("alloc 700") == {"did": "alloc"}
    assert neighbour.ask("spin 1") == {"did": "spin"}
    broken.heard("is given up")
    assert broken.ask("spin 1") == {"did": "spin", **BROKEN}
    assert neighbour.ask("spin 1") == {"did": "spin"}
