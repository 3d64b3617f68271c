"""Manifests and images that users have keep working: they start the workloads by an older name."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("program", ["workloads", "workloads.grow"])
def test_the_older_name_starts_the_same_program(program: str) -> None:
    helps = [
        subprocess.run(
            [sys.executable, "-m", f"nvshare.{room}.{program}", "--help"], capture_output=True, text=True, check=True
        ).stdout
        for room in ("lab", "bench")
    ]
    assert "usage:" in helps[0]
    assert helps[0] == helps[1]
