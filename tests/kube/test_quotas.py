"""Quotas of pods that change while they run: annotations, memory, an API server that goes away."""

from __future__ import annotations

import os
import random
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kube.world import CORE_LIMIT, CORE_REQUEST, MEMORY_LIMIT, Pod, World, wait_for

REAL = os.environ.get("NVSHARE_KUBE") == "real"
PROGRAM = Path(__file__).with_name("task.py").read_text()
PATIENCE = 60.0
CHANGES = 20  # of which the median counts
AWAY = 60.0 if REAL else 3.0  # seconds that the API server is stopped
RANDOM_FOR = 180.0 if REAL else 10.0  # seconds
CARD = 14913  # MiB of a T4

pytestmark = pytest.mark.timeout(600)


def task(*arguments: object) -> list[str]:
    return ["python3", "-c", PROGRAM, *map(str, arguments)]


def seen(world: World, pod: Pod, line: str, count: int = 1) -> None:
    """Wait until a task said this so often."""

    def look() -> bool:
        return len(re.findall(line, world.logs(pod))) >= count

    try:
        wait_for(line, look)
    except AssertionError as error:
        raise AssertionError(f"{error}; it said:\n{world.logs(pod)}") from None


def totals(world: World, pod: Pod) -> list[tuple[float, int]]:
    """When the size of its card changed for the task, and to what (MiB)."""
    return [(float(when), int(size)) for when, size in re.findall(r"^(\S+) total (\d+)$", world.logs(pod), re.M)]


