"""A scheduler on a node that has no GPU, or has none yet."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshare import native
from nvshare.gpu import sim
from tests.support.processes import READY, SchedulerProcess

SCHEDULER = """
import sys
from nvshare.cli import scheduler
scheduler._LOOK_AGAIN = 0.05
scheduler.main()
"""


class Started(SchedulerProcess):
    def __init__(self, directory: Path, node: str) -> None:
        socket = directory / "s.sock"
        command = [sys.executable, "-c", SCHEDULER, "--without-gpus", "--socket", str(socket), "--ready-fd", READY]
        place = Path(os.environ["XDG_RUNTIME_DIR"]) / "nvshare" / "sim" / node
        variables = {"NVSHARE_SIM_NODE": str(place), "LD_LIBRARY_PATH": str(native.simulated_driver())}
        super().__init__(command, socket, directory / "scheduler.log", {**os.environ, **variables})

    def gpus(self) -> list[str]:
        return [gpu["uuid"] for gpu in self.status()["gpus"]]


@pytest.fixture
def node_name() -> Iterator[str]:
    name = f"later-{os.getpid()}"
    yield name
    if name in sim.names():
        sim.down(name)


@pytest.fixture
def scheduler(tmp_path: Path, node_name: str) -> Iterator[Started]:
    scheduler = Started(tmp_path, node_name)
    yield scheduler.start()
    scheduler.stop()


def test_it_stays_answers_and_says_so(scheduler: Started) -> None:
    assert scheduler.gpus() == []
    assert scheduler.stop() == 0
    assert "No GPU on this node: no task can run here" in scheduler.log()


def test_ctrl_c_ends_it_as_cleanly(scheduler: Started) -> None:
    assert scheduler.stop(signal.SIGINT) == 130
    assert scheduler.log().splitlines()[-1] == "[NVSHARE][INFO]: Scheduler stopped; tasks go on by themselves"
    assert not scheduler.socket.exists()


def test_it_takes_up_its_work_when_a_gpu_comes(scheduler: Started, node_name: str) -> None:
    node = sim.up("2xT4", name=node_name)
    scheduler.wait_until(lambda status: sorted(gpu["uuid"] for gpu in status["gpus"]) == sorted(node.uuids))
    assert f"GPU {node.uuids[0]}" in scheduler.log()
    assert scheduler.stop() == 0
    assert "--ready-fd" not in scheduler.log()
