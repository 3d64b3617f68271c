"""The whole path: real processes under libnvshare.so, a real scheduler, a simulated node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nodes
from tests.support.processes import Program

HOLDER = Path(__file__).with_name("holder.py")


class Node(nodes.Node):
    def holder(self, gpu: int = 0, **variables: str) -> Program:
        return self.start(str(HOLDER), gpu=gpu, **variables)


@pytest.fixture
def node() -> Iterator[Node]:
    """Two simulated T4, ten times as fast as life, and a scheduler."""
    with contextlib.closing(Node("2xT4", speed=10)) as node:
        node.start_scheduler()
        yield node
