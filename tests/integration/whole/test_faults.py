"""Whatever dies, the others go on with what they wrote."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated


def finished(task: Program) -> dict[str, Any]:
    code, output = task.result()
    assert code == 0, (output, task.said)
    assert "PASS" in output
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


@pytest.mark.slow
def test_tasks_survive_kill_of_scheduler(node: Node) -> None:
    # GIVEN four tasks running on two cards
    tasks = [node.workload("add-small", "--iterations", "6000", gpu=i % 2) for i in range(4)]
    for task in tasks:
        task.heard("Received LOCK_OK")
    # WHEN the scheduler is killed, and another one started
    node.kill_scheduler()
    for task in tasks:
        task.heard("lost the scheduler")
    node.start_scheduler()
    # THEN all four register again, with what they hold
    for task in tasks:
        task.heard("is back")
    status = node.await_status(lambda status: len(status["clients"]) == 4)
    assert all(client["gpus"][0]["allocated"] > 3 << 30 for client in status["clients"])
    # AND finish with right results
    assert all(finished(task)["passed"] for task in tasks)


def test_death_of_holder_grants_the_next_at_once(node: Node) -> None:
    # GIVEN serial mode, a task that holds the card and one that waits for it
    node.set(mode="serial", quantum=60)
    holder, waiter = node.holder(), node.holder()
    holder.tell("spin 600000")
    holder.heard("Received LOCK_OK")
    waiter.tell("spin 1")
    node.await_status(lambda status: any(gpu["waiting"] for gpu in status["gpus"]))
    # WHEN the holder is killed
    before = len(node.log())
    holder.kill()
    # THEN the waiter is granted, and the scheduler does nothing else between the two
    waiter.heard("Received LOCK_OK")
    removed, switched, granted, *_ = node.log()[before:].splitlines()
    assert "Removing client" in removed
    assert "Switched GPU" in switched
    assert "Sent LOCK_OK" in granted
    assert waiter.answer() == {"did": "spin"}


def test_idle_holder_passes_its_turn_on(node: Node) -> None:
    # GIVEN serial mode with a long quantum, and a holder with nothing more to do
    node.set(mode="serial", quantum=60)
    holder, waiter = node.holder(), node.holder()
    assert holder.ask("spin 1") == {"did": "spin"}
    # WHEN another task asks
    answer = waiter.ask("spin 1")
    # THEN it gets its turn long before the quantum is over, and the holder says why
    assert answer == {"did": "spin"}
    holder.heard("Sent LOCK_RELEASED")
    # AND the first gets it back when it asks
    assert holder.ask("spin 1") == {"did": "spin"}


def test_turns_change_hands_after_the_quantum(node: Node) -> None:
    # GIVEN serial mode, a quantum of one second and two busy tasks on one card
    node.set(mode="serial", quantum=1)
    tasks = [node.workload("add-small", "--iterations", "3000") for _ in range(2)]
    # WHEN they run to their end
    results = [finished(task) for task in tasks]
    # THEN both were right, and had to stop and go on in between
    assert all(result["passed"] for result in results)
    assert any("Sent LOCK_RELEASED" in line for task in tasks for line in task.said)
    assert node.status()["counters"]["switches"] >= 2


def test_tasks_that_fit_run_side_by_side_without_a_drop(node: Node) -> None:
    # GIVEN two tasks whose memory fits one card
    tasks = [node.workload("add-small", "--iterations", "2000") for _ in range(2)]
    # WHEN they run
    for task in tasks:
        finished(task)
    # THEN nobody was told to stop, and nothing was moved
    counters = node.status()["counters"]
    assert counters["drops"] == 0
    assert counters["swapped_bytes"] == 0


def gave_up_on_a_turn(node: Node) -> bool:
    deadline = time.monotonic() + 5.0
    while "did not end its compute turn" not in node.log():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)  # the scheduler writes it when it does
    return True


@pytest.mark.slow
def test_a_task_that_was_stopped_in_its_compute_turn_goes_on(node: Node) -> None:
    # GIVEN a task with a quota
    task = node.start("-m", "nvshare.bench.workloads", "add-small", "--iterations", "6000", "--json",
                      NVSHARE_GPU_CORE_LIMIT="99")  # fmt: skip
    node.await_status(lambda status: status["clients"] and status["clients"][0]["gpus"][0]["occupied_s"] > 0.3)
    # WHEN it is stopped for so long that its turn is given up
    task.send_signal(signal.SIGSTOP)
    while not gave_up_on_a_turn(node):
        task.send_signal(signal.SIGCONT)  # it was between two turns
        task.send_signal(signal.SIGSTOP)
    task.send_signal(signal.SIGCONT)
    # THEN it has others, up to its end
    assert finished(task)["passed"]


def test_task_without_scheduler_runs_natively_with_one_warning(node: Node, tmp_path: Path) -> None:
    task = node.start(
        "-m",
        "nvshare.bench.workloads",
        "add-small",
        "--iterations",
        "10",
        "--json",
        NVSHARE_SOCK=str(tmp_path / "none"),
    )
    assert finished(task)["passed"]
    warnings = [line for line in task.said if "[WARN]" in line]
    assert len(warnings) == 1
    assert "running without sharing" in warnings[0]


def test_required_scheduler_that_is_missing_is_an_error(node: Node, tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    task = node.start("-m", "nvshare.bench.workloads", "add-small", NVSHARE_SOCK=missing, NVSHARE_REQUIRE="on")
    code, _ = task.result()
    assert code == 1
    assert any("NVSHARE_REQUIRE" in line for line in task.said)


@pytest.mark.slow
def test_hung_scheduler_does_not_freeze_tasks(node: Node) -> None:
    # GIVEN a task that is registered, and a scheduler that stops answering
    registered = node.holder()
    registered.ask("alloc 100")
    node.scheduler.send_signal(signal.SIGSTOP)
    try:
        # WHEN it allocates, and another task starts
        registered.tell("alloc 100")
        newcomer = node.holder()
        # THEN both go on after a few seconds, and say so
        assert registered.answer() == {"did": "alloc"}
        registered.heard("it does not answer")
        assert newcomer.ask("alloc 100") == {"did": "alloc"}
        newcomer.heard("running without sharing")
    finally:
        node.scheduler.send_signal(signal.SIGCONT)
    # AND when it answers again both are known to it, with all they hold
    status = node.await_status(lambda status: len(status["clients"]) == 2)
    assert sorted(client["gpus"][0]["allocated"] >> 20 for client in status["clients"]) == [100, 200]
