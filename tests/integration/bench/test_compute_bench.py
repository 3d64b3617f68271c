"""The measuring of ``nvshare bench compute`` on a simulated card: what is known beforehand must be found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshare import config
from nvshare.bench import venues
from nvshare.bench.compute import live, mps
from nvshare.bench.compute.kinds import ADD, BURSTY, GRAPH, INTERACTIVE, LAUNCH, MATMUL, TRAINING
from nvshare.bench.compute.live import LiveStage
from nvshare.bench.compute.scenarios import cast
from nvshare.bench.compute.shares import Change
from nvshare.bench.compute.stage import HIGH, Scene
from nvshare.bench.compute.workers import NATIVE, NVSHARE, Name, Workers
from nvshare.bench.processes import Venue
from nvshare.bench.worker import WorkerFailed
from nvshare.client.connection import Connection

pytestmark = pytest.mark.simulated

SECONDS = 0.6
GRAPH_SECONDS = 20 * 100e-6


@pytest.fixture(scope="module")
def venue() -> Iterator[Venue]:
    with venues.simulated("H200", 1.0, "compute") as found:
        yield found


@pytest.fixture(scope="module")
def stage(venue: Venue) -> Iterator[LiveStage]:
    with live.on(venue, "driver", SECONDS, SECONDS / 4, lambda seconds: None) as found:
        yield found


def play(stage: LiveStage, scene: Scene) -> list[float]:
    seen = stage.play(scene)
    assert seen.right
    return seen.speeds()


@pytest.mark.slow
def test_every_kind_of_task_works_alone_with_and_without_nvshare(stage: LiveStage) -> None:
    for kind in (ADD, MATMUL, GRAPH, TRAINING, LAUNCH):
        for how in (NATIVE, NVSHARE):
            name = Name(how, kind)
            stage.call_up([name])
            (speed,) = play(stage, Scene([name], (), SECONDS, 0.1))
            assert speed > 0, name


def test_a_task_that_ended_fails_its_scene_and_is_called_up_again_for_the_next(venue: Venue) -> None:
    with live.on(venue, "driver", SECONDS, SECONDS / 4, lambda seconds: None) as stage:
        pair = [Name(NATIVE, ADD), Name(NVSHARE, ADD)]
        stage.call_up(pair)
        stage._workers.kill(pair[1])
        with pytest.raises(WorkerFailed, match="ended"):
            stage.play(Scene(pair, (50, 50), SECONDS, 0.1))
        assert all(speed > 0 for speed in play(stage, Scene(pair, (50, 50), SECONDS, 0.1)))


def test_a_graph_is_no_faster_than_its_kernels(stage: LiveStage) -> None:
    stage.call_up([Name(NATIVE, GRAPH)])
    (speed,) = play(stage, Scene([Name(NATIVE, GRAPH)], (), SECONDS, 0.1))
    assert 0 < speed <= 1 / GRAPH_SECONDS


def test_a_native_pair_gets_no_more_than_one_card(stage: LiveStage) -> None:
    tasks = cast(NATIVE, (GRAPH, GRAPH))
    stage.call_up(tasks)
    speeds = play(stage, Scene(tasks, (), SECONDS, 0.1))
    assert min(speeds) > 0
    assert sum(speeds) <= 1 / GRAPH_SECONDS


def test_bursts_come_no_more_often_than_they_should_and_take_no_less_than_their_work(stage: LiveStage) -> None:
    tasks = [Name(NATIVE, BURSTY), Name(NATIVE, INTERACTIVE)]
    stage.call_up(tasks)
    for task, work, period in zip(tasks, (0.010, 0.005), (0.110, 0.100), strict=True):
        seen = stage.play(Scene([task], (), 1.0, 0.1))
        latencies = seen.latencies()
        assert 1 <= len(latencies) <= 1.3 / period
        assert min(latencies) >= work


def test_quotas_and_priorities_reach_the_scheduler_while_tasks_work(stage: LiveStage, venue: Venue) -> None:
    tasks = cast(NVSHARE, (ADD, ADD))
    stage.call_up([Name(NATIVE, ADD), *tasks])  # natively, for how long a step takes

    def limits() -> set[tuple[int | None, str | None]]:
        with Connection(venue.socket) as connection:
            status = connection.status()
        clients = {stage._workers.client(task) for task in tasks}
        groups = {client["group"] for client in status["clients"] if client["id"] in clients}
        return {(group["core_limit"], group["priority"]) for group in status["groups"] if group["id"] in groups}

    seen = stage.play(Scene(tasks, (30, 60), 0.5, 0.1, [Change(0.2, 1, 45)], priority=HIGH))
    assert limits() == {(30, "high"), (45, "normal")}
    (change,) = seen.changes
    assert (change.who, change.quota) == (1, 45)
    assert seen.begin + 0.2 <= change.at < seen.end
    # AND the next scene begins without them
    stage.play(Scene(tasks, (), 0.2, 0.0))
    assert limits() == {(100, "normal")}


def test_the_mode_is_that_of_the_scene_and_afterwards_what_it_was(venue: Venue) -> None:
    def mode() -> str:
        with Connection(venue.socket) as connection:
            return str(connection.status()["settings"]["mode"])

    with live.on(venue, "driver", SECONDS, 0.1, lambda seconds: None) as own:
        own.call_up([Name(NVSHARE, MATMUL), Name(NATIVE, MATMUL)])
        own.play(Scene([Name(NVSHARE, MATMUL)], (), 0.1, mode="concurrent"))
        assert mode() == "concurrent"
    assert mode() == "auto"


def test_a_worker_that_ends_is_named_with_what_it_said(venue: Venue) -> None:
    environment = {**venue.plain_environment(), "CUDA_VISIBLE_DEVICES": "none"}
    said = r"the worker add 1 \(native\) ended: .*CUDA_ERROR_NO_DEVICE"
    with Workers("driver", {NATIVE: environment}) as crew, pytest.raises(WorkerFailed, match=said):
        crew.call_up([Name(NATIVE, ADD)])


def test_a_worker_without_the_library_is_no_worker_under_nvshare(venue: Venue) -> None:
    plain = {NVSHARE: venue.plain_environment()}
    with Workers("driver", plain) as crew, pytest.raises(WorkerFailed, match="runs without nvshare"):
        crew.call_up([Name(NVSHARE, MATMUL)])


def test_a_worker_that_does_not_answer_is_given_up_and_leaves(venue: Venue) -> None:
    with Workers("driver", {NATIVE: venue.plain_environment()}) as crew:
        crew.call_up([Name(NATIVE, MATMUL)])
        worker = crew._workers[Name(NATIVE, MATMUL)]
        worker.send(do="work", until=time.monotonic() + 60, batch=1)
        with pytest.raises(WorkerFailed, match="did not answer within 0 s"):
            worker.receive(0.1)
    assert worker._process.returncode is not None


MPS_CONTROL = """#!/bin/sh
echo "$* $(cat)" >> "{log}"
echo "$CUDA_MPS_PIPE_DIRECTORY" > "{log}.directory"
exit {code}
"""


def control(directory: Path, code: int) -> Path:
    """A stand-in for the vendor's command, first in the path; the file in which it notes how it was called."""
    log = directory / "calls"
    command = directory / "nvidia-cuda-mps-control"
    command.write_text(MPS_CONTROL.format(log=log, code=code))
    command.chmod(0o755)
    return log


