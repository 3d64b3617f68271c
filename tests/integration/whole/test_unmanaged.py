"""Processes on a card that have nothing to do with nvshare: shown, and planned around."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated

MIB = 1 << 20


def outsider(node: Node, size: int) -> Program:
    """A process that escapes the library, with so many MiB of the first card."""
    task = node.holder(LD_PRELOAD="")
    assert task.ask(f"alloc {size}") == {"did": "alloc"}
    return task


def unmanaged(status: dict[str, Any]) -> list[int]:
    return [user["pid"] for gpu in status["gpus"] for user in gpu["unmanaged"]]


def policies(status: dict[str, Any]) -> set[str]:
    """Of the cards that somebody uses."""
    return {gpu["policy"] for gpu in status["gpus"] if gpu["allocated"]}


@pytest.mark.parametrize("declared", [(), ("--card-memory", "12GiB")], ids=["measured", "declared"])
def test_tasks_take_turns_beside_an_outsider_and_have_the_card_again_when_it_goes(
    node: Node, declared: tuple[str, ...]
) -> None:
    # GIVEN a card of 14.6 GiB of which a process outside has 6000 MiB
    node.restart_scheduler(*declared)
    stranger = outsider(node, 6000)
    node.await_status(lambda status: unmanaged(status) == [stranger.pid])
    # WHEN two tasks have 5000 MiB each
    first, second = node.holder(), node.holder()
    assert first.ask("alloc 5000") == {"did": "alloc"}
    assert second.ask("alloc 5000") == {"did": "alloc"}
    # THEN both run, in turns
    for _ in range(2):
        assert first.ask("spin 1") == {"did": "spin"}
        assert second.ask("spin 1") == {"did": "spin"}
    status = node.status()
    assert policies(status) == {"turns"}
    assert next(gpu["capacity"] for gpu in status["gpus"] if gpu["unmanaged"]) < 9000 * MIB
    # AND side by side when it has gone
    stranger.result()
    status = node.await_status(lambda status: policies(status) == {"free"} and not unmanaged(status))
    assert first.ask("spin 1") == {"did": "spin"}
    assert second.ask("spin 1") == {"did": "spin"}


def test_status_names_an_outsider_and_what_it_has(node: Node) -> None:
    stranger = outsider(node, 512)
    status = node.await_status(unmanaged)
    (user,) = [user for gpu in status["gpus"] for user in gpu["unmanaged"]]
    assert user["pid"] == stranger.pid
    assert user["name"].startswith("python")
    assert user["bytes"] >= 512 * MIB
    ctl = [sys.executable, "-m", "nvshare.cli.ctl", "status"]
    shown = subprocess.run(ctl, env=node.env, check=True, capture_output=True, text=True).stdout
    assert "is used outside nvshare too: python" in shown
    assert f"(pid {stranger.pid}, " in shown


def test_a_client_and_its_death_are_never_taken_for_an_outsider(node: Node) -> None:
    # GIVEN a client, and a card that was looked at since
    task = node.holder()
    assert task.ask("alloc 512") == {"did": "alloc"}
    status = node.await_status(lambda status: any(gpu["contexts"] for gpu in status["gpus"]))
    assert unmanaged(status) == []
    # WHEN the scheduler is started anew, and finds it on the card before it has registered
    node.restart_scheduler()
    status = node.await_status(lambda status: any(gpu["contexts"] for gpu in status["gpus"]))
    # THEN it is a client again, and nothing else
    assert unmanaged(status) == []
    task.kill()
    status = node.await_status(lambda status: not status["clients"])
    assert unmanaged(status) == []
    assert "outside nvshare" not in node.log()
