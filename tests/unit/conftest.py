"""Results that several tests look at: a short mission, in the model, and a test on a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nvshare.cli.bench import command
from nvshare.report.kube import KIND, SOURCE, result
from nvshare.report.page.kinds import stamped
from tests.unit.acceptance.kube_evidence import BOTH, IN_TURNS, REQUEST, seen


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


@pytest.fixture
def kube() -> dict[str, Any]:
    """Two pods that take turns on one GPU though their memory fits, as its JSON comes back from a file."""
    content = result(replace(REQUEST, count=2), seen(REQUEST, BOTH, IN_TURNS), 5.0).to_dict()
    written: dict[str, Any] = json.loads(json.dumps(stamped(KIND, {"source": SOURCE, **content})))
    return written
