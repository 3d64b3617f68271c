from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import SIZE_MAX, DenyReason, Priority
from tests.unit.core.core_scene import GIB, MIB, A, B, Scene, only, process_in, said, to_clients


def test_granted_bytes_count_at_once_and_the_card_bounds_all_clients_together() -> None:
    scene = Scene(declared=4 * GIB)
    scene.register(1)
    scene.register(2)

    assert isinstance(scene.allocate(1, 3 * GIB), c.GrantMemory)
    denial = scene.allocate(2, GIB + 1)
    assert denial == c.DenyMemory(2, A, 2, GIB + 1, 4 * GIB, DenyReason.CARD)
    assert isinstance(scene.allocate(2, GIB), c.GrantMemory)


def test_a_quota_is_exact_over_all_processes_of_a_group() -> None:
    scene = Scene()
    scene.register(1, group="pod:x", mem_limit=GIB)
    scene.register(2, group="pod:x")
    scene.allocate(1, 748 * MIB)

    denial = scene.allocate(2, 276 * MIB + 1)

    assert denial == c.DenyMemory(2, A, 2, 276 * MIB + 1, GIB, DenyReason.QUOTA)
    assert isinstance(scene.allocate(2, 276 * MIB), c.GrantMemory)
    scene.report(1, released=MIB)
    assert isinstance(scene.allocate(2, MIB), c.GrantMemory)


def test_a_quota_holds_per_gpu() -> None:
    scene = Scene(gpus=(A, B))
    scene.register(1, A, B, mem_limit=GIB)

    assert isinstance(scene.allocate(1, GIB, A), c.GrantMemory)
    assert isinstance(scene.allocate(1, GIB, B), c.GrantMemory)
    assert isinstance(scene.allocate(1, 1, B), c.DenyMemory)


def test_the_death_of_a_client_gives_its_bytes_back_to_card_and_group() -> None:
    scene = Scene(declared=GIB)
    scene.register(1, group="run:7", mem_limit=GIB)
    scene.register(2, group="run:7")
    scene.allocate(1, GIB)

    scene.gone(1)

    assert isinstance(scene.allocate(2, GIB), c.GrantMemory)


def test_without_a_declared_size_reserve_and_contexts_come_off_the_card() -> None:
    scene = Scene(total=1000 * MIB, reserve_percent=10)
    scene.register(1)
    scene.register(2)
    scene.context(1, 100 * MIB)
    scene.context(2, 100 * MIB)

    assert isinstance(scene.allocate(1, 700 * MIB + 1), c.DenyMemory)
    assert isinstance(scene.allocate(1, 700 * MIB), c.GrantMemory)
    scene.gone(2)
    assert isinstance(scene.allocate(1, 100 * MIB), c.GrantMemory)


def test_a_card_that_shrinks_below_what_is_held_refuses_new_requests_and_takes_nothing_away() -> None:
    scene = Scene(total=1000 * MIB)
    scene.register(1)
    scene.register(2)
    scene.allocate(1, 1000 * MIB)

    scene.context(2, 200 * MIB)

    assert scene.gpu()["allocated"] == 1000 * MIB
    assert isinstance(scene.allocate(2, 1), c.DenyMemory)
    assert only(scene.request(1), c.Grant)
    assert only(scene.request(2), c.Grant)


def test_clients_hear_of_a_context_but_not_of_every_small_change() -> None:
    scene = Scene(total=1024 * MIB)
    scene.register(1)
    scene.register(2)

    assert to_clients(scene.context(1, MIB)) == []
    assert to_clients(scene.context(1, 64 * MIB)) == [
        c.SetLimit(1, A, None, 960 * MIB),
        c.SetLimit(2, A, None, 960 * MIB),
    ]


def test_a_new_declared_size_is_told_to_all_clients_of_the_card() -> None:
    scene = Scene(declared=4 * GIB)
    scene.register(1)

    answer = scene.send(e.GpuAdded(0.0, A, 16 * GIB, "T4", declared=4 * GIB - 1))

    assert to_clients(answer) == [c.SetLimit(1, A, None, 4 * GIB - 1)]


