"""Where pods land, and that it stays so whatever is restarted. The same bodies run on the doubles and on a cluster."""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import cycle

import pytest

from tests.kube.world import Pod, World, wait_for

_ROUNDS = 200 if os.environ.get("NVSHARE_SOAK") else 10
_MOST = 12  # pods that come or go in one round
_CROWD = 60  # pods beyond which a round only removes


class Node:
    """A world's pods by card, as the test itself made and removed them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made = 0
        self.pods: dict[Pod, str] = {}

    def load(self) -> dict[str, int]:
        counts = Counter(self.pods.values())
        return {gpu: counts[gpu] for gpu in self._world.gpus}

    def add(self) -> None:
        """One more pod, which has to land on a card that has the fewest."""
        before = self.load()
        self._made += 1
        pod = self._world.create(f"spread-{self._made}")
        gpu = gpu_of(self._world, pod)
        assert before[gpu] == min(before.values()), f"{pod.name} landed on {gpu}, with these loads: {before}"
        self.pods[pod] = gpu

    def remove(self, pod: Pod) -> None:
        self._world.delete(pod)
        del self.pods[pod]


def gpu_of(world: World, pod: Pod) -> str:
    """The card of the pod's only device, as soon as the kubelet chose it."""
    (device,) = wait_for(f"the device of {pod.name}", lambda: world.devices(pod))
    return device.partition("__")[0]


@pytest.fixture
def node(world: World) -> Node:
    return Node(world)


@pytest.mark.timeout(300)
def test_eight_pods_land_one_per_gpu_and_forty_five_per_gpu(world: World, node: Node) -> None:
    for per_gpu, pods in ((1, 8), (5, 40)):
        while len(node.pods) < pods:
            node.add()
        assert node.load() == dict.fromkeys(world.gpus, per_gpu)
    for pod in node.pods:
        world.wait_running(pod)


@pytest.mark.timeout(120 + 40 * _ROUNDS)
def test_each_new_pod_lands_on_a_card_with_the_fewest_whatever_was_restarted(world: World, node: Node) -> None:
    restarts = cycle(("", "", "plugin", "", "kubelet", "", "plugin kubelet", ""))
    for number, restart in zip(range(_ROUNDS), restarts, strict=False):
        chance = random.Random(number)
        if "plugin" in restart:
            world.restart_plugin()
        if "kubelet" in restart:
            world.restart_kubelet()
        coming = chance.randint(1, _MOST) if len(node.pods) < _CROWD else 0
        going = chance.sample(list(node.pods), min(len(node.pods), chance.randint(1, _MOST)))
        steps = [None] * coming + list(going)
        chance.shuffle(steps)
        for step in steps:
            if step is None:
                node.add()
            else:
                node.remove(step)
