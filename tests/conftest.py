"""Every test session has a runtime directory of its own: sockets and simulated nodes never meet those of the user."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest

for name in [name for name in os.environ if name.startswith("NVSHARE_") and name != "NVSHARE_SOAK"]:
    del os.environ[name]

# A shell starts what runs in its background with Ctrl-C ignored, nohup ignores the end of the terminal, and children
# inherit that; our tests do both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first: at the end no worker is left alone with one of them."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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
