"""Nodes for workers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.launch.launch_node import LaunchNode

sys.path.insert(0, str(Path(__file__).parent))  # workers import launch_acts by its name


@pytest.fixture
def make_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LaunchNode]]:
    with contextlib.ExitStack() as nodes:

        def make(spec: str) -> LaunchNode:
            node = nodes.enter_context(contextlib.closing(LaunchNode(spec)))
            for name, value in node.variables.items():
                monkeypatch.setenv(name, value)
            return node

        yield make


@pytest.fixture
def node(make_node: Callable[[str], LaunchNode]) -> LaunchNode:
    """Four simulated T4."""
    return make_node("4xT4")
