"""How often the library's thread wakes up beside a task that has the card for itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.whole.conftest import Node
from tests.support.processes import eventually

pytestmark = pytest.mark.simulated

WAKES_A_SECOND = 50
FIRST = 20  # of a stretch: it may begin with the looks after a pause


@pytest.fixture
def node() -> Iterator[Node]:
    """A card as fast as life, for so are the library's looks."""
    with contextlib.closing(Node("1xT4", speed=1)) as node:
        node.start_scheduler()
        yield node


def link_wakes(pid: int) -> int:
    """How often the link thread of this process has slept until now."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if (thread / "comm").read_text().strip() == "nvshare-link":
            status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
            return int(status["voluntary_ctxt_switches"])
    raise AssertionError(f"process {pid} has no link thread")


@pytest.mark.parametrize("workload", ["add-small", "add-idle-small"])
def test_a_task_alone_is_left_alone(node: Node, workload: str) -> None:
    # GIVEN a task that has a card for itself and is at work
    task = node.start("-m", "nvshare.bench.workloads", workload, "--iterations", "1000000")

    def submissions() -> int:
        return sum(place["submissions"] for client in node.status()["clients"] for place in client["gpus"])

    eventually(lambda: submissions() > 0)
    pid = task.process.pid
    # WHEN its counters were reported several times more
    begun, began = link_wakes(pid), time.monotonic()
    for _ in range(8):
        before = submissions()
        eventually(lambda before=before: submissions() > before)
    # THEN the library's thread woke up fifty times a second at most
    assert link_wakes(pid) - begun <= FIRST + WAKES_A_SECOND * (time.monotonic() - began)
    task.process.kill()
