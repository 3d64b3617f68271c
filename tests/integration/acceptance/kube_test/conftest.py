"""A cluster of one simulated node behind a ``kubectl`` of our own, and ``nvshare kube-test`` as users start it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvshare import native
from tests.integration.acceptance.kube_test.kubectl_double import stamp
from tests.support.nodes import MakeNode
from tests.support.processes import node_scheduler

DOUBLE = Path(__file__).with_name("kubectl_double.py")
SPEED = 20.0


@dataclass
class FakeCluster:
    directory: Path
    kubectl: Path
    gpus: tuple[str, ...]

    def command(self, *arguments: str) -> list[str]:
        common = ("--kubectl", str(self.kubectl), "--speed", f"{SPEED:g}")
        return [sys.executable, "-m", "nvshare", "kube-test", *common, *arguments]

    def test(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), check=False, capture_output=True, text=True, timeout=100)

    def calls(self) -> list[str]:
        return (self.directory / "calls").read_text().splitlines()

    def pods(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "pods").glob("*"))


def stamp_lines(source: Path, target: Path) -> None:
    with source.open() as lines:
        stamp(lines, target)


@pytest.fixture
def make_cluster(tmp_path: Path, simulated: MakeNode) -> Iterator[Callable[..., FakeCluster]]:
    with contextlib.ExitStack() as stack:

        def make(*faults: str, gpus: int = 2, mode: str = "auto") -> FakeCluster:
            node = simulated(f"{gpus}xT4", SPEED)
            lines = tmp_path / "scheduler.lines"
            os.mkfifo(lines)
            stamper = threading.Thread(target=stamp_lines, args=(lines, tmp_path / "scheduler.log"))
            stamper.start()
            stack.callback(stamper.join)
            scheduler = node_scheduler(node, {**os.environ, **node.env()}, "--mode", mode, log=lines)
            scheduler.start()
            stack.callback(scheduler.stop)
            described = {
                "faults": faults,
                "gpus": node.uuids,
                "variables": node.env(),
                "socket": str(node.socket),
                "library": str(native.interposer()),
            }
            (tmp_path / "cluster.json").write_text(json.dumps(described))
            program = tmp_path / "kubectl"
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{DOUBLE}" "{tmp_path}" "$@"\n')
            program.chmod(0o755)
            return FakeCluster(tmp_path, program, node.uuids)

        yield make
