"""SIGKILL to anybody at any moment: nothing is left of a launcher, and a launcher survives everybody else."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvshare import procfs
from tests.integration.launch.launch_node import PATIENCE, LaunchNode
from tests.support.processes import Program, eventually

PROGRAM = Path(__file__).with_name("pool_program.py")
SOON = 2.0  # seconds in which nothing may be left
TIMES = 50 if os.environ.get("NVSHARE_SOAK") else 4
SEED = 20261115


class Launcher(Program):
    def results(self, count: int) -> list[str]:
        return [self.line() for _ in range(count)]

    def rest(self) -> list[str]:
        """Let it end by itself; its other results."""
        return self.finish().split()


@pytest.fixture
def launch() -> Iterator[Callable[[], Launcher]]:
    with contextlib.ExitStack() as launchers:

        def start() -> Launcher:
            return launchers.enter_context(contextlib.closing(Launcher([sys.executable, PROGRAM])))

        yield start


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
        launcher.kill()
        soon_clean(node)


def pids_of(launcher: Launcher) -> dict[str, list[int]]:
    """Its guards, keepers and workers, as far as there are some now."""
    guards = procfs.children(launcher.pid)
    keepers = [pid for guard in guards for pid in procfs.children(guard)]
    workers = [pid for keeper in keepers for pid in procfs.children(keeper)]
    return {"guard": guards, "keeper": keepers, "worker": workers}


@pytest.mark.parametrize("who", ["guard", "keeper", "worker"])
def test_a_launcher_survives_its_helpers_and_nothing_of_them_is_left(
    node: LaunchNode, launch: Callable[[], Launcher], who: str
) -> None:
    chance = random.Random(f"{SEED} {who}")
    launcher = launch()
    said = launcher.results(1)
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
        said += launcher.results(3)
    said += launcher.rest()
    # AND each kill cost one task at most: that of its own worker
    failed = [word for word in said if word != "ok"]
    assert len(failed) <= TIMES
    assert set(failed) <= {"WorkerKilled", "LeaseLost"}
    soon_clean(node)


def test_tasks_and_leases_survive_the_scheduler(node: LaunchNode, launch: Callable[[], Launcher]) -> None:
    chance = random.Random(SEED)
    launcher = launch()
    assert launcher.results(2) == ["ok", "ok"]
    for _ in range(TIMES):
        assert eventually(lambda: len(node.leases()) == 2, PATIENCE)
        before = {lease["id"] for lease in node.leases()}
        time.sleep(chance.uniform(0.0, 0.2))
        node.restart_scheduler()
        back = eventually(lambda before=before: {lease["id"] for lease in node.leases()} == before, PATIENCE)
        assert back, (before, node.leases(), launcher.process.poll())
        assert launcher.results(3) == ["ok"] * 3
    assert set(launcher.rest()) <= {"ok"}
    soon_clean(node)
    marker = node.sim.socket.with_suffix(".leases")
    assert eventually(lambda: not marker.exists(), SOON)
