"""A scheduler on a node that has no GPU, or has none yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshare import native
from nvshare.client.connection import Connection
from nvshare.gpu import sim

SCHEDULER = """
import sys
from nvshare.cli import scheduler
scheduler._LOOK_AGAIN = 0.05
scheduler.main()
"""


class Started:
    def __init__(self, socket: Path, node: str) -> None:
        self.socket = socket
        ready, told = os.pipe()
        directory = Path(os.environ["XDG_RUNTIME_DIR"]) / "nvshare" / "sim" / node
        variables = {"NVSHARE_SIM_NODE": str(directory), "LD_LIBRARY_PATH": str(native.simulated_driver())}
        arguments = ["--without-gpus", "--socket", str(socket), "--ready-fd", str(told)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCHEDULER, *arguments],
            env={**os.environ, **variables},
            pass_fds=(told,),
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(told)
        assert os.read(ready, 1)
        os.close(ready)

    def gpus(self) -> list[str]:
        with Connection(self.socket) as connection:
            return [gpu["uuid"] for gpu in connection.status()["gpus"]]

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.fixture
def node_name() -> Iterator[str]:
    name = f"later-{os.getpid()}"
    yield name
    if name in sim.names():
        sim.down(name)


def test_it_stays_answers_and_says_so(tmp_path: Path, node_name: str) -> None:
    scheduler = Started(tmp_path / "s.sock", node_name)
    assert scheduler.gpus() == []
    assert scheduler.process.poll() is None
    code, said = scheduler.end()
    assert code == 0
    assert "No GPU on this node: no task can run here" in said


def test_ctrl_c_ends_it_as_cleanly(tmp_path: Path, node_name: str) -> None:
    scheduler = Started(tmp_path / "s.sock", node_name)
    code, said = scheduler.end(signal.SIGINT)
    assert code == 130
    assert said.splitlines()[-1] == "[NVSHARE][INFO]: Scheduler stopped; tasks go on by themselves"
    assert not scheduler.socket.exists()


def test_it_takes_up_its_work_when_a_gpu_comes(tmp_path: Path, node_name: str) -> None:
    scheduler = Started(tmp_path / "s.sock", node_name)
    node = sim.up("2xT4", name=node_name)
    assert scheduler.process.stderr is not None
    heard = []
    for line in scheduler.process.stderr:
        heard.append(line)
        if "Max runtime per task" in line and any(f"GPU {node.uuids[0]}" in one for one in heard):
            break
    assert sorted(scheduler.gpus()) == sorted(node.uuids)
    code, said = scheduler.end()
    assert code == 0
    assert "--ready-fd" not in "".join(heard) + said
