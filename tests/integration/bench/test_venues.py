"""Where measurements happen: nothing that was made for one is left of it, whichever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nvshare import config
from nvshare.client.connection import Connection
from nvshare.client.spawn import ensure_scheduler, is_running
from nvshare.gpu import sim

pytestmark = pytest.mark.simulated

# The simulated node stands for the machine's own cards: its driver is in the library path from the beginning.
MEASURE = """
import sys
from nvshare.bench import venues
with venues.real(1 << 30) as venue:
    venue.ensure_scheduler()
    print(venue.source, flush=True)
    exec(sys.argv[1])
"""
HOLD = """
import os, sys
from nvshare.bench import venues
with venues.simulated("T4", 1.0, "abandoned") as venue:
    venue.ensure_scheduler()
    print(f"abandoned-{os.getpid()}", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def node() -> Iterator[sim.SimNode]:
    made = sim.up("T4", name=f"venues-{os.getpid()}")
    yield made
    sim.down(made.name)


def measure(node: sim.SimNode, then: str) -> subprocess.Popen[str]:
    environment = config.child_environment({**node.env(), "PYTHONPATH": os.pathsep.join(sys.path)})
    return subprocess.Popen(
        [sys.executable, "-c", MEASURE, then],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("then", ["pass", "1 / 0", "import os; os.kill(os.getpid(), 2)"])
def test_a_scheduler_started_for_a_measurement_is_gone_with_it(node: sim.SimNode, then: str) -> None:
    process = measure(node, then)
    out, _ = process.communicate(timeout=60)
    assert out == "simulated\n"
    assert not node.socket.exists()


def test_one_that_was_there_before_stays(node: sim.SimNode) -> None:
    ensure_scheduler(node.socket, config.child_environment(node.env()), card_memory=1 << 30)
    measure(node, "pass").communicate(timeout=60)
    assert is_running(node.socket)


def test_one_that_others_use_by_then_stays(node: sim.SimNode) -> None:
    process = measure(node, "sys.stdin.read()")
    assert process.stdout is not None
    assert process.stdout.readline() == "simulated\n"
    with Connection(node.socket) as other:
        other.request("run", label="another", mem=None, cores=None, priority=None)
        process.communicate(timeout=60)
        assert is_running(node.socket)


def test_a_node_whose_measurement_was_killed_is_ended_by_the_next() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    # WHILE it lives THEN nobody ends it
    sim.end_abandoned()
    assert name in sim.names()
    # WHEN it is killed THEN the next measurement does
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert name in sim.names()
    sim.end_abandoned()
    assert name not in sim.names()
