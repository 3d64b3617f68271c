"""What a task says while it runs, and how it is started."""

from __future__ import annotations

import io
import subprocess
from typing import cast

from nvshare.bench.outcome import TaskPlan
from nvshare.bench.team import Member, Team, command_line
from nvshare.bench.workloads.program import READY, _parser, _workload
from nvshare.bench.workloads.spec import WORKLOADS

PLAN = TaskPlan("task", WORKLOADS["add-idle-small"].shortened(0.1), seed=5)


def member() -> Member:
    return Member(PLAN, cast("subprocess.Popen[str]", None), io.StringIO())


def test_the_lines_of_a_task_are_understood() -> None:
    task = member()
    task.take(READY)
    assert task.ready
    task.take("100/400 [9.11 it/s]")
    assert task.done == 0.25
    task.take("PASS")
    task.take('{"workload": "add", "passed": true}')
    assert task.result == {"workload": "add", "passed": True}
    assert task.done == 1.0
    assert not task.ended
    task.take(None)
    assert task.ended


def test_the_id_and_the_error_of_a_task_come_from_its_standard_error() -> None:
    process = subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.wait()
    log = "[NVSHARE][INFO]: Client ID = 33875897f65917bb\n"
    task = Member(PLAN, process, io.StringIO(f"{log}FAIL: no\n\nwhy\n"))
    Team._close(task)
    assert (task.client, task.error) == ("33875897f65917bb", "FAIL: no; why")


def test_lines_of_others_do_no_harm() -> None:
    task = member()
    task.take("see /usr/share/doc")
    task.take("a/b")
    assert (task.done, task.ready, task.result) == (0.0, False, {})


def test_the_command_line_gives_the_program_the_planned_workload() -> None:
    arguments = _parser().parse_args(command_line(PLAN, speed=10.0)[3:])
    assert _workload(arguments) == PLAN.workload
    assert (arguments.seed, arguments.time_scale) == (5, 10.0)
    assert arguments.barrier
    assert arguments.json