def test_any_size_may_be_asked_for_and_too_much_is_denied() -> None:
    scene = Scene()
    scene.register(1)

    assert isinstance(scene.allocate(1, (1 << 64) - 1), c.DenyMemory)
    assert isinstance(scene.allocate(1, 0), c.GrantMemory)


@pytest.mark.parametrize(
    "lie",
    [
        e.MemoryUpdated(0.0, 1, A, released=2 * MIB + 1, resident=0),
        e.MemoryUpdated(0.0, 1, A, released=MIB, resident=MIB + 1),
        e.MemoryUpdated(0.0, 1, A, released=0, resident=0),
        e.MemoryUpdated(0.0, 1, A, released=MIB, resident=-1),
        e.MemoryUpdated(0.0, 1, A, released=MIB, resident=0, host=SIZE_MAX + 1),
        e.MemoryUpdated(0.0, 1, A, released=MIB, resident=0, pinned=SIZE_MAX + 1),
        e.MemoryRequested(0.0, 1, A, 9, -1),
        e.MemoryKept(0.0, 1, A, 9, 2 * MIB + 1),
        e.UsageReported(0.0, 1, A, 0.0, 0, 0, swapped_in=SIZE_MAX + 1),
    ],
)
def test_an_impossible_report_expels_its_sender_and_nobody_else_notices(lie: e.Event) -> None:
    scene = Scene()
    scene.register(1)
    scene.register(2)
    scene.allocate(1, 2 * MIB)
    scene.allocate(2, 2 * MIB)
    scene.report(1, released=MIB, resident=MIB)

    answer = scene.send(lie)

    assert [expel.client for expel in only(answer, c.Expel)] == [1]
    assert len([line for line in said(answer) if line.startswith("Expelled client 0000000000000001: ")]) == 1
    assert scene.gpu()["allocated"] == 2 * MIB


def test_raising_a_limit_lets_the_next_request_through_and_lowering_it_kills_nothing() -> None:
    scene = Scene()
    scene.register(1, group="run:7", mem_limit=GIB)
    scene.allocate(1, GIB)

    assert isinstance(scene.allocate(1, GIB), c.DenyMemory)
    assert only(scene.limit("run:7", mem_limit=2 * GIB), c.SetLimit) == [c.SetLimit(1, A, 2 * GIB, 16 * GIB)]
    assert isinstance(scene.allocate(1, GIB), c.GrantMemory)
    answer = scene.limit("run:7", mem_limit=GIB)
    assert only(answer, (c.Expel, c.Drop)) == []
    assert isinstance(scene.allocate(1, 1), c.DenyMemory)
    assert scene.gpu()["allocated"] == 2 * GIB


def test_an_operators_limit_beats_the_opened_one_and_that_beats_the_environment() -> None:
    scene = Scene()

    def effective() -> int | None:
        return scene.scheduler.snapshot(0.0).groups[0].mem_limit

    scene.register(1, group="run:7", mem_limit=3 * GIB)
    assert effective() == 3 * GIB
    scene.send(e.RunOpened(0.0, process_in("process:7", 0), "job", mem_limit=2 * GIB))
    assert effective() == 2 * GIB
    scene.limit("run:7", mem_limit=GIB)
    scene.register(2, group="run:7", mem_limit=8 * GIB)
    assert effective() == GIB
    scene.limit("run:7", clear=frozenset({"mem_limit"}))
    assert effective() == 2 * GIB


def test_the_first_environment_sets_the_groups_start_value_and_later_ones_do_not_raise_it() -> None:
    scene = Scene()
    scene.register(1, group="pod:x")

    answer = scene.register(2, group="pod:x", mem_limit=GIB, core_limit=30)
    scene.register(3, group="pod:x", mem_limit=4 * GIB, core_limit=90)

    assert c.SetLimit(1, A, GIB, 16 * GIB) in answer
    assert c.SetCoreLimit(1, 30) in answer
    assert {view.mem_limit for view in scene.scheduler.snapshot(0.0).clients} == {GIB}
    assert {view.core_limit for view in scene.scheduler.snapshot(0.0).clients} == {30}


