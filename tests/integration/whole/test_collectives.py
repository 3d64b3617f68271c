"""Work that waits for other work: cards of one process in a collective, ranks of one job. Nobody waits for ever."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated

COLLECTIVE = Path(__file__).with_name("collective.py")
RANK = Path(__file__).with_name("rank.py")
ROUNDS = 200


def collective(node: Node, size: int, pause: int = 0, batch: int = 1) -> Program:
    options = ("--rounds", str(ROUNDS), "--bytes", str(size), "--pause", str(pause), "--batch", str(batch))
    return node.start(str(COLLECTIVE), *options, CUDA_VISIBLE_DEVICES=",".join(node.sim.uuids))


def passed(task: Program) -> None:
    code, output = task.result()
    assert code == 0, (output, task.said)
    assert "PASS" in output


def test_spinning_cards_beside_a_task_that_fits(node: Node) -> None:
    # GIVEN a process whose two cards wait for each other, and a busy task on one of them
    spinning = collective(node, 500)
    third = node.workload("add-small", "--n", "5000", "--iterations", "4000")
    # THEN both come to their end, side by side
    passed(spinning)
    passed(third)
    assert node.status()["counters"]["drops"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "pause", "batch"), [(0, 30, 1), (1, 30, 1), (0, 150, 10)], ids=["first card", "second card", "batches"]
)
def test_spinning_cards_in_turns_with_a_task_that_does_not_fit(node: Node, card: int, pause: int, batch: int) -> None:
    # GIVEN cards that hold either of the two at a time
    node.restart_scheduler("--card-memory", "1GiB")
    node.set(quantum=1)  # shorter than what the process has to do, whatever a switch costs
    third = node.workload("add-small", "--n", "7000", "--iterations", "1000000", gpu=card)
    node.await_status(lambda status: any(gpu["running"] for gpu in status["gpus"]))
    # WHEN a process whose cards wait for each other takes turns with a task on one of them
    spinning = collective(node, 700, pause, batch)
    # THEN it comes to its end, its cards are granted and dropped together
    passed(spinning)
    node.await_status(lambda status: status["counters"]["switches"] >= 2)
    third.kill()
    log = node.log()
    assert "stuck" not in log
    assert "no answer" not in log


@pytest.mark.parametrize("size", [200, 700], ids=["side by side", "in turns"])
def test_ranks_on_one_card_that_wait_for_each_other_on_the_host(node: Node, tmp_path: Path, size: int) -> None:
    node.restart_scheduler("--card-memory", "1GiB")
    shared = tmp_path / "numbers"
    shared.write_bytes(bytes(8))
    options = ("--rounds", str(ROUNDS), "--bytes", str(size), "--shared", str(shared))
    ranks = [node.start(str(RANK), "--rank", str(rank), *options) for rank in range(2)]
    for rank in ranks:
        passed(rank)
    assert "stuck" not in node.log()
