"""Quotas of pods while parts of nvshare are restarted; on doubles, where that is quick."""

from __future__ import annotations

from tests.kube.doubles.world import DoublesWorld
from tests.kube.test_quotas import group_of, seen, task
from tests.kube.world import CORE_LIMIT, MEMORY_LIMIT, wait_for

GIB = 1 << 30


def test_new_scheduler_is_told_everything_again(small_world: DoublesWorld) -> None:
    world = small_world
    pod = world.create("steady", annotations={MEMORY_LIMIT: "1Gi", CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    world.scheduler.kill()
    world.annotate(pod, CORE_LIMIT, "50")
    world.sim.socket.with_suffix(".pods").unlink(missing_ok=True)
    world.scheduler.start()
    seen(world, pod, "Core limit = 50%")
    group = group_of(world, pod)
    assert (group["mem_limit"], group["core_limit_from"]) == (GIB, "annotation")


def test_scheduler_that_is_restarted_while_the_api_is_away_knows_the_quotas(small_world: DoublesWorld) -> None:
    world = small_world
    pod = world.create("steady", annotations={MEMORY_LIMIT: "1Gi"}, command=task("watch"))
    seen(world, pod, r"total 1024\b")
    wait_for("the file", lambda: "steady" in kept(world))
    world.stop_api()
    world.kill_pod_watch()
    world.scheduler.kill()
    world.scheduler.start()
    wait_for("the task", lambda: group_of(world, pod).get("clients"))
    assert group_of(world, pod)["mem_limit"] == GIB


def kept(world: DoublesWorld) -> str:
    file = world.sim.socket.with_suffix(".pods")
    return file.read_text() if file.exists() else ""


def test_new_watch_knows_what_the_last_one_missed(small_world: DoublesWorld) -> None:
    world = small_world
    pod = world.create("changed", annotations={CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    other = world.create("deleted", annotations={CORE_LIMIT: "30"})
    wait_for("the other", lambda: group_of(world, other))
    world.kill_pod_watch()
    world.annotate(pod, CORE_LIMIT, "60")
    world.delete(other)
    world.start_pod_watch()
    seen(world, pod, "Core limit = 60%")
    wait_for("the other to be closed", lambda: not group_of(world, other))


def test_invalid_value_found_by_a_new_watch_changes_nothing(small_world: DoublesWorld) -> None:
    world = small_world
    pod = world.create("wrong", annotations={CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    world.kill_pod_watch()
    world.annotate(pod, CORE_LIMIT, "lots")
    world.start_pod_watch()
    wait_for("the event", lambda: world.events(pod))
    world.annotate(pod, MEMORY_LIMIT, "1Gi")
    seen(world, pod, r"total 1024\b")
    assert group_of(world, pod)["core_limit"] == 30
