"""Simulated nodes whose tasks have the library of one release, and whose scheduler is of the other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nvshare import __version__, native
from nvshare.client.connection import Connection
from tests.integration.releases import previous
from tests.integration.whole.conftest import Node

if TYPE_CHECKING:
    from tests.support.processes import Program


# Starts the scheduler of the package in the directory that is its first argument. An editable install finds its own
# package before the path is searched, so the search of the path goes first.
START = """
import importlib.machinery, runpy, sys
sys.path.insert(0, sys.argv.pop(1))
sys.meta_path.insert(0, importlib.machinery.PathFinder)
runpy.run_module("nvshare.cli.scheduler", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Release:
    name: str
    package: Path  # the directory that the Python package is in
    library: Path


class MixedNode:
    """One card that holds one task of 700 MiB at a time, ten times as fast as life."""

    def __init__(self, node: Node, tasks: Release, scheduler: Release) -> None:
        self._node, self._library = node, tasks.library
        self.own, self.other = tasks, scheduler  # the release of the tasks, and the one that is not
        self._scheduler: subprocess.Popen[bytes] | None = None

    def start_scheduler(self, release: Release) -> None:
        socket, log = self._node.sim.socket, self._node.sim.directory / "mixed.log"
        ready, told = os.pipe()
        command = [sys.executable, "-c", START, str(release.package), "--user", "--card-memory", "1GiB"]
        with log.open("ab") as errors:
            self._scheduler = subprocess.Popen(
                [*command, "--socket", str(socket), "--ready-fd", str(told)],
                env=self._node.env,
                stderr=errors,
                pass_fds=(told,),
            )
        os.close(told)
        with open(ready, "rb") as listening:
            assert listening.read(1), log.read_text()
        assert self.status()["scheduler"]["release"] == release.name

    def kill_scheduler(self) -> None:
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler.wait()

    def task(self, **variables: str) -> Program:
        """A holder.py with a context, connected through the tasks' library."""
        task = self._node.holder(0, LD_PRELOAD=str(self._library), **variables)
        task.ask("info")
        assert str(self._library) in Path(f"/proc/{task.process.pid}/maps").read_text()
        return task

    def status(self) -> dict[str, Any]:
        return self._node.status()

    def await_status(self, holds: Any) -> dict[str, Any]:
        return self._node.await_status(holds)

    def control(self, op: str, **fields: Any) -> None:
        with Connection(self._node.sim.socket) as connection:
            connection.request(op, **fields)


@pytest.fixture(params=["previous library", "previous scheduler"])
def mixed(request: pytest.FixtureRequest) -> Iterator[MixedNode]:
    """Both pairs of this release and the previous one, with the scheduler started."""
    tree = previous.source()
    before = Release(previous.RELEASE, tree / "src", previous.library(tree))
    now = Release(__version__, previous.ROOT / "src", native.interposer())
    pair = (before, now) if request.param == "previous library" else (now, before)
    with contextlib.closing(Node("1xT4", speed=10)) as node:
        mixed = MixedNode(node, *pair)
        try:
            mixed.start_scheduler(mixed.other)
            yield mixed
        finally:
            mixed.kill_scheduler()
