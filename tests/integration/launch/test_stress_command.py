"""``nvshare stress`` and ``test_gpu_allocation.py``: verdicts, exit codes, what is left."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvshare.gpu import sim

ROOT = Path(__file__).resolve().parents[3]


def stress(*arguments: str, script: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "test_gpu_allocation.py")] if script else ["-m", "nvshare.cli.main", "stress"]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def verdicts(report: dict[str, Any]) -> dict[str, bool | None]:
    return {verdict["name"]: verdict["passed"] for verdict in report["verdicts"]}


def test_five_verdicts_pass_and_everything_is_told(tmp_path: Path) -> None:
    result, log, page = (tmp_path / name for name in ("result.json", "gpus.csv", "page.html"))
    done = stress(
        *("--sim", "3xT4", "--workers", "6", "--memory", "64", "--duration", "2", "--verbose", "--cleanup"),
        *("--json", str(result), "--gpu-log", str(log), "--html", str(page)),
        script=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(result.read_text())
    assert list(verdicts(report).values()) == [True] * 5
    assert all(worker["allocated"] == 64 << 20 and worker["ok"] for worker in report["workers"])
    assert all(f"process {worker['pid']} on GPU" in done.stdout for worker in report["workers"])
    assert report["figures"]["ops_per_second"] > 0
    assert (report["kind"], report["source"]) == ("stress", "simulated")
    told = {task["task"] for card in report["timeline"] for task in card["tasks"]}
    assert told == {f"worker {worker['worker']}" for worker in report["workers"]}
    assert page.read_text().count('data-plot="speed"') == len(report["workers"])
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert set(rows[0]) == {"timestamp", "index", "utilization", "memory"}
    assert {row["index"] for row in rows} == {"0", "1", "2"}
    assert max(int(row["memory"]) for row in rows) >= 64
    assert "3xT4" not in sim.names()


def test_a_result_is_written_though_nobody_reads_to_the_end(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = ("--sim", "1xT4", "--workers", "1", "--memory", "64", "--duration", "0.5", "--skip-launch", "--cleanup")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "nvshare", "stress", *options]
    with os.fdopen(writing) as nobody:
        written = subprocess.run(
            [*command, "--json", str(result)], stdout=nobody, stderr=subprocess.PIPE, timeout=110, check=False
        )
        ended = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, timeout=110, check=False)
    assert (written.returncode, written.stderr) == (0, b"")
    assert json.loads(result.read_text())["kind"] == "stress"
    # AND where no file was asked for, there is nothing to go on for
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_checkout_without_packages_says_which_and_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "test_gpu_allocation.py"
    shutil.copy(ROOT / "test_gpu_allocation.py", script)
    without_packages = [sys.executable, "-S", str(script)]
    done = subprocess.run(without_packages, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "[NVSHARE][FATAL]: click, rich and nvidia-ml-py are missing: run make native .venv/.ready, then "
        ".venv/bin/python test_gpu_allocation.py, or pip install click rich nvidia-ml-py\n"
    )


@pytest.mark.slow
def test_every_fault_is_survived(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = stress("--sim", "2xT4", "--skip-stress", "--skip-launch", "--faults", "--cleanup", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    faults = json.loads(result.read_text())["faults"]
    assert len(faults) == 9
    assert all(fault["survived"] for fault in faults)


def test_without_a_gpu_it_is_skipped_and_never_passed() -> None:
    done = stress("--duration", "1", "--sim", "1xT4", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 77
    assert done.stdout.startswith("SKIPPED")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--workers", "0"), "--workers"),
        (("--duration", "0"), "--duration"),
        (("--memory", "1"), "--memory"),
        (("--memory", "99999999", "--sim", "1xT4"), "the smallest GPU to be used has"),
        (("--gpus", "7", "--sim", "1xT4"), "GPU 7 does not exist"),
        (("--skip-stress", "--skip-launch"), "nothing to do"),
        (("--min-success", "101"), "--min-success"),
        (("--sim", "0xT4"), "0xT4"),
        (("--colour",), "--colour"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], text: str) -> None:
    done = stress(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
