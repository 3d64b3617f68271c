"""``nvshare kube-test`` installs nvshare itself, from manifests, and once more when it is there already."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster

from tests.kube.deployment import SYSTEM, TREE, ground, kube_test, kubectl, run

pytestmark = pytest.mark.timeout(400)


def test_it_installs_and_reinstalls(cluster: Cluster, runtime_directory: str, tmp_path: Path) -> None:
    with ground(cluster, tmp_path) as place:
        # GIVEN manifests for this node, and nothing installed
        rendered = tmp_path / "manifests"
        run("sh", str(TREE / "tools" / "manifests.sh"), str(rendered), "--values", str(place.values))
        try:
            # WHEN the test installs nvshare; and does so again
            first, again = (
                kube_test("--manifests", str(rendered), "--iterations", "2000", count) for count in ("4", "2")
            )
        finally:
            kubectl("delete", "--ignore-not-found", "--wait", *(f"--filename={file}" for file in rendered.iterdir()))
    # THEN each time pods shared the cards
    assert "Total: 4, Pass: 4" in first
    assert "[PASS] spread" in first
    assert "Total: 2, Pass: 2" in again
    # AND nothing is left of it
    assert SYSTEM not in kubectl("get", "namespaces", "--output", "name")
