"""Where the tests of the Kubernetes part run: on doubles, or on a real cluster when ``NVSHARE_KUBE`` says so.

``make test-kube`` sets it to ``real``, or to ``missing: …`` with the reason why this machine can have no cluster.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "kube"))

if TYPE_CHECKING:
    from cluster import Cluster

    from tests.kube.doubles.world import DoublesWorld
    from tests.kube.real import RealWorld
    from tests.kube.world import World

_WHERE = os.environ.get("NVSHARE_KUBE", "doubles")
_MISSING = "missing: "


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What plays with the doubles themselves has nothing to do on a cluster."""
    if _WHERE == "doubles":
        return
    on_cluster = [item for item in items if {"real", "cluster"} & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=[item for item in items if item not in on_cluster])
    items[:] = on_cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The one in whose namespaces this process is."""
    if _WHERE.startswith(_MISSING):
        pytest.skip(f"no cluster: {_WHERE.removeprefix(_MISSING)}")
    if _WHERE != "real":
        pytest.skip("needs a real cluster: make test-kube")
    from cluster import Cluster

    return Cluster(Path(os.environ["KUBECONFIG"]).parents[1])


@pytest.fixture(scope="session")
def real(request: pytest.FixtureRequest, runtime_directory: str) -> Iterator[RealWorld | None]:
    """The programs of nvshare on the cluster's node; None on doubles."""
    if _WHERE == "doubles":
        yield None
        return
    from tests.kube.real import RealWorld

    with contextlib.closing(RealWorld(request.getfixturevalue("cluster"))) as world:
        yield world


@pytest.fixture
def world(real: RealWorld | None) -> Iterator[World]:
    """A node without pods; what a test leaves behind is removed."""
    if real is not None:
        try:
            yield real
        finally:
            real.delete_all()
        return
    from tests.kube.doubles.world import DoublesWorld

    with contextlib.closing(DoublesWorld("8xT4")) as doubles:
        yield doubles


@pytest.fixture
def small_world() -> Iterator[DoublesWorld]:
    """A node of one card, always of doubles, for what a real one cannot do or takes too long for."""
    from tests.kube.doubles.world import DoublesWorld

    with contextlib.closing(DoublesWorld("1xT4")) as doubles:
        yield doubles
