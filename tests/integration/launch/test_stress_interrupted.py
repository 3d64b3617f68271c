"""``nvshare stress`` that is interrupted or killed: no worker, no file is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshare import procfs
from tests.support.processes import eventually

PATIENCE = 30.0
NODE = "2xA100-40G"
WORKERS = 4


@pytest.fixture
def stress(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One whose workers all compute."""
    command = [sys.executable, "-m", "nvshare.cli.main", "stress", "--sim", NODE, "--cleanup", "--skip-launch"]
    process = subprocess.Popen(
        [*command, "--verbose", "--workers", str(WORKERS), "--memory", "64", "--duration", "600"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def workers_of(stress: subprocess.Popen[str]) -> list[int]:
    assert stress.stdout is not None
    told = (line.split() for line in stress.stdout)
    found = (int(words[3]) for words in told if words[:1] == ["worker"])
    return [next(found) for _ in range(WORKERS)]


def all_gone(pids: list[int]) -> bool:
    return all(procfs.start_time(pid) == 0 for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_three_times_ctrl_c_or_a_polite_kill_leave_nothing(
    stress: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    pids = workers_of(stress)
    for _ in range(3):
        stress.send_signal(number)
    _, said = stress.communicate(timeout=PATIENCE)
    assert stress.returncode == 128 + number
    assert said == "[NVSHARE][FATAL]: interrupted; waited for its workers to end\n"
    assert all_gone(pids)
    assert list(tmp_path.iterdir()) == []


def test_killed_it_leaves_no_directory_and_no_worker(stress: subprocess.Popen[str], tmp_path: Path) -> None:
    pids = workers_of(stress)
    assert len(list(tmp_path.iterdir())) == 1
    stress.kill()
    assert eventually(lambda: all_gone(pids) and not list(tmp_path.iterdir()), PATIENCE)
