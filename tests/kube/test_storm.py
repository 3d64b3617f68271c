"""One pod's quota beside five hundred others that change all the time, through the real watch and scheduler."""

from __future__ import annotations

import threading

from tests.kube.doubles.world import NODE, DoublesWorld
from tests.kube.test_quotas import group_of, seen, task
from tests.kube.world import CORE_LIMIT, wait_for

PODS = 500


def test_change_arrives_beside_five_hundred_pods_that_change_all_the_time(small_world: DoublesWorld) -> None:
    world = small_world
    for number in range(PODS):
        world.api.create(f"pod-{number}", node=NODE)
    ended = threading.Event()

    def change() -> None:
        step = 0
        while not ended.wait(1 / PODS):
            step += 1
            world.api.annotate(f"pod-{step % PODS}", CORE_LIMIT, str(1 + step % 100))

    storm = threading.Thread(target=change)
    storm.start()
    try:
        pod = world.create("busy", annotations={CORE_LIMIT: "10"}, command=task("work"))
        for percent in range(11, 16):
            seen(world, pod, rf"Core limit = {percent - 1}%")
            world.annotate(pod, CORE_LIMIT, str(percent))
        seen(world, pod, r"Core limit = 15%")
    finally:
        ended.set()
        storm.join()
    # AND when the storm is over every pod has what it should have, and all go when they are gone
    wait_for("all pods", lambda: len(world.scheduler_status()["groups"]) == PODS + 1)
    wanted = {one["metadata"]["uid"]: one["metadata"] for one in world.api.pods()}

    def have_last_values() -> bool:
        groups = {group["id"].removeprefix("pod:"): group for group in world.scheduler_status()["groups"]}
        return all(
            groups[uid]["core_limit"] == int(metadata.get("annotations", {}).get(CORE_LIMIT, 100))
            for uid, metadata in wanted.items()
        )

    wait_for("the last values", have_last_values)
    for number in range(PODS):
        world.api.delete(f"pod-{number}")
    wait_for("the others to be gone", lambda: len(world.scheduler_status()["groups"]) == 1)
    assert group_of(world, pod)["core_limit"] == 15