def test_changed_annotation_acts_within_a_second_and_removal_restores_the_default(world: World) -> None:
    pod = world.create("live", annotations={MEMORY_LIMIT: "1Gi", CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, r"total 1024\b")
    seen(world, pod, "Core limit = 30%")
    delays = []
    for number in range(CHANGES):
        size = 2048 + number
        began = time.time()
        world.annotate(pod, MEMORY_LIMIT, f"{size}Mi")
        seen(world, pod, rf"total {size}\b")
        delays.append(next(when for when, total in totals(world, pod) if total == size) - began)
    assert statistics.median(delays) <= 1.0, delays
    world.annotate(pod, CORE_LIMIT, "80")
    seen(world, pod, "Core limit = 80%")
    world.annotate(pod, CORE_LIMIT, None)
    world.annotate(pod, MEMORY_LIMIT, None)
    seen(world, pod, "Core limit = 100%")
    wait_for("the whole card", lambda: totals(world, pod)[-1][1] > 4096)


def test_invalid_value_is_an_event_and_changes_nothing(world: World) -> None:
    pod = world.create("wrong", annotations={MEMORY_LIMIT: "1Gi", CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    world.annotate(pod, CORE_LIMIT, "a lot")
    wait_for("an event", lambda: any(event.startswith("InvalidQuota: ") for event in world.events(pod)))
    (event,) = [event for event in world.events(pod) if event.startswith("InvalidQuota: ")]
    assert CORE_LIMIT in event
    assert "1 to 100" in event
    world.annotate(pod, MEMORY_LIMIT, "2Gi")
    seen(world, pod, r"total 2048\b")
    assert core_limits(world, pod) == [30]


def floors(world: World, pod: Pod) -> tuple[object, object]:
    group = group_of(world, pod)
    return group.get("core_floor"), group.get("core_limit")


def test_request_guarantees_beside_the_limit_and_each_goes_by_itself(world: World) -> None:
    pod = world.create("floor", annotations={CORE_REQUEST: "30", CORE_LIMIT: "60"}, command=task("watch"))
    seen(world, pod, "Core limit = 60%")
    wait_for("its floor", lambda: floors(world, pod) == (30, 60))
    world.annotate(pod, CORE_REQUEST, "50")
    wait_for("the larger one", lambda: floors(world, pod) == (50, 60))
    world.annotate(pod, CORE_LIMIT, None)
    wait_for("no cap", lambda: floors(world, pod) == (50, 100))
    assert in_force(world, pod) == [50]
    world.annotate(pod, CORE_REQUEST, None)
    wait_for("no floor", lambda: floors(world, pod) == (0, 100))
    # AND a request above the limit is an event that names both
    world.annotate(pod, CORE_LIMIT, "40")
    world.annotate(pod, CORE_REQUEST, "60")
    (event,) = wait_for("an event", lambda: complaints(world, pod))
    assert f"{CORE_REQUEST}: 60 is above {CORE_LIMIT}, which is 40" in event
    wait_for("the limit alone", lambda: floors(world, pod) == (0, 40))


def test_request_without_room_is_an_event_and_is_in_force_when_there_is_room(world: World) -> None:
    # GIVEN a pod on each card that is guaranteed most of it
    first = [
        world.create(f"first-{number}", annotations={CORE_REQUEST: "80"}, command=task("watch"))
        for number in range(len(world.gpus))
    ]
    for pod in first:
        wait_for("its floor", lambda pod=pod: in_force(world, pod) == [80])
    # WHEN another one asks for more than is left
    late = world.create("late", annotations={CORE_REQUEST: "50"}, command=task("watch"))
    wait_for("the late one", lambda: in_force(world, late) == [0])
    (event,) = wait_for("an event", lambda: complaints(world, late))
    assert f"{CORE_REQUEST}: 50% of GPU " in event
    assert "is not guaranteed to pod default/late yet, only 0%: pod default/first-" in event
    for pod in first:
        world.delete(pod)
    wait_for("room", lambda: in_force(world, late) == [50])


def in_force(world: World, pod: Pod) -> list[int]:
    """Floors, of the cards that it uses."""
    return list(group_of(world, pod).get("core_floor_in_force", {}).values())


def complaints(world: World, pod: Pod) -> list[str]:
    return [event for event in world.events(pod) if event.startswith("InvalidQuota: ")]


def core_limits(world: World, pod: Pod) -> list[int]:
    return [int(limit) for limit in re.findall(r"Core limit = (\d+)%", world.logs(pod))]


def group_of(world: World, pod: Pod) -> dict[str, Any]:
    return next((group for group in world.scheduler_status()["groups"] if group["id"] == f"pod:{pod.uid}"), {})


def test_status_says_where_a_quota_is_from(world: World) -> None:
    pod = world.create("origin", gpumem=2048, annotations={CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    wait_for("its quotas", lambda: group_of(world, pod).get("mem_limit") == 2 << 30)
    group = group_of(world, pod)
    assert (group["mem_limit_from"], group["core_limit_from"]) == ("gpumem", "annotation")
    assert group["label"] == "default/origin"
    world.annotate(pod, MEMORY_LIMIT, "1Gi")
    wait_for("the annotation", lambda: group_of(world, pod)["mem_limit_from"] == "annotation")


def test_api_server_that_is_away_stalls_nobody_and_its_changes_arrive_after(world: World) -> None:
    pod = world.create("steady", annotations={CORE_LIMIT: "30"}, command=task("work"))
    seen(world, pod, "Core limit = 30%")
    seen(world, pod, "steps")
    world.stop_api()
    try:
        began = time.monotonic()
        while time.monotonic() < began + AWAY:
            assert group_of(world, pod)["core_limit"] == 30
            time.sleep(0.2)
    finally:
        world.start_api()
    gaps = [float(gap) for gap in re.findall(r"slowest step ([\d.]+)", world.logs(pod))]
    assert max(gaps) < 2.0, gaps
    world.annotate(pod, CORE_LIMIT, "50")
    seen(world, pod, "Core limit = 50%")


def test_changes_made_while_the_watch_was_cut_off_arrive_after(world: World) -> None:
    pod = world.create("missed", annotations={CORE_LIMIT: "30"}, command=task("watch"))
    seen(world, pod, "Core limit = 30%")
    world.stop_api()
    world.annotate(pod, CORE_LIMIT, "70")
    world.start_api()
    seen(world, pod, "Core limit = 70%")
    assert core_limits(world, pod) == [30, 70]


def test_pod_at_its_limit_gets_the_error_and_succeeds_after_it_was_raised(world: World) -> None:
    pod = world.create("grows", annotations={MEMORY_LIMIT: "1Gi"}, command=task("grow", 2000))
    seen(world, pod, "CUDA_ERROR_OUT_OF_MEMORY")
    assert "allocated" not in world.logs(pod)
    world.annotate(pod, MEMORY_LIMIT, "4Gi")
    seen(world, pod, "allocated 2000")


def test_second_process_of_a_pod_at_its_limit_gets_the_error_and_the_first_goes_on(world: World) -> None:
    pod = world.create("first", command=task("work", 800))
    seen(world, pod, "steps")
    world.annotate(pod, MEMORY_LIMIT, "1Gi")
    wait_for("the limit", lambda: group_of(world, pod).get("mem_limit") == 1 << 30)
    code, text = world.execute(pod, task("once", 400))
    assert (code, "CUDA_ERROR_OUT_OF_MEMORY" in text) == (3, True), text
    assert world.execute(pod, task("once", 200))[0] == 0
    steps = len(re.findall("steps", world.logs(pod)))
    seen(world, pod, "steps", steps + 2)
    assert "CUDA_ERROR" not in world.logs(pod)


def test_every_limit_holds_at_every_moment_while_pods_come_go_and_change(world: World) -> None:
    chance = random.Random(7)
    pods: dict[Pod, list[int]] = {}  # the limits that may be in force, MiB
    number, end = 0, time.monotonic() + RANDOM_FOR
    while time.monotonic() < end:
        act = chance.choice(("create", "change", "change", "delete")) if len(pods) < 12 else "delete"
        if act == "create" or not pods:
            number += 1
            limit = chance.randrange(256, 3072)
            pod = world.create(
                f"random-{number}", annotations={MEMORY_LIMIT: f"{limit}Mi"}, command=task("churn", number)
            )
            pods[pod] = [limit]
        elif act == "delete":
            pod = chance.choice(list(pods))
            assert "BROKEN" not in world.logs(pod), world.logs(pod)
            del pods[pod]
            world.delete(pod, wait=chance.random() < 0.5)
        else:
            pod = chance.choice(list(pods))
            limit = chance.randrange(256, 3072)
            world.annotate(pod, MEMORY_LIMIT, f"{limit}Mi")
            pods[pod].append(limit)
        check_limits(world, pods)
    for pod in list(pods):
        world.delete(pod)
    wait_for("the last client to be gone", lambda: not world.scheduler_status()["clients"])
    wait_for("the groups to be gone", lambda: not world.scheduler_status()["groups"])
    assert all(not gpu["allocated"] and not gpu["resident"] for gpu in world.scheduler_status()["gpus"])


def check_limits(world: World, pods: dict[Pod, list[int]]) -> None:
    """What a pod has never exceeds the largest limit it ever had, and what is in force is the last one, soon."""
    status = world.scheduler_status()
    groups = {group["id"]: group for group in status["groups"]}
    for pod, limits in pods.items():
        group = groups.get(f"pod:{pod.uid}")
        if group is None or not group["clients"]:
            continue
        most = max(limits) << 20
        assert all(size <= most for size in group["allocated"].values()), (pod, limits, group)
        assert group["mem_limit"] in [limit << 20 for limit in limits], (pod, limits, group)
