"""SIGKILL to anybody at any moment: nothing is left of a launcher, and a launcher survives everybody else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch_node import PATIENCE, LaunchNode

from nvshare import procfs
from nvshare.acceptance.stress.scene import eventually

PROGRAM = Path(__file__).with_name("pool_program.py")
SOON = 2.0  # seconds in which nothing may be left
TIMES = 50 if os.environ.get("NVSHARE_SOAK") else 4
SEED = 20261115


class Launcher:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def heard(self, count: int = 1) -> list[str]:
        assert self.process.stdout
        return [self.process.stdout.readline().strip() for _ in range(count)]

    def finish(self) -> list[str]:
        """Let it end by itself; the rest of what it said."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        said = self.process.stdout.read().split()
        assert self.process.wait(PATIENCE) == 0
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()


@pytest.fixture
def launch() -> Iterator[Callable[[], Launcher]]:
    made: list[Launcher] = []

    def make() -> Launcher:
        made.append(Launcher())
        return made[-1]

    yield make
    for launcher in made:
        launcher.close()


def soon_clean(node: LaunchNode) -> float:
    """How long it took until nothing was left; fails when it took too long."""
    began = time.monotonic()
    assert eventually(node.is_clean, PATIENCE), (node.processes(), node.leases(), node.contexts())
    took = time.monotonic() - began
    assert took < SOON, took
    return took


def test_a_killed_launcher_leaves_nothing(node: LaunchNode, launch: Callable[[], Launcher]) -> None:
    chance = random.Random(SEED)
    for _ in range(TIMES):
        launcher = launch()
        time.sleep(chance.uniform(0.0, 1.0))  # any moment: before, while and after its workers start
        launcher.process.kill()
        launcher.process.wait()
        soon_clean(node)


def pids_of(launcher: Launcher) -> dict[str, list[int]]:
    """Its guards, keepers and workers, as far as there are some now."""
    guards = procfs.children(launcher.process.pid)
    keepers = [pid for guard in guards for pid in procfs.children(guard)]
    workers = [pid for keeper in keepers for pid in procfs.children(keeper)]
    return {"guard": guards, "keeper": keepers, "worker": workers}


@pytest.mark.parametrize("who", ["guard", "keeper", "worker"])
def test_a_launcher_survives_its_helpers_and_nothing_of_them_is_left(
    node: LaunchNode, launch: Callable[[], Launcher], who: str
) -> None:
    chance = random.Random(f"{SEED} {who}")
    launcher = launch()
    said = launcher.heard()
    for _ in range(TIMES):
        assert eventually(lambda: bool(pids_of(launcher)[who]), PATIENCE)
        time.sleep(chance.uniform(0.0, 0.1))
        victims = pids_of(launcher)[who]
        if not victims:
            continue
        victim = chance.choice(victims)
        below = set(procfs.descendants(victim))
        os.kill(victim, signal.SIGKILL)
        # THEN all below it goes, and others work on
        gone = eventually(lambda below=below: not below & node.processes(), SOON)
        assert gone, below & node.processes()
        said += launcher.heard(3)
    said += launcher.finish()
    # AND each kill cost one task at most: that of its own worker
    failed = [word for word in said if word != "ok"]
    assert len(failed) <= TIMES
    assert set(failed) <= {"WorkerKilled", "LeaseLost"}
    soon_clean(node)


def test_tasks_and_leases_survive_the_scheduler(node: LaunchNode, launch: Callable[[], Launcher]) -> None:
    chance = random.Random(SEED)
    launcher = launch()
    assert launcher.heard(2) == ["ok", "ok"]
    for _ in range(TIMES):
        assert eventually(lambda: len(node.leases()) == 2, PATIENCE)
        before = {lease["id"] for lease in node.leases()}
        time.sleep(chance.uniform(0.0, 0.2))
        node.restart_scheduler()
        back = eventually(lambda before=before: {lease["id"] for lease in node.leases()} == before, PATIENCE)
        assert back, (before, node.leases(), launcher.process.poll())
        assert launcher.heard(3) == ["ok"] * 3
    assert set(launcher.finish()) <= {"ok"}
    soon_clean(node)
    marker = node.sim.socket.with_suffix(".leases")
    assert eventually(lambda: not marker.exists(), SOON)
