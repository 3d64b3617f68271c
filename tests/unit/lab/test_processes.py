"""How a task of a run is judged."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvshare.lab import processes
from nvshare.lab.outcome import Outcome, RunPlan, TaskPlan
from nvshare.lab.team import Member
from nvshare.lab.workloads.spec import WORKLOADS

PLAN = TaskPlan("task", WORKLOADS["add-small"])


class EndedTeam:
    """A team whose one task has ended well."""

    def __init__(self, *_: Any) -> None:
        process = subprocess.Popen(["true"], text=True)
        process.wait()
        self.members = [Member(PLAN, process, io.StringIO(), result={"passed": True})]

    def __enter__(self) -> EndedTeam:
        return self

    def __exit__(self, *_: object) -> None: ...

    def await_ready(self) -> None: ...

    def go(self) -> None: ...

    def await_results(self, _: object) -> None: ...

    def leave(self) -> None: ...


def outcome(monkeypatch: pytest.MonkeyPatch, *, shared: bool, known: bool) -> Outcome:
    team = EndedTeam()
    client = {"pid": team.members[0].process.pid, "id": "00000000000000ab", "gpus": []}
    status = {"clients": [client] if known else [], "counters": {"switches": 0, "swapped_bytes": 0}}
    monkeypatch.setattr(processes, "Team", lambda *_: team)
    monkeypatch.setattr(processes, "ensure_scheduler", lambda *_: False)
    monkeypatch.setattr(processes.ProcessBackend, "_status", lambda _: status)
    place = processes.Place("gpu", "1 x T", ("GPU-0",), Path("/x"), {})
    return processes.ProcessBackend(place).run(RunPlan((PLAN,), shared=shared))


def test_task_is_known_by_its_id_where_process_numbers_differ() -> None:
    member = EndedTeam().members[0]
    member.client = "00000000000000ab"
    status = {"clients": [{"pid": member.process.pid, "id": "1"}, {"pid": 1, "id": "00000000000000ab"}]}
    assert processes._client_of(member, status)["pid"] == 1


def test_task_that_the_scheduler_never_knew_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    result = outcome(monkeypatch, shared=True, known=False)
    assert result.tasks[0].status == "FAIL"
    assert "ran without nvshare" in result.messages[0]


@pytest.mark.parametrize(("shared", "known"), [(True, True), (False, False)])
def test_task_that_ran_as_planned_passes(monkeypatch: pytest.MonkeyPatch, shared: bool, known: bool) -> None:
    result = outcome(monkeypatch, shared=shared, known=known)
    assert (result.tasks[0].status, result.messages) == ("PASS", ())
