"""Makes the helpers beside these tests importable, and nodes for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvshare.gpu import sim

sys.path.insert(0, str(Path(__file__).parent))

from launch_node import LaunchNode


@pytest.fixture
def make_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LaunchNode]]:
    made: list[LaunchNode] = []

    def make(spec: str) -> LaunchNode:
        node = LaunchNode(spec)
        made.append(node)
        for name, value in node.variables.items():
            monkeypatch.setenv(name, value)
        return node

    yield make
    for node in made:
        sim.down(node.sim.name)


@pytest.fixture
def node(make_node: Callable[[str], LaunchNode]) -> LaunchNode:
    """Four simulated T4."""
    return make_node("4xT4")
