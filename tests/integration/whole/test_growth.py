"""A set of tasks that fits, stops fitting because one of them grows, and fits again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node

pytestmark = pytest.mark.simulated


def policies(status: dict[str, Any]) -> set[str]:
    """Of the cards that somebody uses."""
    return {gpu["policy"] for gpu in status["gpus"] if gpu["allocated"]}


def submissions(status: dict[str, Any], pid: int) -> int:
    count: int = next(client["gpus"][0]["submissions"] for client in status["clients"] if client["pid"] == pid)
    return count


@pytest.mark.slow
def test_a_busy_neighbour_goes_on_while_a_task_grows_beyond_the_card_and_shrinks_again(node: Node) -> None:
    # GIVEN a busy task of 400 MB and one of 400 MiB on a card declared at 1 GiB
    node.restart_scheduler("--card-memory", "1GiB")
    busy = node.workload("add-small", "--n", "5000", "--iterations", "60000", "--progress")
    busy.line_with("/60000")
    grower = node.holder()
    assert grower.ask("alloc 400") == {"did": "alloc"}
    assert grower.ask("spin 1") == {"did": "spin"}
    # THEN they run side by side, and nothing was moved
    status = node.status()
    assert policies(status) == {"free"}
    assert (status["counters"]["swapped_bytes"], status["counters"]["drops"]) == (0, 0)
    # WHEN the other one grows until they do not fit together
    assert grower.ask("alloc 500") == {"did": "alloc"}
    # THEN both go on, in turns
    node.await_status(lambda status: policies(status) == {"turns"})
    for _ in range(2):
        before = submissions(node.status(), busy.pid)
        assert grower.ask("spin 1") == {"did": "spin"}
        status = node.await_status(lambda status, seen=before: submissions(status, busy.pid) > seen)
        assert policies(status) == {"turns"}
    node.await_status(lambda status: status["counters"]["swapped_bytes"] > 0)
    # AND WHEN it shrinks again
    assert grower.ask("free") == {"did": "free"}
    # THEN turns end, and the busy one's sums are right
    node.await_status(lambda status: policies(status) == {"free"})
    assert grower.ask("spin 1") == {"did": "spin"}
    code, output = busy.result()
    assert code == 0, (output[-300:], busy.said)
    assert "PASS" in output
