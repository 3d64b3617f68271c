"""Quotas that were set with ``nvsharectl``, through the whole path, over a kill of the scheduler."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.whole.conftest import Node

pytestmark = pytest.mark.simulated

OUT_OF_MEMORY = {"did": "alloc", "error": "CUDA_ERROR_OUT_OF_MEMORY"}


def ctl(node: Node, *arguments: str) -> str:
    command = [sys.executable, "-m", "nvshare.cli.ctl", *arguments]
    return subprocess.run(command, env=node.env, check=True, capture_output=True, text=True).stdout


def test_quotas_set_by_an_operator_hold_when_tasks_come_back_to_a_restarted_scheduler(node: Node) -> None:
    # GIVEN two tasks, one of them with quotas and priority that an operator set, and serial turns
    limited, free = node.holder(), node.holder(NVSHARE_GPU_MEMORY_LIMIT="2Gi")
    for task in (limited, free):
        task.ask("alloc 500")
    pid = str(limited.pid)
    ctl(node, "set", "--pid", pid, "--mem", "1GiB", "--cores", "50", "--priority", "high")
    ctl(node, "set", "--mode", "serial")
    ctl(node, "-T", "20")
    limited.heard("Core limit = 50%")
    # WHEN the scheduler is killed, and another one is started
    node.restart_scheduler()
    node.await_status(lambda status: len(status["clients"]) == 2)
    # THEN the quotas hold for the one and not for the other
    group = next(group for group in node.status()["groups"] if group["id"] == f"process:{pid}")
    assert (group["mem_limit_from"], group["core_limit_from"], group["priority_from"]) == ("operator",) * 3
    assert limited.ask("alloc 600") == OUT_OF_MEMORY
    assert limited.ask("info")["total"] == 1024
    assert free.ask("alloc 600") == {"did": "alloc"}
    # AND both compute
    for task in (limited, free):
        assert task.ask("spin 1") == {"did": "spin"}
    # AND status tells
    text = ctl(node, "status")
    assert "mode serial (operator), quantum 20 s (operator)" in text
    assert f"process {pid} has memory 1.0 GiB, cores 50 %, priority high set by an operator" in text
    # AND taken back it is gone
    ctl(node, "reset", "--all")
    assert limited.ask("alloc 600") == {"did": "alloc"}
    assert "operator" not in ctl(node, "status")
