"""Where pods land. The same bodies run against the doubles and on a real cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from world import Pod, World


def card_of(world: World, pod: Pod) -> str:
    (device,) = world.devices(pod)
    return device.rpartition("__")[0]


def start(world: World, name: str) -> Pod:
    pod = world.create(name)
    world.wait_running(pod)
    return pod


def test_eight_pods_land_one_on_each_of_eight_gpus(world: World) -> None:
    pods = [start(world, f"one-{number}") for number in range(8)]
    assert Counter(card_of(world, pod) for pod in pods) == Counter(world.gpus)


def test_forty_pods_land_five_on_each_of_eight_gpus(world: World) -> None:
    pods = [start(world, f"forty-{number}") for number in range(40)]
    assert Counter(card_of(world, pod) for pod in pods) == dict.fromkeys(world.gpus, 5)


def restart_both(world: World) -> None:
    world.restart_plugin()
    world.restart_kubelet()


DISTURBANCES: dict[str, Callable[[World], None]] = {
    "nothing": lambda world: None,
    "plugin": lambda world: world.restart_plugin(),
    "kubelet": lambda world: world.restart_kubelet(),
    "both": restart_both,
}


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_every_new_pod_lands_on_a_gpu_that_had_the_fewest(world: World, disturbance: str) -> None:
    chance = random.Random(disturbance)
    here: dict[Pod, str] = {}
    names = iter(range(10_000))
    for turn in range(10):
        for pod in chance.sample(list(here), chance.randint(0, len(here))):
            world.delete(pod)
            del here[pod]
        if turn % 5 == 4:
            DISTURBANCES[disturbance](world)
        for _ in range(chance.randint(1, 12)):
            use = Counter(dict.fromkeys(world.gpus, 0))
            use.update(here.values())
            pod = start(world, f"round-{next(names)}")
            card = card_of(world, pod)
            assert use[card] == min(use.values())
            here[pod] = card
