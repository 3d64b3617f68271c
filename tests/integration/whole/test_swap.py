"""Memory beyond the card, through the whole path: real processes, scheduler and library on a simulated driver."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node, Task

pytestmark = pytest.mark.simulated

SCRIBBLER = Path(__file__).with_name("scribbler.py")
GIB = 1 << 30
SWITCHES = 20_000 if os.environ.get("NVSHARE_SOAK") else 500


def scribbler(node: Node, seed: int, *options: str) -> Task:
    return node.start(str(SCRIBBLER), "--seed", str(seed), "--bytes", "900", *options)


@pytest.fixture
def small(node: Node) -> Node:
    """A card that holds two of three scribblers at most."""
    node.kill_scheduler()
    node.env["NVSHARE_SWAP"] = "on"
    node.start_scheduler("--card-memory", "1GiB")
    return node


def switches(status: dict[str, Any]) -> int:
    count: int = status["counters"]["switches"]
    return count


@pytest.mark.timeout(600 if SWITCHES == 500 else 20_000)
def test_every_byte_survives_hundreds_of_switches(small: Node) -> None:
    # GIVEN three tasks of random allocations, frees and contents that do not fit together
    tasks = [scribbler(small, seed) for seed in (1, 2, 3)]
    for task in tasks:
        task.line("filled")
        task.ignore_output()
    # WHEN they have taken turns hundreds of times
    small.await_status(lambda status: switches(status) >= SWITCHES, patience=0.5 * SWITCHES + 60)
    # THEN all three still run, and none has found a byte that it did not write
    counters = small.status()["counters"]
    assert counters["swapped_bytes"] > SWITCHES * (64 << 20)
    for task in tasks:
        assert task.process.poll() is None, task.said


def test_bytes_are_right_at_the_end(small: Node) -> None:
    # GIVEN two tasks that do not fit together, with a fixed number of rounds
    tasks = [scribbler(small, seed, "--rounds", "40") for seed in (11, 12)]
    # WHEN they end
    results = [task.result() for task in tasks]
    # THEN each has read back every byte
    for (code, output), task in zip(results, tasks, strict=True):
        assert code == 0, (output[-300:], task.said)
        assert output.endswith("PASS\n")


def test_survivors_lose_nothing_when_others_and_the_scheduler_are_killed(small: Node) -> None:
    # GIVEN a task that is watched, and neighbours that come and go
    chance = random.Random(5)
    watched = scribbler(small, 21, "--rounds", "150")
    neighbours: list[Task] = []
    for seed in range(30, 36):
        neighbours.append(scribbler(small, seed))
        neighbours[-1].line("round 2")
        # WHEN a neighbour is killed somewhere in a switch, and once the scheduler
        watched.line("round", chance.randint(1, 5))
        neighbours.pop(chance.randrange(len(neighbours))).kill()
        if seed == 33:
            small.kill_scheduler()
            small.start_scheduler("--card-memory", "1GiB")
    for neighbour in neighbours:
        neighbour.kill()
    # THEN the watched one has every byte
    code, output = watched.result()
    assert code == 0, (output[-300:], watched.said)
    assert output.endswith("PASS\n")


def test_growth_turns_a_set_that_fits_into_turns_and_back(small: Node) -> None:
    # GIVEN two tasks that fit together
    first, second = small.holder(), small.holder()
    first.ask("alloc 400")
    second.ask("alloc 400")
    assert first.ask("spin 1") == {"did": "spin"}
    assert second.ask("spin 1") == {"did": "spin"}
    assert small.status()["counters"]["swapped_bytes"] == 0
    # WHEN one grows beyond the card
    assert first.ask("alloc 500") == {"did": "alloc"}
    # THEN none fails, and both go on in turns
    for _ in range(3):
        assert first.ask("spin 1") == {"did": "spin"}
        assert second.ask("spin 1") == {"did": "spin"}
    assert small.status()["gpus"][0]["policy"] == "turns" or small.status()["gpus"][1]["policy"] == "turns"
    # AND when it fits again, turns end
    first.ask("free")
    small.await_status(lambda status: all(gpu["policy"] == "free" for gpu in status["gpus"]))
    assert second.ask("spin 1") == {"did": "spin"}


def test_no_task_alone_may_be_larger_than_the_card(small: Node) -> None:
    task = small.holder()
    assert task.ask("alloc 1100")["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert task.ask("alloc 900") == {"did": "alloc"}


def test_task_swapped_out_comes_back_when_its_neighbour_is_killed(small: Node) -> None:
    # GIVEN a task that was moved out by a busy neighbour
    victim, bully = small.holder(), small.holder()
    victim.ask("alloc 700")
    victim.ask("spin 1")
    bully.ask("alloc 700")
    bully.ask("spin 1")
    small.await_status(lambda status: any(gpu["host"] for client in status["clients"] for gpu in client["gpus"]))
    # WHEN the neighbour dies
    bully.kill()
    # THEN everything of the victim is on the card again without its asking
    small.await_status(
        lambda status: len(status["clients"]) == 1 and status["clients"][0]["gpus"][0]["resident"] == 700 << 20
    )
    assert victim.ask("spin 1") == {"did": "spin"}