def test_a_change_of_quotas_is_logged_in_the_words_people_look_for() -> None:
    scene = Scene()
    scene.register(1, group="pod:uid-1", core_limit=30, pod="trainer")

    answer = scene.limit("pod:uid-1", core_limit=80, mem_limit=4 * GIB, priority=Priority.HIGH)

    assert said(answer, c.Level.INFO) == [
        "Memory limit changed for pod default/trainer: none -> 4096 MB",
        "Compute limit changed for pod default/trainer: 30% -> 80%",
    ]
    assert only(answer, c.SetCoreLimit) == [c.SetCoreLimit(1, 80)]
    assert scene.scheduler.snapshot(0.0).clients[0].priority == "high"
    assert to_clients(scene.limit("pod:uid-1", core_limit=80)) == []


@pytest.mark.parametrize(
    "limits", [{"mem_limit": 0}, {"mem_limit": SIZE_MAX + 1}, {"core_limit": 101}, {"core_limit": 0}]
)
def test_a_limit_that_cannot_be_is_ignored_with_its_range(limits: dict[str, int]) -> None:
    scene = Scene()
    scene.register(1, group="run:7", mem_limit=GIB, core_limit=50)

    answer = scene.limit("run:7", **limits)

    assert to_clients(answer) == []
    assert "between 1" in said(answer, c.Level.WARN)[0]


def test_an_opened_group_outlives_its_clients_and_goes_when_closed() -> None:
    scene = Scene()
    scene.send(e.RunOpened(0.0, process_in("process:7", 0), "job", mem_limit=GIB))
    scene.register(1, group="run:7")
    scene.gone(1)

    assert [group.id for group in scene.scheduler.snapshot(0.0).groups] == ["run:7"]
    scene.send(e.RunClosed(0.0, 7))
    assert scene.scheduler.snapshot(0.0).groups == ()


def test_a_group_that_is_closed_keeps_its_quota_for_those_who_are_left() -> None:
    scene = Scene()
    scene.send(e.RunOpened(0.0, process_in("process:7", 0), "job", mem_limit=GIB))
    scene.register(1, group="run:7")

    scene.send(e.RunClosed(0.0, 7))

    assert isinstance(scene.allocate(1, GIB + 1), c.DenyMemory)
    scene.gone(1)
    assert scene.scheduler.snapshot(0.0).groups == ()


def test_memory_that_can_never_move_is_refused_where_it_would_keep_others_from_running_for_ever():
    # GIVEN a card of 8 GiB and a task that needs 6 of them in its turns
    scene = Scene(declared=8 * GIB)
    for client in (1, 2):
        scene.register(client, can_swap=True)
    scene.allocate(1, 6 * GIB)
    # WHEN another asks for more than the other 2 THEN it depends on whether it could make room one day
    assert isinstance(scene.allocate(2, 4 * GIB, stays=True), c.DenyMemory)
    assert isinstance(scene.allocate(2, 2 * GIB, stays=True), c.GrantMemory)
    scene.report(2, 2 * GIB)
    assert not isinstance(scene.allocate(2, 4 * GIB), c.DenyMemory)


def test_memory_is_kept_on_the_card_unless_another_could_never_run_again():
    # GIVEN a card of 8 GiB, a task that needs 6 of them in its turns and one that has 5, 1 of which stays already
    scene = Scene(declared=8 * GIB)
    for client in (1, 2):
        scene.register(client, can_swap=True)
    scene.allocate(1, 6 * GIB)
    scene.allocate(2, 5 * GIB)
    assert isinstance(scene.keep(2, GIB), c.KeepMemory)
    # WHEN it wants to keep more than the other gigabyte that is left THEN it is refused, and what is left is not
    assert isinstance(scene.keep(2, GIB + 1), c.DenyMemory)
    assert isinstance(scene.keep(2, GIB), c.KeepMemory)
    assert isinstance(scene.keep(2, 1), c.DenyMemory)
    # AND what is kept was not counted once more
    assert scene.scheduler.snapshot(0.0).gpus[0].allocated == 11 * GIB


def test_where_all_fits_anything_may_be_kept():
    scene = Scene(declared=8 * GIB)
    for client in (1, 2):
        scene.register(client, can_swap=True)
        scene.allocate(client, 4 * GIB)
    assert isinstance(scene.keep(1, 4 * GIB), c.KeepMemory)
    # AND then the other cannot grow, because nothing can make room for it
    assert isinstance(scene.allocate(2, GIB), c.DenyMemory)
