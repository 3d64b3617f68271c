"""benchmarks/hesitating_host.py takes cores from tasks, and from nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nvshare import native

TOOL = Path(__file__).resolve().parents[3] / "benchmarks" / "hesitating_host.py"
TASK = "import ctypes, os; ctypes.CDLL({library!r})\nwhile len(os.sched_getaffinity(0)) > 1: pass\nraise SystemExit(3)"


def hesitating(*arguments: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    if "needs root" in result.stderr:
        pytest.skip(result.stderr.splitlines()[-1])
    return result


def test_a_task_loses_its_core_and_its_exit_code_is_told() -> None:
    # GIVEN a process under the library, below the command, that works until it is bound to one core
    task = TASK.format(library=str(native.interposer()))
    # WHEN it runs on a host that hesitates
    result = hesitating("--every", "0.05", "--ms", "5", "--", "sh", "-c", f'{sys.executable} -c "$0"; exit $?', task)
    # THEN it was bound, and what it said at its end comes back
    assert result.returncode == 3
    assert " times a task lost its core for 5 ms" in result.stderr


def test_others_keep_theirs() -> None:
    result = hesitating("--every", "0.01", "--", sys.executable, "-c", "sum(range(10**7))")
    assert (result.returncode, result.stderr) == (0, "0 times a task lost its core for 40 ms\n")


@pytest.mark.parametrize("wrong", [["--every", "0"], ["--ms", "0"], ["--ms", "2000"], ["--seed", "x"], []])
def test_bad_input_is_refused(wrong: list[str]) -> None:
    result = hesitating(*wrong, *(["--", "true"] if wrong else []))
    assert result.returncode == 2
    assert "error: " in result.stderr
