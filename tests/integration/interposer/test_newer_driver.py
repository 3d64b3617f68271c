"""A driver that is newer than our table: what we do not know passes through, bars sleep, and the debug log names it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvshare import native

HERE = Path(__file__).parent


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program, and beside it a driver that has what no table can have yet."""
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", HERE / "newer_driver.c", "-o", driver], check=True)
    subprocess.run(["cc", HERE / "newer_program.c", "-o", tmp_path / "program", "-ldl"], check=True)
    return tmp_path / "program"


def run(program: Path, debug: str) -> tuple[str, list[str]]:
    """What it printed, and the names in the lines about unknown functions."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(program.parent),
        "LD_PRELOAD": str(native.interposer()),
        "NVSHARE_DEBUG": debug,
    }
    done = subprocess.run([program], env=environment, check=True, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if "cannot sleep" in line]
    assert all(line.startswith("[NVSHARE][DEBUG]: ") for line in lines)
    return done.stdout.strip(), [line.split()[1].rstrip(":") for line in lines]


def test_unknown_functions_pass_and_are_named_once(program: Path) -> None:
    # GIVEN a driver with a new function and a new form of a known one
    # WHEN a program asks for them again and again, by dlsym and by cuGetProcAddress
    answer, named = run(program, debug="1")
    # AND takes tables of functions, one of them the runtime's
    # THEN they work, each is named once, and the known ones are not
    assert answer == "0"
    assert named == ["cuStreamQuery", "cuFromTheFuture", b"0123456789abcdef".hex()]


def test_nothing_is_said_without_debug(program: Path) -> None:
    assert run(program, debug="0") == ("0", [])
