"""Pods under the real library, scheduler and device plugin do their work."""

from __future__ import annotations

import pytest

from tests.kube.world import World


@pytest.mark.timeout(300)
def test_pods_finish_their_workloads_on_the_cards_they_were_given(world: World) -> None:
    command = ["python3", "-m", "nvshare.bench.workloads", "add-small", "--iterations", "200", "--time-scale", "10"]
    pods = [world.create(f"work-{number}", command=command) for number in range(len(world.gpus) + 2)]
    for pod in pods:
        code = world.wait_done(pod)
        text = world.logs(pod)
        assert code == 0, text
        assert "PASS" in text.splitlines()
        assert "Successfully initialized nvshare GPU" in text
