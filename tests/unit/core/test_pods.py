"""Quotas of pods: what the Kubernetes API says of them, beside operators and environments."""

from __future__ import annotations

import itertools

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.snapshot import GroupView
from tests.unit.core.core_scene import GIB, A, Scene, only, said, to_clients, with_cores

POD = "pod:uid-1"


def seen(scene: Scene, group: str = POD, **fields: object) -> list[c.Command]:
    uid = group.removeprefix("pod:")
    return scene.send(e.PodSeen(scene.now, e.Pod(uid, "default", "trainer", **with_cores(fields))))


def quotas(scene: Scene) -> GroupView:
    (group,) = scene.scheduler.snapshot(scene.now).groups
    return group


def test_an_annotation_counts_before_all_others_and_its_removal_brings_them_back_one_by_one() -> None:
    scene = Scene()
    scene.register(1, group=POD, mem_limit=4 * GIB)
    seen(scene, gpumem=3 * GIB, mem=GIB)
    scene.limit(POD, mem_limit=2 * GIB)

    story = [(quotas(scene).mem_limit, quotas(scene).mem_limit_from)]
    for step in (
        lambda: seen(scene, gpumem=3 * GIB),
        lambda: scene.limit(POD, clear=frozenset({"mem_limit"})),
        lambda: seen(scene),
    ):
        step()
        story.append((quotas(scene).mem_limit, quotas(scene).mem_limit_from))

    assert story == [
        (GIB, "annotation"),
        (2 * GIB, "operator"),
        (3 * GIB, "gpumem"),
        (4 * GIB, "environment"),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(["register", "operator", "annotation"])))
def test_the_order_of_arrival_does_not_matter(order: tuple[str, ...]) -> None:
    scene = Scene()
    seen(scene)
    acts = {
        "register": lambda: scene.register(1, group=POD, core_limit=70),
        "operator": lambda: scene.limit(POD, core_limit=50),
        "annotation": lambda: seen(scene, cores=30),
    }
    for name in order:
        acts[name]()
    assert (quotas(scene).core_limit, quotas(scene).core_limit_from) == (30, "annotation")
    seen(scene)
    scene.limit(POD, clear=frozenset({"core_limit"}))
    assert (quotas(scene).core_limit, quotas(scene).core_limit_from) == (70, "environment")


def test_a_changed_annotation_reaches_every_process_of_the_pod_and_nobody_else() -> None:
    scene = Scene()
    for client, group in ((1, POD), (2, POD), (3, "pod:uid-2")):
        scene.register(client, group=group)

    answer = seen(scene, mem=GIB, cores=30)

    assert only(answer, c.SetCoreLimit) == [c.SetCoreLimit(1, 30), c.SetCoreLimit(2, 30)]
    assert [(told.client, told.mem_limit) for told in only(answer, c.SetLimit)] == [(1, GIB), (2, GIB)]
    assert said(answer, c.Level.INFO) == [
        "Memory limit changed for pod default/trainer: none -> 1024 MB",
        "Compute limit changed for pod default/trainer: 100% -> 30%",
    ]
    assert to_clients(seen(scene, mem=GIB, cores=30)) == []


def test_a_pod_has_its_quotas_before_its_first_process_and_says_nothing_about_them() -> None:
    scene = Scene()

    answer = seen(scene, mem=GIB, cores=30)
    assert (to_clients(answer), said(answer)) == ([], [])

    answer = scene.register(1, group=POD, mem_limit=8 * GIB)
    assert c.SetCoreLimit(1, 30) in answer
    assert isinstance(scene.allocate(1, GIB + 1), c.DenyMemory)


def test_the_name_that_the_api_tells_counts_before_the_one_that_a_client_claims() -> None:
    scene = Scene()
    scene.register(1, group=POD, pod="another")
    assert scene.scheduler.snapshot(0.0).clients[0].pod == "another"

    seen(scene)
    answer = scene.register(2, group=POD, pod="another")

    assert {(view.namespace, view.pod) for view in scene.scheduler.snapshot(0.0).clients} == {("default", "trainer")}
    assert quotas(scene).label == "default/trainer"
    registered = f"Registered client {2:016x} on GPU {A} with Pod name = trainer, Pod namespace = default"
    assert said(answer, c.Level.INFO) == [registered]


def test_a_pod_that_is_gone_keeps_its_quota_for_processes_that_are_left_and_then_nothing() -> None:
    scene = Scene()
    seen(scene, mem=GIB)
    scene.register(1, group=POD)

    scene.send(e.PodGone(0.0, "uid-1"))

    assert isinstance(scene.allocate(1, GIB + 1), c.DenyMemory)
    scene.gone(1)
    assert scene.scheduler.snapshot(0.0).groups == ()


def test_an_impossible_value_is_ignored_with_its_range() -> None:
    scene = Scene()

    answer = seen(scene, mem=0, cores=101, gpumem=-1)

    assert len(said(answer, c.Level.WARN)) == 3
    assert (quotas(scene).mem_limit, quotas(scene).core_limit) == (None, 100)