def test_a_private_mps_daemon_is_started_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = control(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with mps.private_daemon(config.child_environment({"CUDA_VISIBLE_DEVICES": "GPU-1"})) as found:
        assert isinstance(found, dict)
        directory = Path(found["CUDA_MPS_PIPE_DIRECTORY"])
        assert directory.is_dir()
        assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        assert log.read_text().split() == ["-d"]
    assert log.read_text().split() == ["-d", "quit", "-t", "5"]
    assert (tmp_path / "calls.directory").read_text().strip() == str(directory)
    assert not directory.exists()


def test_an_mps_daemon_that_does_not_start_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = control(tmp_path, 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with mps.private_daemon(config.child_environment({})) as found:
        assert isinstance(found, str)
        assert "nvidia-cuda-mps-control failed" in found
    assert log.read_text().split() == ["-d"]


def test_without_the_command_there_is_no_mps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with mps.private_daemon({}) as found:
        assert found == "there is no nvidia-cuda-mps-control here"


def left_behind(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if name.encode() in path.read_bytes():
                found.append(str(path))
    return found


def test_an_interrupted_bench_keeps_its_rows_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # GIVEN a run that has written its first row
    target = tmp_path / "rows.json"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nvshare", "bench", "compute", "--sim", "H200", "--only", "quotas"),
            *("--seconds", "0.2", "--json", str(target)),
        ],
        env=config.child_environment({"PYTHONPATH": os.pathsep.join(sys.path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "about" in process.stderr.readline()
    assert process.stderr.readline().startswith("quotas  add alone")
    # WHEN it is interrupted
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    # THEN it says so, keeps what it found, and no process of its node is left
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert json.loads(target.read_text())["complete"] is False
    assert left_behind(f"bench-{process.pid}") == []
