"""A library of the previous release works with this scheduler, and this library with the previous scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.releases.conftest import MixedNode
    from tests.support.processes import Program

pytestmark = [pytest.mark.simulated, pytest.mark.slow]

MIB = 1 << 20
OUT_OF_MEMORY = {"did": "alloc", "error": "CUDA_ERROR_OUT_OF_MEMORY"}


def of(status: dict[str, Any], task: Program) -> dict[str, Any]:
    """What the scheduler has on record of a task."""
    client: dict[str, Any] = next(one for one in status["clients"] if one["pid"] == task.process.pid)
    return client


def two_that_take_turns(node: MixedNode) -> list[Program]:
    """Two tasks with work behind them whose memory does not fit together."""
    tasks = [node.task(), node.task()]
    for task in tasks:
        assert task.ask("alloc 700") == {"did": "alloc"}
    in_turns(tasks)
    return tasks


def in_turns(tasks: list[Program]) -> None:
    for task in tasks * 3:
        assert task.ask("spin 1") == {"did": "spin"}


def test_memory_quota_holds_and_can_be_raised(mixed: MixedNode) -> None:
    # GIVEN a task with a memory quota
    task = mixed.task(NVSHARE_GPU_MEMORY_LIMIT="512Mi")
    # THEN the quota is the size of its card, and its end
    assert task.ask("alloc 300") == {"did": "alloc"}
    assert task.ask("info") == {"did": "info", "free": 212, "total": 512}
    assert task.ask("alloc 300") == OUT_OF_MEMORY
    # AND when an operator raises it, the task gets more
    mixed.control("limit", target={"pid": task.process.pid}, mem=1024 * MIB)
    assert task.ask("alloc 300") == {"did": "alloc"}
    # AND what it frees, others get
    task.ask("free")
    assert mixed.task().ask("alloc 600") == {"did": "alloc"}
    task.heard("512 MiB")


def test_tasks_take_turns_by_memory(mixed: MixedNode) -> None:
    # GIVEN two tasks that do not fit together WHEN both have work, again and again
    tasks = two_that_take_turns(mixed)
    # THEN both do it, in turns, and their memory moves
    status = mixed.await_status(lambda status: status["counters"]["swapped_bytes"] >= 3 * 700 * MIB)
    assert status["gpus"][0]["policy"] == "turns"
    assert status["counters"]["switches"] >= 3
    # AND the last one comes back by itself when the other one ends
    tasks[1].kill()
    mixed.await_status(lambda status: len(status["clients"]) == 1)
    mixed.await_status(lambda status: of(status, tasks[0])["gpus"][0]["resident"] == 700 * MIB)
    in_turns(tasks[:1])


def test_a_grant_that_is_called_off_is_given_back_after_the_work(mixed: MixedNode) -> None:
    # GIVEN two tasks that run together
    tasks = [mixed.task(), mixed.task()]
    for task in tasks:
        assert task.ask("alloc 300") == {"did": "alloc"}
        assert task.ask("submit 5000") == {"did": "submit"}
    # WHEN an operator wants one at a time
    mixed.control("set", mode="serial")
    # THEN one of them is told to stop, and both still do their work
    mixed.await_status(lambda status: status["counters"]["drops"] >= 1)
    in_turns(tasks)
    assert "stuck" not in {client["state"] for client in mixed.status()["clients"]}


def test_compute_quotas_are_kept_in_slices(mixed: MixedNode) -> None:
    # GIVEN two tasks that fit together, one of them with a compute quota
    limited, free = mixed.task(NVSHARE_GPU_CORE_LIMIT="30"), mixed.task()
    limited.heard("Core limit = 30%")
    # WHEN both compute for a while
    for _ in range(10):
        for task in (limited, free):
            task.tell("spin 300")
        for task in (limited, free):
            assert task.answer() == {"did": "spin"}
    # THEN they did so in slices, which the scheduler gave and counted
    both = (limited, free)
    status = mixed.await_status(lambda status: all(of(status, task)["gpus"][0]["occupied_s"] > 0.2 for task in both))
    assert {of(status, task)["gpus"][0]["mode"] for task in both} == {"compute turns"}
    # AND a change of the quota arrives
    mixed.control("limit", target={"pid": limited.process.pid}, cores=80)
    limited.heard("Core limit = 80%")
    in_turns([limited, free])


def test_tasks_outlive_a_restart_of_the_scheduler(mixed: MixedNode) -> None:
    # GIVEN tasks that take turns
    tasks = two_that_take_turns(mixed)
    before = mixed.status()
    # WHEN the scheduler is killed and started again
    mixed.kill_scheduler()
    mixed.start_scheduler(mixed.other)
    # THEN they come back as who they were, with what they had, and go on
    comes_back(mixed, tasks, before)


def test_tasks_outlive_the_change_to_the_other_release_and_back(mixed: MixedNode) -> None:
    # GIVEN tasks that take turns
    tasks = two_that_take_turns(mixed)
    for release in (mixed.own, mixed.other):
        before = mixed.status()
        # WHEN a scheduler of another release takes over
        mixed.kill_scheduler()
        mixed.start_scheduler(release)
        # THEN they come back as who they were, with what they had, and go on
        comes_back(mixed, tasks, before)


def comes_back(mixed: MixedNode, tasks: list[Program], before: dict[str, Any]) -> None:
    after = mixed.await_status(lambda status: len(status["clients"]) == len(tasks))
    for task in tasks:
        assert of(after, task)["id"] == of(before, task)["id"]
        assert of(after, task)["gpus"][0]["allocated"] == 700 * MIB
    in_turns(tasks)
