"""Sleep where something goes wrong: nobody waits for ever, nobody is told again, and nothing is left behind."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.sleep.state import WORDS, Bar, Outcome
from tests.unit.core.core_scene import GIB, MIB, A, granted, only, process_in, said
from tests.unit.core.core_sleep import CONTEXT, T4, TASK, SleepScene, ordered, woken


def asleep(*others: int) -> SleepScene:
    """1 sleeps; the others are awake and have little."""
    scene = SleepScene()
    for client in (1, *others):
        scene.task(client, GIB)
    scene.put_to_sleep(1)
    scene.settle_down()
    assert scene.states()[1] == "asleep"
    return scene


def told() -> SleepScene:
    """1 was told to sleep, and has not answered."""
    scene = SleepScene()
    scene.task(1, 0)
    scene.put_to_sleep(1)
    scene.move_all()
    assert scene.states()[1] == "ordered"
    return scene


def test_a_sleeper_has_nothing_on_its_card() -> None:
    scene = asleep()
    gpu = scene.gpu()
    assert (gpu["contexts"], gpu["resident"], gpu["capacity"]) == (0, 0, T4)
    view = scene.scheduler.snapshot(scene.now).clients[0]
    assert (view.state, view.sleep, view.gpus[0].context) == ("asleep", "asleep", 0)


def test_falling_asleep_is_logged() -> None:
    scene = told()
    assert said(scene.slept(1)) == [f"Client 0000000000000001 sleeps: its context (1009 MB) left GPU {A}"]


def test_who_cannot_be_checkpointed_is_not_told_again() -> None:
    scene = told()
    answer = scene.slept(1, Outcome.FAILED, error=304)
    assert "error 304" in said(answer, c.Level.WARN)[0]
    assert scene.scheduler.why_awake(1) == "the driver refused it last time (error 304)"
    assert ordered(scene.pass_time(10_000.0)) == []
    # AND an operator's order tries again
    scene.put_to_sleep(1)
    assert ordered(scene.move_all()) == [1] or scene.states()[1] == "ordered"


def test_who_says_anew_that_it_can_sleep_is_told_again() -> None:
    scene = told()
    scene.slept(1, Outcome.FAILED, error=304)
    scene.say(1)
    assert scene.scheduler.why_awake(1) is None


def test_who_wanted_the_driver_is_spared_for_a_while() -> None:
    scene = told()
    scene.slept(1, Outcome.WOKE)
    assert not scene.scheduler._node.clients[1].can_sleep
    scene.pass_time(10.0)
    assert scene.scheduler._node.clients[1].can_sleep


@pytest.mark.parametrize("bar", [bar for bar in Bar if bar is not Bar.NONE])
def test_why_a_client_cannot_sleep_is_said_in_words(bar: Bar) -> None:
    scene = SleepScene()
    scene.task(1, 0, bar=bar)
    assert scene.scheduler.why_awake(1) == WORDS[bar]
    assert scene.scheduler.snapshot(0.0).clients[0].cannot_sleep == WORDS[bar]
    assert ordered(scene.put_to_sleep(1)) == []


def test_an_older_library_cannot_sleep() -> None:
    scene = SleepScene()
    scene.task(1, 0, bar=None)
    assert scene.scheduler.why_awake(1) == "its library does not know how, or has not said yet"


def test_who_does_not_answer_is_named_and_its_context_counts() -> None:
    # GIVEN a process that is stopped after it was told
    scene = told()
    # WHEN its time is over
    answer = scene.pass_time(10.0)
    # THEN it is named, and its context is planned around
    assert ["(pid 1)" in line for line in said(answer, c.Level.WARN)] == [True]
    assert scene.gpu()["contexts"] == CONTEXT
    # AND when it goes on it sleeps after all
    scene.slept(1)
    assert (scene.states()[1], scene.gpu()["contexts"]) == ("asleep", 0)


def test_who_does_not_wake_keeps_nobody_from_the_card() -> None:
    # GIVEN a sleeper whose process is stopped when it is told to wake
    scene = asleep(2)
    scene.want(1)
    assert scene.states()[1] == "waking"
    scene.pass_time(10.0)
    # THEN others run
    answer = scene.request(2)
    assert granted(answer + scene.settle_down())[0] == (2, A)


def test_a_restore_that_fails_is_not_tried_again() -> None:
    scene = asleep(2)
    scene.want(1)
    answer = scene.awake(1, error=2)
    # THEN its room is free, it waits no more, and that is said
    assert scene.gpu()["contexts"] == CONTEXT
    assert "error 2" in said(answer, c.Level.WARN)[0]
    assert woken(scene.want(1) + scene.pass_time(10_000.0)) == []
    # AND an operator may
    assert woken(scene.wake_up(1)) == [1]
    scene.awake(1)
    assert scene.states()[1] == "awake"


@pytest.mark.parametrize("state", ["leaving", "ordered", "asleep", "called", "waking"])
def test_death_at_any_point_leaves_nothing(state: str) -> None:
    scene = SleepScene()
    scene.task(1, GIB)
    scene.task(2, 13 * GIB)
    if state == "called":
        scene.put_to_sleep(1)
        scene.settle_down()
        scene.allocate(2, 800 * MIB)
        scene.request(2)
        scene.settle_down()
        scene.want(1)
    else:
        scene.put_to_sleep(1)
        if state != "leaving":
            scene.move_all()
        if state in ("asleep", "waking"):
            scene.slept(1)
        if state == "waking":
            scene.want(1)
            scene.move_all()
        assert scene.states()[1] == state
    scene.gone(1)
    assert scene.gpu()["contexts"] == CONTEXT
    assert scene.scheduler._node.gpus[A].contexts_away == 0
    scene.gone(2)
    assert scene.gpu()["contexts"] == scene.gpu()["allocated"] == 0


def test_a_sleeper_that_comes_back_after_a_restart_sleeps_on() -> None:
    # GIVEN a sleeper, and a new scheduler
    scene = asleep()
    scene.restart()
    # WHEN it registers
    held = (e.HeldGpu(A, GIB, 0),)
    scene.send(e.ClientRegistered(scene.now, 1, process_in("", 1), held, can_swap=True, asleep=True))
    scene.say(1, context=CONTEXT)
    # THEN it is asleep, may have nothing on its card, and its context is known
    assert scene.states() == {1: "asleep"}
    assert scene.scheduler._node.clients[1].gpus[A].target == 0
    assert scene.scheduler._node.gpus[A].contexts_away == CONTEXT
    # AND it wakes by the number that it registered with
    assert [wake.order for wake in only(scene.want(1), c.WakeUp)] == [0]


def test_what_an_operator_ordered_ends_when_the_task_has_work() -> None:
    scene = SleepScene()
    scene.task(1, 2 * GIB, works=True)
    scene.put_to_sleep(1)
    scene.release(1)
    assert scene.states()[1] == "leaving"
    answer = scene.request(1)
    assert "stays awake: it has work" in " ".join(said(answer))
    assert scene.states()[1] == "awake"


def test_idle_tasks_sleep_after_the_time_that_is_set() -> None:
    scene = SleepScene(sleep_after=60.0)
    scene.task(1, GIB, works=True)
    # WHEN it computes on for a minute and is then idle for one
    for second in range(60):
        scene.pass_time(1.0)
        scene.send(e.UsageReported(scene.now, 1, A, float(second), second, 1))
    assert only(scene.pass_time(59.0), c.Drop) == []
    answers = scene.pass_time(2.0)
    # THEN its turn ends, and it sleeps
    assert [drop.client for drop in only(answers, c.Drop)] == [1]
    scene.release(1)
    assert ordered(scene.settle_down()) == [1]


def test_without_a_time_idle_tasks_stay_where_there_is_room() -> None:
    scene = SleepScene()
    scene.task(1, GIB, works=True)
    assert only(scene.pass_time(100_000.0), (c.Drop, c.GoToSleep)) == []


def test_anti_thrash_stays_on_while_somebody_sleeps() -> None:
    scene = asleep()
    answer = scene.change(anti_thrash=False)
    assert "anti-thrash stays on" in said(answer, c.Level.WARN)[0]


def test_answers_to_other_orders_are_ignored() -> None:
    scene = told()
    scene.send(e.SleepEnded(scene.now, 1, 99, Outcome.ASLEEP))
    assert scene.states()[1] == "ordered"
    scene.slept(1)
    scene.send(e.WakeRequested(scene.now, 1, 99))
    scene.send(e.WakeEnded(scene.now, 1, 1))
    assert scene.states()[1] == "asleep"


def test_memory_asked_for_while_it_falls_asleep_is_on_the_host() -> None:
    scene = told()
    assert isinstance(scene.allocate(1, GIB), c.GrantMemory)
    assert scene.memory[1, A].resident == 0
    scene.slept(1)


def test_who_grows_too_large_to_sleep_beside_is_refused() -> None:
    scene = SleepScene()
    scene.task(1, 0)
    scene.task(2, 0)
    assert isinstance(scene.allocate(2, TASK + CONTEXT), c.GrantMemory)
    assert isinstance(scene.allocate(2, 2 * GIB), c.DenyMemory)
