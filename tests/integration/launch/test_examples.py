"""The examples run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launch.launch_node import LaunchNode

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "launch"


@pytest.mark.parametrize(
    ("name", "needs"),
    [("pool", ""), ("multiprocessing_map", ""), ("joblib_trials", "joblib"), ("optuna_search", "optuna")],
)
def test_example(node: LaunchNode, name: str, needs: str) -> None:
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    node.await_clean()
