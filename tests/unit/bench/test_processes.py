"""How a task of a run is judged."""

from __future__ import annotations

import io
import subprocess
from typing import Any

import pytest

from nvshare.bench import processes
from nvshare.bench.outcome import TaskPlan
from nvshare.bench.team import Member
from nvshare.bench.workloads.spec import WORKLOADS


@pytest.fixture
def member() -> Member:
    """A task that has ended well."""
    process = subprocess.Popen(["true"], text=True)
    process.wait()
    return Member(TaskPlan("task", WORKLOADS["add-small"]), process, io.StringIO(), result={"passed": True})


def judged(member: Member, status: dict[str, Any] | None) -> str:
    processes._require_shared(member, status)
    return processes._verdict(member)


def test_task_is_known_by_its_id_where_process_numbers_differ(member: Member) -> None:
    member.client = "00000000000000ab"
    status = {"clients": [{"pid": member.process.pid, "id": "1"}, {"pid": 1, "id": "00000000000000ab"}]}
    assert processes._client_of(member, status)["pid"] == 1


def test_task_that_the_scheduler_never_knew_fails_with_the_reason(member: Member) -> None:
    assert judged(member, {"clients": []}) == "FAIL"
    assert "ran without nvshare" in member.error


def test_task_that_the_scheduler_knows_passes(member: Member) -> None:
    assert judged(member, {"clients": [{"pid": member.process.pid, "id": "1"}]}) == "PASS"


def test_task_that_was_registered_and_has_left_passes(member: Member) -> None:
    member.client = "00000000000000ab"
    assert judged(member, {"clients": []}) == "PASS"


def test_task_of_a_plain_run_passes(member: Member) -> None:
    assert judged(member, None) == "PASS"
