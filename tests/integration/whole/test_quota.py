"""Memory quotas through the whole path: the environment, ``nvshare run``, ``nvsharectl``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node

pytestmark = pytest.mark.simulated

OUT_OF_MEMORY = {"did": "alloc", "error": "CUDA_ERROR_OUT_OF_MEMORY"}
PAIR = Path(__file__).with_name("pair.py")


def test_quota_is_the_size_of_the_card_and_its_end(node: Node) -> None:
    # GIVEN a task with a quota of 1Gi
    task = node.holder(NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    assert task.ask("info")["total"] == 1024
    # WHEN it has allocated 748 MiB
    task.ask("alloc 748")
    # THEN it sees 276 of 1024 MiB free
    assert task.ask("info") == {"did": "info", "free": 276, "total": 1024}
    # AND gets the out-of-memory error beyond the quota, up to which all is well
    assert task.ask("alloc 278") == OUT_OF_MEMORY
    assert task.ask("alloc 276") == {"did": "alloc"}
    assert task.ask("alloc 2") == OUT_OF_MEMORY
    # AND after freeing it goes on
    task.ask("free")
    assert task.ask("alloc 200") == {"did": "alloc"}
    assert task.ask("spin 1") == {"did": "spin"}


def test_raised_quota_lets_the_next_allocation_succeed(node: Node) -> None:
    # GIVEN a task at its quota
    task = node.holder(NVSHARE_GPU_MEMORY_LIMIT="1Gi")
    task.ask("alloc 1000")
    assert task.ask("alloc 100") == OUT_OF_MEMORY
    # WHEN the operator raises it while the task runs
    ctl = [sys.executable, "-m", "nvshare.cli.ctl", "set", "--pid", str(task.pid), "--mem"]
    subprocess.run([*ctl, "4GiB"], env=node.env, check=True, capture_output=True)
    # THEN the next allocation succeeds, and the card looks larger
    assert task.ask("alloc 100") == {"did": "alloc"}
    assert task.ask("info")["total"] == 4096
    # AND lowered below what is held, it refuses new ones and takes nothing away
    subprocess.run([*ctl, "512Mi"], env=node.env, check=True, capture_output=True)
    assert task.ask("alloc 2") == OUT_OF_MEMORY
    assert task.ask("spin 1") == {"did": "spin"}


def test_processes_of_one_run_share_its_quota(node: Node) -> None:
    # GIVEN `nvshare run --mem 1Gi` of a program that starts two processes
    command = [sys.executable, "-m", "nvshare", "run", "--mem", "1Gi", "--", sys.executable, str(PAIR)]
    environment = {**os.environ, **node.env}
    # WHEN the first takes 700 MiB and the second 400
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    # THEN the second gets the error, the first goes on, and after it freed the second succeeds
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split() == ["first-ok", "second-oom", "first-runs", "second-ok-after-free"]


def test_quota_of_one_task_is_not_its_neighbours(node: Node) -> None:
    limited, free = node.holder(NVSHARE_GPU_MEMORY_LIMIT="1Gi"), node.holder()
    limited.ask("alloc 1000")
    assert limited.ask("alloc 100") == OUT_OF_MEMORY
    assert free.ask("alloc 4000") == {"did": "alloc"}


def test_status_shows_what_is_allocated_and_where(node: Node) -> None:
    task = node.holder()
    task.ask("alloc 512")
    expected = 512 << 20
    status = node.await_status(lambda status: status["clients"][0]["gpus"][0]["resident"] == expected)
    assert status["clients"][0]["gpus"][0]["allocated"] == expected


def test_cards_memory_is_shared_out_only_once(node: Node) -> None:
    # GIVEN a neighbour that holds most of a card of 14.6 GiB, and memory that stays where it is
    first, second = (node.holder(NVSHARE_DISABLE_SWAP="1") for _ in range(2))
    first.ask("alloc 9000")
    # WHEN a second task asks for more than is left
    # THEN it gets the out-of-memory error; what fits, it gets
    assert second.ask("alloc 6000") == OUT_OF_MEMORY
    assert second.ask("alloc 2000") == {"did": "alloc"}
    # AND when the neighbour dies, its share is free at once
    first.kill()
    node.await_status(lambda status: len(status["clients"]) == 1)
    assert second.ask("alloc 6000") == {"did": "alloc"}


def test_an_environment_guarantees_and_caps_and_never_raises_what_was_set(node: Node) -> None:
    # GIVEN a task with a floor and a cap in its environment
    task = node.holder(NVSHARE_GPU_CORE_LIMIT="30..60")
    task.heard("Core limit = 60%")
    (client,) = node.status()["clients"]
    assert (client["core_floor"], client["core_limit"], client["gpus"][0]["floor_in_force"]) == (30, 60, 30)
    # WHEN an operator sets less THEN that counts, also for what the environment says of a floor
    ctl = [sys.executable, "-m", "nvshare.cli.ctl", "set", "--pid", str(task.pid), "--cores", "20"]
    subprocess.run(ctl, env=node.env, check=True, capture_output=True)
    task.heard("Core limit = 20%")
    (client,) = node.status()["clients"]
    assert (client["core_floor"], client["core_limit"], client["gpus"][0]["floor_in_force"]) == (0, 20, 0)
    assert "Compute limit changed for process" in node.log()
    assert ": 60% -> 20%, guaranteed 30% -> 0%" in node.log()


def test_a_kernel_of_seconds_is_billed_as_long_as_it_runs(node: Node) -> None:
    # GIVEN a task that may use half of the card's time
    task = node.holder(NVSHARE_GPU_CORE_LIMIT="50")
    # WHEN one kernel of it runs for 3.5 s (ten times as long on the simulated card's own clock)
    assert task.ask("spin 35000") == {"did": "spin"}
    # THEN all of them are counted, and owed
    status = node.await_status(lambda status: status["clients"][0]["gpus"][0]["occupied_s"] >= 3.4)
    assert status["clients"][0]["gpus"][0]["occupied_s"] < 4.5
    owed = [line for line in node.log().splitlines() if "beyond its turn" in line]
    assert owed, node.log()
    # AND it goes on when they are paid
    assert task.ask("spin 1") == {"did": "spin"}
