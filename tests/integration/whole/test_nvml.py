"""What management tools show inside a task: its share of the card, and its own processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node
    from tests.support.processes import Program

pytestmark = pytest.mark.simulated

TEAM = Path(__file__).with_name("team.py")
SMI = Path(__file__).with_name("smi.py")
T4 = 14913  # MiB


@pytest.fixture
def neighbour(node: Node) -> Program:
    """Somebody else's task on the same card."""
    task = node.holder()
    assert task.ask("alloc 2000") == {"did": "alloc"}
    return task


def start_team(node: Node, *options: str) -> Program:
    """``nvshare run`` of two processes; it has the whole node, whose first card is the neighbour's too."""
    node.env["CUDA_VISIBLE_DEVICES"] = node.sim.uuids[0]
    return node.start("-m", "nvshare", "run", *options, "--", sys.executable, str(TEAM), LD_PRELOAD="")


def test_a_tool_inside_a_run_shows_the_run_and_nobody_else(node: Node, neighbour: Program) -> None:
    # GIVEN a run with a quota of 4 GiB whose processes have 700 and 300 MiB, beside a neighbour
    team = start_team(node, "--mem", "4Gi")
    pids = team.ask("pids")
    team.ask("first alloc 700")
    team.ask("second alloc 300")
    both = {str(pids["first"]): 700, str(pids["second"]): 300}
    # THEN a tool that the run starts shows its quota and these two
    view = {"total": 4096, "used": 1000, "free": 3096, "processes": both, "graphics": 0}
    assert team.ask("smi") == view
    # AND so does one that a member starts
    assert team.ask("second smi") == {"did": "smi", **view}
    # AND what the operator changes shows at once
    ctl = [sys.executable, "-m", "nvshare.cli.ctl", "set", "--pid", str(pids["first"]), "--mem", "2GiB"]
    subprocess.run(ctl, env=node.env, check=True, capture_output=True)
    assert team.ask("smi") == {**view, "total": 2048, "free": 1048}
    assert team.result()[0] == 0


def test_memory_that_is_away_still_shows(node: Node) -> None:
    # GIVEN a card too small for both of a run's processes
    node.restart_scheduler("--card-memory", "1GiB")
    team = start_team(node)
    pids = team.ask("pids")
    for member in ("first", "second"):
        team.ask(f"{member} alloc 700")
        team.ask(f"{member} spin 1")
    # THEN both show with all that they have allocated, on the card or not
    assert team.ask("smi")["processes"] == {str(pids["first"]): 700, str(pids["second"]): 700}
    assert team.result()[0] == 0


def test_a_lone_task_sees_itself_and_so_do_its_tools(node: Node, neighbour: Program) -> None:
    task = node.holder()
    task.ask("alloc 500")
    view = task.ask("smi")
    assert view["processes"] == {str(task.pid): 500}
    assert view["used"] == 500
    assert view["total"] == task.ask("info")["total"]


def test_a_tool_outside_of_tasks_sees_the_card_as_it_is(node: Node, neighbour: Program) -> None:
    # GIVEN a shell with the library preloaded, but no run around it
    code, output = node.start(str(SMI)).result()
    assert code == 0
    assert f'"total": {T4}' in output
    assert f'"{neighbour.pid}": ' in output


def test_a_scheduler_that_does_not_answer_costs_a_moment(node: Node) -> None:
    node.scheduler.send_signal(signal.SIGSTOP)
    try:
        code, output = node.start(str(SMI)).result()
    finally:
        node.scheduler.send_signal(signal.SIGCONT)
    assert code == 0
    assert f'"total": {T4}' in output
