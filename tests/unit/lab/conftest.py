"""A result that several tests look at: a short mission, in the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nvshare.cli.bench import command


@pytest.fixture(scope="session")
def mission_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mission") / "mission.json"
    arguments = ["mission", "--model", "2xT4", "--shorten", "0.01", "--only", "0,2,4", "--json", str(target)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return target


@pytest.fixture
def mission(mission_file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(mission_file.read_text())
    return content
