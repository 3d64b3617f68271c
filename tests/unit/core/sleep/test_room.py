"""Contexts give way to memory whose turn has come."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core.sleep.state import Bar, Outcome
from tests.unit.core.core_scene import A, B, dropped, granted, only, said, targets
from tests.unit.core.core_sleep import CONTEXT, GIB, MIB, T4, TASK, SleepScene, ordered, woken


def three() -> SleepScene:
    """Three tasks, each of which fits alone; with three contexts on the card none does. 1 has the first turn."""
    scene = SleepScene()
    for client in (1, 2, 3):
        scene.task(client, 0)
    for client in (1, 2, 3):
        scene.allocate(client, TASK)
        scene.request(client)
    return scene


def test_three_tasks_that_each_fit_alone_take_turns() -> None:
    # GIVEN three tasks of which two contexts leave too little room for the third's memory
    assert T4 - 3 * CONTEXT < TASK < T4 - 2 * CONTEXT
    scene = three()
    scene.settle_down()
    # WHEN the turns go round twice
    ran = []
    for holder in (1, 2, 3, 1, 2, 3):
        ran += granted(scene.hand_over(holder))
    # THEN each runs in its turn
    assert ran == [(client, A) for client in (2, 3, 1, 2, 3, 1)]
    # AND only as many sleep as needed
    assert sorted(scene.states().values()) == ["asleep", "awake", "awake"]


def test_the_one_with_the_furthest_turn_sleeps() -> None:
    scene = three()
    scene.settle_down()
    # 1 runs; 2 is next and 3 after it
    assert scene.states() == {1: "awake", 2: "awake", 3: "asleep"}


def test_its_memory_leaves_first_and_it_has_no_grant() -> None:
    # GIVEN a task with a turn
    scene = SleepScene()
    scene.task(1, 2 * GIB, works=True)
    scene.settle_down()
    # WHEN an operator puts it to sleep
    answers = scene.put_to_sleep(1)
    # THEN its turn ends first, then its memory leaves, and then it is told
    assert dropped(answers) == [(1, A)]
    answers = scene.release(1)
    assert targets(answers) == {1: 0}
    assert ordered(answers) == []
    answers = scene.move_all()
    assert ordered(answers) == [1]


def test_a_waiter_that_sleeps_is_woken_in_its_turn_and_asks_for_nothing() -> None:
    # GIVEN 3, which waits for its turn and sleeps
    scene = three()
    scene.settle_down()
    # WHEN its turn comes
    answers = scene.hand_over(1) + scene.hand_over(2)
    # THEN it is woken, gets its memory and runs
    assert woken(answers)[0] == 3
    assert granted(answers) == [(2, A), (3, A)]


def test_old_libraries_are_never_told() -> None:
    # GIVEN three tasks that say nothing about sleep
    scene = SleepScene()
    for client in (1, 2):
        scene.task(client, bar=None, works=True)
    scene.settle_down()
    scene.register(3, can_swap=True)
    scene.context(3, CONTEXT)
    # THEN the third is denied what never fits, and nobody is told to sleep
    assert isinstance(scene.allocate(3, TASK), c.DenyMemory)
    assert scene.orders == {}


def test_the_third_is_granted_its_memory_where_others_can_sleep() -> None:
    scene = SleepScene()
    scene.task(1, works=True)
    scene.task(2, works=True)
    scene.settle_down()
    scene.register(3, can_swap=True)
    scene.say(3)
    scene.context(3, CONTEXT)
    assert isinstance(scene.allocate(3, TASK), c.GrantMemory)
    assert isinstance(scene.allocate(3, 3 * GIB), c.DenyMemory), "it would not fit alone"


def test_off_means_that_nobody_is_told() -> None:
    scene = SleepScene(sleeps=False)
    scene.task(1, works=True)
    scene.task(2, works=True)
    scene.settle_down()
    scene.register(3, can_swap=True)
    scene.say(3)
    scene.context(3, CONTEXT)
    assert isinstance(scene.allocate(3, TASK), c.DenyMemory)


def test_contexts_do_not_count_in_a_declared_size() -> None:
    scene = SleepScene(declared=13 * GIB)
    for client in (1, 2, 3, 4):
        scene.task(client, works=True)
    answers = scene.settle_down()
    for holder in (1, 2, 3, 4):
        answers += scene.hand_over(holder)
    assert ordered(answers) == []
    assert [client for client, _ in granted(answers)] == [2, 3, 4, 1]


def test_contexts_count_in_a_declared_size_that_holds_them() -> None:
    scene = SleepScene(total=100 * GIB, declared=13 * GIB, inside=True)
    assert scene.gpu()["capacity"] == 13 * GIB
    for client in (1, 2, 3, 4):
        scene.task(client, 12 * GIB, context=719 * MIB, works=True)
        scene.settle_down()
    ran = []
    for holder in (1, 2, 3, 4):
        ran += granted(scene.hand_over(holder))
    assert [client for client, _ in ran] == [2, 3, 4, 1]
    assert sorted(scene.states().values()) == ["asleep", "asleep", "asleep", "awake"]
    assert scene.gpu()["contexts"] == 719 * MIB


def test_many_idle_tasks_leave_room_for_each_that_wakes() -> None:
    # GIVEN 60 tasks of a gigabyte that have computed once
    scene = SleepScene()
    for client in range(1, 61):
        scene.register(client, can_swap=True)
        scene.say(client)
        scene.context(client, CONTEXT)
        scene.settle_down()
        scene.allocate(client, GIB)
        scene.request(client)
        scene.settle_down()
        scene.pass_time(1.0)
        if scene.state(client) == "running":
            scene.release(client)
        assert scene.gpu()["contexts"] + scene.gpu()["resident"] <= T4 + CONTEXT  # an old newcomer's is there at once
    asleep = [client for client, state in scene.states().items() if state == "asleep"]
    assert len(asleep) > 40
    # WHEN one after the other wants its card
    for client in (3, 17, 44, 3, 58):
        if client in asleep:
            scene.want(client)
        scene.request(client)
        scene.settle_down()
        # THEN it runs
        assert scene.state(client) == "running"
        scene.pass_time(1.0)
        scene.release(client)
        asleep = [client for client, state in scene.states().items() if state == "asleep"]


def test_nobody_sleeps_for_a_waiter_before_its_turn() -> None:
    # GIVEN 1 that runs, 2 that is next and awake, and 3 that sleeps
    scene = three()
    scene.settle_down()
    # WHEN a thread of 3 wants the driver
    answers = scene.want(3) + scene.settle_down()
    # THEN it waits, and 2 stays
    assert ordered(answers) + woken(answers) == []
    assert scene.waiting_for(3) is not None


def test_a_sleeper_is_woken_before_its_turn_where_there_is_room() -> None:
    # GIVEN 1 that runs with little memory, and 2 that was put to sleep
    scene = SleepScene()
    scene.task(1, 8 * GIB, works=True)
    scene.task(2, 8 * GIB)
    scene.settle_down()
    scene.put_to_sleep(2)
    scene.settle_down()
    assert scene.states()[2] == "asleep"
    # WHEN it wants the driver, though its memory has to wait for its turn
    answers = scene.want(2) + scene.settle_down()
    # THEN its context comes, and 1 runs on
    assert woken(answers) == [2]
    assert dropped(answers) == []
    assert scene.state(1) == "running"


def test_growth_of_a_holder_puts_others_to_sleep() -> None:
    scene = SleepScene()
    scene.task(1, TASK, works=True)
    scene.task(2, 100 * MIB)
    scene.settle_down()
    answer = scene.allocate(1, 1500 * MIB)
    assert isinstance(answer, c.HoldMemory)
    answers = scene.settle_down()
    assert ordered(answers) == [2]
    assert [grant.bytes for grant in only(answers, c.GrantMemory)] == [1500 * MIB]


def test_room_is_reserved_on_all_cards_together() -> None:
    # GIVEN a sleeper with two cards, of which one is full
    scene = SleepScene(gpus=(A, B))
    scene.task(1, GIB, (A, B))
    scene.put_to_sleep(1)
    scene.settle_down()
    scene.task(2, 13800 * MIB, (B,), works=True)
    scene.settle_down()
    # WHEN it wants its contexts
    answers = scene.want(1)
    # THEN it is not woken while one of them has no room
    assert woken(answers) == []
    assert scene.scheduler._node.gpus[A].contexts == 0
    # AND is, when there is
    answers = scene.hand_over(2, again=False)
    assert woken(answers) == [1]


def test_two_wakers_on_two_cards_do_not_wait_for_each_other() -> None:
    scene = SleepScene(gpus=(A, B))
    for client in (1, 2):
        scene.task(client, TASK, (A, B))
        scene.put_to_sleep(client)
        scene.settle_down()
    answers = scene.want(1) + scene.want(2) + scene.settle_down()
    assert granted(answers) == [(1, A), (1, B)]
    answers = scene.hand_over(1, again=False)
    assert granted(answers)[-2:] == [(2, A), (2, B)]


@pytest.mark.parametrize("outcome", [Outcome.DECLINED, Outcome.FAILED, Outcome.WOKE])
def test_who_does_not_sleep_is_planned_around(outcome: Outcome) -> None:
    # GIVEN 3, which waits, must sleep so that 1 can run, and does not
    scene = three()
    while not scene.orders:
        scene.move_all()
    answers = scene.slept(3, outcome, bar=Bar.IPC, error=304)
    # THEN it is not told again
    assert ordered(answers + scene.settle_down()) in ([], [2])
    assert scene.states()[3] == "awake"
    assert any("0000000000000003" in line for line in said(answers))


def test_clients_are_told_the_same_size_whoever_sleeps() -> None:
    scene = SleepScene()
    scene.task(1, GIB)
    scene.task(2, GIB)
    answers = scene.put_to_sleep(2) + scene.settle_down() + scene.want(2) + scene.settle_down()
    assert only(answers, c.SetLimit) == []
    assert scene.scheduler._node.gpus[A].announced == T4 - CONTEXT
