"""A simulated node, and the real `nvshare doctor` to look at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from nvshare.gpu import sim
from tests.support.nodes import MakeNode


@dataclass(frozen=True)
class Report:
    code: int
    findings: list[dict[str, str]]
    facts: dict[str, Any]

    def of(self, check: str, state: str) -> dict[str, str]:
        """The only finding of this check in this state."""
        (found,) = [finding for finding in self.findings if (finding["check"], finding["state"]) == (check, state)]
        return found

    @property
    def states(self) -> dict[str, set[str]]:
        states: dict[str, set[str]] = {}
        for finding in self.findings:
            states.setdefault(finding["check"], set()).add(finding["state"])
        return states


def doctor(environ: Mapping[str, str], *options: str, through: tuple[str, ...] = ()) -> Report:
    """``through``: a command that starts it."""
    done = subprocess.run(
        [*through, sys.executable, "-m", "nvshare", "doctor", "--json", *options],
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    worst = {"ok": 0, "note": 0, "warning": 1, "problem": 2}
    assert done.returncode == worst[told["worst"]] == max(worst[one["state"]] for one in told["findings"])
    assert all(one["remedy"] for one in told["findings"] if one["state"] in ("warning", "problem"))
    return Report(done.returncode, told["findings"], told["facts"])


@pytest.fixture
def diagnose() -> Callable[..., Report]:
    return doctor


@dataclass(frozen=True)
class Patient:
    """A simulated node. ``environ`` is that of a shell on it in which nothing of nvshare was set."""

    node: sim.SimNode

    @property
    def environ(self) -> dict[str, str]:
        return {name: value for name, value in {**os.environ, **self.node.env()}.items() if name != "NVSHARE_SOCK"}

    def examined(self, *options: str, **variables: str) -> Report:
        """As somebody outside who gives --sim, with further variables around."""
        return doctor({**os.environ, **variables}, "--sim", self.node.name, *options)


@pytest.fixture
def make_patient(simulated: MakeNode) -> Callable[..., Patient]:
    def make(**setup: int) -> Patient:
        return Patient(simulated("2xT4", 10, setup=sim.Setup(**setup)))

    return make


@pytest.fixture
def patient(make_patient: Callable[..., Patient]) -> Patient:
    return make_patient()
