"""Output that cannot be written: a full disk is one line and a code other than 0, a reader that has gone is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvshare.cli.main import main

LOG = Path(__file__).parents[2] / "data" / "concurrency" / "serial-mode" / "scheduler.log"
MISSION = ("bench", "mission", "--model", "2xT4", "--shorten", "0.01", "--only", "0,4")
PRINTING = [
    ("doctor",),
    ("doctor", "--json"),
    ("verify", "concurrency", str(LOG)),
    MISSION,
    ("sim", "list"),
    ("--help",),
    ("--version",),
]
FULL = "[NVSHARE][FATAL]: the output cannot be written: No space left on device"


def start(*arguments: str, stdout: object, module: str = "nvshare", buffered: bool = True) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)  # type: ignore[call-overload]


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_disk_is_one_line_and_a_failure(arguments: tuple[str, ...], buffered: bool) -> None:
    with Path("/dev/full").open("w") as full:
        running = start(*arguments, stdout=full, buffered=buffered)
        _, said = running.communicate(timeout=60)
    assert said.splitlines() == [FULL]
    assert running.returncode == 1


def test_the_control_program_does_the_same() -> None:
    with Path("/dev/full").open("w") as full:
        running = start("--help", stdout=full, module="nvshare.cli.ctl")
        _, said = running.communicate(timeout=60)
    assert (said.splitlines(), running.returncode) == ([FULL], 1)


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_that_has_gone_is_no_news(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    running = start(*arguments, stdout=writing)
    os.close(writing)
    _, said = running.communicate(timeout=60)
    assert said == ""
    assert running.returncode == 1


def test_a_result_is_kept_though_nobody_reads_what_is_said(tmp_path: Path) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "page.html"
    with Path("/dev/full").open("w") as full:
        running = start(*MISSION, "--json", str(rows), "--html", str(page), stdout=full)
        running.communicate(timeout=60)
    assert running.returncode == 1
    assert json.loads(rows.read_text())["kind"] == "mission"
    assert page.read_text().endswith("</html>\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", [("doctor",), ("verify", "concurrency", str(LOG))], ids=" ".join)
def test_an_encoding_without_arrows_and_bars_is_no_error(arguments: tuple[str, ...], encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nvshare", *arguments],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
    assert done.stdout


def test_no_directory_for_temporary_files_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("nvshare.gpu.sim.names", none)
    result = CliRunner().invoke(main, ["sim", "list"])
    assert result.exit_code == 2
    assert result.output.startswith("[NVSHARE][FATAL]: there is no directory for temporary files: set TMPDIR")
