"""The release before this one. docs/protocol.md promises that both work together; this module names and provides it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

RELEASE = "0.1.0"
COMMIT = "3b35d112bf8e2b36e52053180e9753126e1a8b7d"
ROOT = Path(__file__).resolve().parents[3]


def source() -> Path:
    """Its source tree, from this repository's history, with libnvshare.so under ``build/native``; made once.

    Skips the test where that history is not at hand.
    """
    directory = ROOT / "build" / "releases" / f"{RELEASE}-{COMMIT[:12]}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several of pytest's workers may come here at once
        if not library(directory).exists():
            _unpack(directory)
            _build(directory)
    return directory


def library(directory: Path) -> Path:
    return directory / "build" / "native" / "libnvshare.so"


def _unpack(directory: Path) -> None:
    try:
        archive = subprocess.run(["git", "-C", ROOT, "archive", COMMIT], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"no git to get release {RELEASE} with")
    if archive.returncode != 0:
        pytest.skip(f"release {RELEASE} is not in this tree's history: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)


def _build(directory: Path) -> None:
    environment = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    native = library(directory).parent
    for options in ("-S", directory, "-B", native), ("--build", native, "--target", "nvshare"):
        subprocess.run(["cmake", *options], check=True, capture_output=True, env=environment)
