"""Memory of cards as a resource. The same bodies run against the doubles and on a real cluster."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.kube.world import GPUMEM, NotAdmitted, Pod, World

T4_MIB = 14913
PODS = 15 if os.environ.get("NVSHARE_KUBE") == "real" else 40


def promised(world: World, pods: dict[Pod, int]) -> Counter[str]:
    """MiB by card."""
    found: Counter[str] = Counter()
    for pod, size in pods.items():
        for device in world.devices(pod):
            found[device.rpartition("__")[0]] += size
    return found


def test_every_mib_of_every_card_is_offered(world: World) -> None:
    pod = world.create("any", gpumem=1)
    world.wait_running(pod)
    assert world.capacity(GPUMEM) == T4_MIB * len(world.gpus)


def test_pods_that_each_want_most_of_a_card_get_one_each(world: World) -> None:
    pods = {}
    for number in range(len(world.gpus)):
        pod = world.create(f"large-{number}", gpumem=9000)
        world.wait_running(pod)
        pods[pod] = 9000
    assert promised(world, pods) == dict.fromkeys(world.gpus, 9000)


def test_a_promise_that_no_card_can_keep_is_refused(world: World) -> None:
    pod = world.create("larger-than-any-card", gpumem=T4_MIB + 1)
    with pytest.raises(NotAdmitted, match="MiB left to promise"):
        world.wait_running(pod)


@pytest.mark.timeout(300)
def test_no_card_is_promised_more_than_it_has(world: World) -> None:
    chance = random.Random(8)
    here: dict[Pod, int] = {}
    refused = 0
    for number in range(PODS):
        if here and chance.random() < 0.3:
            gone = chance.choice(list(here))
            world.delete(gone)
            del here[gone]
        size = chance.choice([1000, 4000, 9000])
        pod = world.create(f"mixed-{number}", gpumem=size)
        try:
            world.wait_running(pod)
        except NotAdmitted:
            world.delete(pod)
            refused += 1
            continue
        here[pod] = size
        assert max(promised(world, here).values()) <= T4_MIB
    assert refused < PODS / 2
