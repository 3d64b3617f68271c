"""Where results may be written, and what becomes of what is there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvshare.cli.main import main

RUN = ("bench", "mission", "--model", "2xT4", "--shorten", "0.01", "--only", "0")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*RUN, *map(str, arguments)])


def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("older")
    link.symlink_to(target)
    assert bench("--json", link).exit_code == 0
    assert link.is_symlink()
    assert '"kind": "mission"' in target.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"target.json", "link.json"}


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    result = bench("--json", pipe)
    reader.join()
    assert result.exit_code == 0, result.output
    assert pipe.is_fifo()
    assert '"kind": "mission"' in read[0]


def test_a_device_that_takes_nothing_is_one_line(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    result = bench("--json", full)
    assert (result.exit_code, full.is_symlink()) == (1, True)
    assert result.output == f"[NVSHARE][FATAL]: --json: {full} cannot be written (No space left on device)\n"


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_nothing_is_left_of_a_try(option: str, tmp_path: Path) -> None:
    assert bench(option, tmp_path / "x", "--only", "9").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_one_file_is_not_written_twice(tmp_path: Path) -> None:
    result = bench("--json", tmp_path / "x", "--html", tmp_path / "." / "x")
    assert result.exit_code == 2
    assert result.output == f"[NVSHARE][FATAL]: --html: {tmp_path / 'x'} is used already: name another file\n"
