"""Memory beyond the card, through the whole path: real processes, scheduler and library on a simulated driver."""

from __future__ import annotations

import os
import random
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

SCRIBBLER = Path(__file__).with_name("scribbler.py")
OUT_OF_MEMORY = {"did": "alloc", "error": "CUDA_ERROR_OUT_OF_MEMORY"}
SWITCHES = 20_000 if os.environ.get("NVSHARE_SOAK") else 500


MAPPED: dict[str, str] = {}
UNIFIED = {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}


def scribbler(node: Node, seed: int, *options: str, **variables: str) -> Program:
    # Each of its pauses is to be a switch.
    variables = {"NVSHARE_IDLE_MS": "20", **variables}
    task = node.start(str(SCRIBBLER), "--seed", str(seed), "--bytes", "900", *options, gpu=0, **variables)
    task.line_with("filled")
    return task


@pytest.fixture
def small(node: Node) -> Node:
    """A card that holds two of three scribblers at most."""
    node.restart_scheduler("--card-memory", "1GiB")
    return node


def switches(status: dict[str, Any]) -> int:
    count: int = status["counters"]["switches"]
    return count


@pytest.mark.slow
@pytest.mark.timeout(300 if SWITCHES == 500 else 20_000)
@pytest.mark.parametrize("backend", [MAPPED, UNIFIED], ids=["mapped", "unified"])
def test_every_byte_survives_hundreds_of_switches_and_kills(small: Node, backend: dict[str, str]) -> None:
    # GIVEN three tasks of random allocations, frees and contents that do not fit together
    chance, seeds = random.Random(5), count(1)
    tasks = [scribbler(small, next(seeds), **backend) for _ in range(3)]
    done = earlier = swapped = 0
    while done < SWITCHES:
        # WHEN they have taken turns hundreds of times, while now and then one of them is killed, or the scheduler
        goal = done - earlier + chance.randint(30, 70)
        status = small.await_status(lambda status, goal=goal: switches(status) >= goal)
        done = earlier + switches(status)
        if chance.random() < 0.3:
            swapped += status["counters"]["swapped_bytes"]
            small.restart_scheduler("--card-memory", "1GiB")
            earlier = done
        else:
            victim = tasks.pop(chance.randrange(2))  # the newest lives on: all get to be old
            victim.kill()
            tasks.append(scribbler(small, next(seeds), **backend))
    # THEN all that were not killed are still right, and each of their bytes is read back
    assert swapped + small.status()["counters"]["swapped_bytes"] > SWITCHES * (64 << 20)
    for task in tasks:
        code, _ = task.result()
        assert code == 0, task.said


@pytest.mark.simulated
@pytest.mark.slow
def test_stream_ordered_memory_survives_switches(small: Node) -> None:
    # GIVEN two tasks that allocate and free in stream order and do not fit together, beside one that allocates plainly
    tasks = [
        scribbler(small, 11, "--memory", "ordered"),
        scribbler(small, 12, "--memory", "ordered"),
        scribbler(small, 13),
    ]
    # WHEN they have taken turns THEN every byte of each is as it was written
    small.await_status(lambda status: switches(status) >= 60)
    assert small.status()["counters"]["swapped_bytes"] > 60 * (64 << 20)
    for task in tasks:
        code, _ = task.result()
        assert code == 0, task.said


@pytest.mark.simulated
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


@pytest.mark.simulated
def test_no_task_alone_may_be_larger_than_the_card(small: Node) -> None:
    task = small.holder()
    assert task.ask("alloc 1100") == OUT_OF_MEMORY
    task.heard("1100 MiB denied, 0 MiB are in use here: the card has no more room")
    assert task.ask("alloc 900") == {"did": "alloc"}


@pytest.mark.simulated
def test_a_task_may_be_larger_than_the_card_where_that_is_allowed(small: Node) -> None:
    # GIVEN a task that may, and one that may not
    large, other = small.holder(gpu=0, **UNIFIED), small.holder()
    assert large.ask("alloc 800") == {"did": "alloc"}
    assert large.ask("alloc 800") == {"did": "alloc"}
    assert other.ask("alloc 600") == {"did": "alloc"}
    # THEN both run, in turns
    for _ in range(3):
        assert large.ask("spin 1") == {"did": "spin"}
        assert other.ask("spin 1") == {"did": "spin"}


@pytest.mark.simulated
def test_host_memory_that_is_used_up_is_felt_by_who_asks_alone(small: Node) -> None:
    # GIVEN a task that runs, and one that has next to no host memory
    running, asking = small.holder(), small.holder(NVSHARE_SIM_HOST_MEMORY="64Mi")
    assert running.ask("alloc 700") == {"did": "alloc"}
    assert running.ask("spin 1") == {"did": "spin"}
    # WHEN that one asks for more than the card has left THEN it gets an error, what fits it gets, and both run
    assert asking.ask("alloc 700") == OUT_OF_MEMORY
    asking.heard("denied")
    assert asking.ask("alloc 300") == {"did": "alloc"}
    assert asking.ask("spin 1") == {"did": "spin"}
    assert running.ask("spin 1") == {"did": "spin"}
    assert small.status()["counters"]["swapped_bytes"] == 0


@pytest.mark.simulated
def test_nobody_is_let_in_for_whom_another_could_not_leave(small: Node) -> None:
    # GIVEN a task that runs and whose memory the host cannot take
    running, asking = small.holder(NVSHARE_SIM_HOST_MEMORY="64Mi"), small.holder()
    assert running.ask("alloc 700") == {"did": "alloc"}
    assert running.ask("spin 1") == {"did": "spin"}
    small.await_status(lambda status: any(gpu["pinned"] for client in status["clients"] for gpu in client["gpus"]))
    # WHEN another asks for its place THEN it is refused, and the first one goes on
    assert asking.ask("alloc 700") == OUT_OF_MEMORY
    assert running.ask("spin 1") == {"did": "spin"}
    assert asking.ask("alloc 200") == {"did": "alloc"}
    assert asking.ask("spin 1") == {"did": "spin"}


@pytest.mark.simulated
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
