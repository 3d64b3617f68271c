"""A cluster of one simulated node behind a ``kubectl`` of our own, and ``nvshare kube-test`` as users start it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvshare import native
from nvshare.gpu import sim

sys.path.insert(0, str(Path(__file__).parent))

from kubectl_double import stamp

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


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., FakeCluster]]:
    ends: list[Callable[[], None]] = []

    def make(*faults: str, gpus: int = 2, mode: str = "auto") -> FakeCluster:
        node = sim.up(f"{gpus}xT4", name=f"kube-{os.getpid()}-{secrets.token_hex(2)}", speed=SPEED)
        ends.append(lambda: sim.down(node.name))
        variables = {**os.environ, **node.env()}
        command = [sys.executable, "-m", "nvshare.cli.scheduler", "--socket", str(node.socket), "--mode", mode]
        ready, told = os.pipe()
        scheduler = subprocess.Popen(
            [*command, "--ready-fd", str(told)], env=variables, pass_fds=(told,), stderr=subprocess.PIPE, text=True
        )
        os.close(told)
        assert os.read(ready, 1)
        os.close(ready)
        assert scheduler.stderr is not None
        stamper = threading.Thread(target=stamp, args=(scheduler.stderr, tmp_path / "scheduler.log"))
        stamper.start()

        def end() -> None:
            scheduler.terminate()
            scheduler.wait()
            stamper.join()
            scheduler.stderr.close()

        ends.append(end)
        told_cluster = {
            "faults": faults,
            "gpus": node.uuids,
            "variables": {**node.env(), "NVSHARE_SOCK": str(node.socket)},
            "socket": str(node.socket),
            "library": str(native.interposer()),
        }
        (tmp_path / "cluster.json").write_text(json.dumps(told_cluster))
        program = tmp_path / "kubectl"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{DOUBLE}" "{tmp_path}" "$@"\n')
        program.chmod(0o755)
        return FakeCluster(tmp_path, program, node.uuids)

    yield make
    for end in reversed(ends):
        end()
