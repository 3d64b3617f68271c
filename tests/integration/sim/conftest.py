"""Simulated nodes for tests, and programs that run on them as real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nvshare.gpu import sim

_HERE = Path(__file__).parent
_numbers = itertools.count()

MakeNode = Callable[..., sim.SimNode]


class Program:
    """A test program on a node, talked to by lines."""

    def __init__(
        self, node: sim.SimNode, source: str, env: dict[str, str] | None = None, within: Sequence[str] = ()
    ) -> None:
        text = "from driver import *\nimport struct, sys, time\n" + textwrap.dedent(source)
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", text],
            env={**os.environ, **node.env(), "PYTHONPATH": str(_HERE), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def finish(self) -> str:
        """What it printed; fails the test when the program failed."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        self.errors = err
        return out


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    made: list[sim.SimNode] = []

    def make(spec: str = "2xT4", speed: float = 10.0, **options: object) -> sim.SimNode:
        made.append(sim.up(spec, speed, name=f"test-{os.getpid()}-{next(_numbers)}", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for node in made:
        sim.down(node.name)


@pytest.fixture
def node(make_node: MakeNode) -> sim.SimNode:
    return make_node()


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(node: sim.SimNode, source: str, env: dict[str, str] | None = None, within: Sequence[str] = ()) -> Program:
        started.append(Program(node, source, env, within))
        return started[-1]

    yield begin
    for program in started:
        program.process.kill()
        program.process.communicate()


@pytest.fixture
def run(start: Callable[..., Program]) -> Callable[..., str]:
    def to_end(node: sim.SimNode, source: str, env: dict[str, str] | None = None) -> str:
        return start(node, source, env).finish()  # type: ignore[no-any-return]

    return to_end
