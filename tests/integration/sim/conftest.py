"""Simulated nodes for tests, and programs that run on them as real processes."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvshare.gpu.sim import SimNode
from tests.support.nodes import MakeNode
from tests.support.processes import Program, Run

_HERE = Path(__file__).parent

Start = Callable[..., Program]


@pytest.fixture
def make_node(simulated: MakeNode) -> MakeNode:
    def make(spec: str = "2xT4", speed: float = 10.0, **options: Any) -> SimNode:
        return simulated(spec, speed, **options)

    return make


@pytest.fixture
def node(make_node: MakeNode) -> SimNode:
    return make_node()


@pytest.fixture
def start(run_program: Run) -> Start:
    """Start a program on a node; its source may use all of ``driver``."""

    def begin(node: SimNode, source: str, env: dict[str, str] | None = None, within: Sequence[str] = ()) -> Program:
        text = "from driver import *\nimport struct, sys, time\n" + textwrap.dedent(source)
        variables = {**os.environ, **node.env(), "PYTHONPATH": str(_HERE), **(env or {})}
        return run_program([*within, sys.executable, "-c", text], variables)

    return begin


@pytest.fixture
def run(start: Start) -> Callable[..., str]:
    """Run a program to its end: its output."""

    def to_end(node: SimNode, source: str, env: dict[str, str] | None = None) -> str:
        return start(node, source, env).finish()

    return to_end
