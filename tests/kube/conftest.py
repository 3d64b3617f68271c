"""The world that the tests of the Kubernetes part play in; see ``world.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from doubles.world import DoublesWorld
from world import World


@pytest.fixture
def world() -> Iterator[World]:
    """Eight simulated T4 under doubles of the kubelet and the API server."""
    world = DoublesWorld("8xT4")
    try:
        yield world
    finally:
        world.close()
