"""Every test session has a runtime directory of its own: sockets and simulated nodes never meet those of the user."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.support.nodes import MakeNode, simulated_nodes
from tests.support.processes import Run, programs

_FOR_TESTS = ("NVSHARE_SOAK", "NVSHARE_KUBE")
for name in [name for name in os.environ if name.startswith("NVSHARE_") and name not in _FOR_TESTS]:
    del os.environ[name]

# A shell starts what runs in its background with Ctrl-C ignored, nohup ignores the end of the terminal, and children
# inherit that; our tests do both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every worker's part of the list begins with its share of the long ones, so that none comes last."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = iter([item for item in items if not item.get_closest_marker("slow")])
    part = len(items) // workers
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        long = slow[worker::workers]
        dealt += [*long, *islice(rest, max(0, part - len(long)))]
    items[:] = [*dealt, *rest]


@pytest.fixture(scope="session", autouse=True)
def runtime_directory() -> Iterator[str]:
    # Short, because the path of a unix socket has at most 107 characters.
    directory = tempfile.mkdtemp(prefix="nvs-", dir="/tmp")
    os.environ["XDG_RUNTIME_DIR"] = directory
    yield directory
    from nvshare.gpu import sim

    for node in sim.nodes():
        sim.down(node.name)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def simulated() -> Iterator[MakeNode]:
    """Simulated nodes that go down with the test."""
    with simulated_nodes() as make:
        yield make


@pytest.fixture
def run_program() -> Iterator[Run]:
    """Programs that end with the test."""
    with programs() as run:
        yield run
