from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import Mode
from tests.unit.core.core_scene import GIB, A, Scene, dropped, granted, only, said, to_clients


def serial(*clients: int, quantum: float = 30.0) -> Scene:
    scene = Scene(Mode.SERIAL, quantum=quantum)
    for client in clients:
        scene.register(client)
    return scene


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.CONCURRENT])
def test_what_fits_runs_together_and_is_never_dropped(mode: Mode) -> None:
    scene = Scene(mode)
    for client in (1, 2, 3):
        scene.register(client)
        scene.allocate(client, 4 * GIB)

    answers = [scene.request(client) for client in (1, 2, 3)]

    assert [granted(answer) for answer in answers] == [[(1, A)], [(2, A)], [(3, A)]]
    assert only(answers[2], c.Grant) == [c.Grant(3, A, 3, exclusive=False, contended=False, quantum=None)]
    assert scene.wake is None
    assert scene.pass_time(10_000.0) == []


def test_a_grant_in_auto_mode_is_logged_with_what_runs_already() -> None:
    scene = Scene(Mode.AUTO)
    for client in (1, 2):
        scene.register(client)
        scene.allocate(client, client * GIB)

    first, second = scene.request(1), scene.request(2)

    assert said(first, c.Level.INFO) == ["Scheduled client 0000000000000001 (mem: 1024 MB, total running: 1024 MB)"]
    assert said(second, c.Level.INFO) == [
        "Auto mode: memory fits (1024 + 2048 <= 16384 MB), allowing concurrent",
        "Scheduled client 0000000000000002 (mem: 2048 MB, total running: 3072 MB)",
    ]
    scene.release(2)
    assert said(scene.request(2), c.Level.INFO) == []


def test_asking_again_for_what_is_held_repeats_the_grant() -> None:
    scene = Scene(Mode.AUTO)
    scene.register(1)

    assert only(scene.request(1), c.Grant) == only(scene.request(1), c.Grant)


def test_serial_mode_grants_one_at_a_time_with_a_quantum() -> None:
    scene = serial(1, 2)

    first = scene.request(1)
    second = scene.request(2)

    assert only(first, c.Grant) == [c.Grant(1, A, 1, exclusive=True, contended=False, quantum=30.0)]
    assert to_clients(second) == [c.Grant(1, A, 1, exclusive=True, contended=True, quantum=30.0)]
    assert said(second) == ["Client 0000000000000002 moved to wait queue (serial mode: one task at a time)"]
    assert scene.wake == 30.0
    assert (scene.state(1), scene.state(2)) == ("running", "waiting")


def test_at_the_quantums_end_the_holder_is_dropped_and_its_release_grants_the_next() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    assert dropped(scene.pass_time(29.9)) == []
    assert only(scene.pass_time(0.1), c.Drop) == [c.Drop(1, A, 1, 10.0)]
    assert scene.state(1) == "draining"
    scene.pass_time(0.5)
    answer = scene.release(1, drain=0.5)

    assert only(answer, c.Grant) == [c.Grant(2, A, 2, exclusive=True, contended=False, quantum=30.0)]
    assert "Client 0000000000000002 promoted from wait queue" in said(answer, c.Level.INFO)
    assert scene.state(1) == "idle"


def test_waiters_are_served_first_come_first_served() -> None:
    scene = serial(1, 2, 3, 4)
    for client in (1, 3, 2, 4):
        scene.request(client)

    order = []
    for holder in (1, 3, 2, 4):
        order += [grant.client for grant in only(scene.release(holder), c.Grant)]

    assert order == [3, 2, 4]


def test_a_holder_for_whom_nobody_waits_is_never_dropped() -> None:
    scene = serial(1)
    scene.request(1)

    assert scene.wake is None
    assert scene.pass_time(10_000.0) == []


def test_a_holder_whose_quantum_is_spent_is_dropped_as_soon_as_somebody_waits() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.pass_time(31.0)

    assert to_clients(scene.request(2)) == [c.Drop(1, A, 1, 10.0)]


def test_when_nobody_waits_any_more_the_holder_is_told() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    answer = scene.gone(2)

    assert only(answer, c.Grant) == [c.Grant(1, A, 1, exclusive=True, contended=False, quantum=30.0)]
    assert scene.wake is None


def test_the_death_of_the_holder_grants_the_next_in_the_same_answer() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    assert granted(scene.gone(1)) == [(2, A)]


def test_the_death_of_a_draining_client_grants_the_next_in_the_same_answer() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)
    scene.pass_time(30.0)

    assert granted(scene.gone(1)) == [(2, A)]


def test_a_release_of_anything_but_the_grant_that_is_held_is_ignored() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    for client, number in ((1, 99), (1, 0), (2, 1), (2, 0)):
        answer = scene.release(client, grant=number)
        assert to_clients(answer) == []
        assert said(answer, c.Level.DEBUG)
    scene.release(1)
    assert to_clients(scene.release(1, grant=1)) == []
    assert scene.state(2) == "running"


def test_a_drain_that_passes_its_deadline_leaves_the_client_stuck_and_the_others_go_on() -> None:
    scene = serial(1, 2, 3)
    for client in (1, 2, 3):
        scene.request(client)
    scene.pass_time(30.0)

    answer = scene.pass_time(10.0)

    assert scene.state(1) == "stuck"
    assert granted(answer)[0] == (2, A)
    warnings = said(answer, c.Level.WARN)
    assert len(warnings) == 1
    assert "0000000000000001 (pid 1) is stuck" in warnings[0]
    assert granted(scene.release(2)) == [(3, A)]


def test_a_stuck_client_is_normal_again_when_it_releases() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)
    scene.pass_time(40.0)

    scene.release(1, drain=12.0)

    assert scene.state(1) == "idle"
    assert (scene.gpu()["running"], scene.gpu()["waiting"]) == (["0000000000000002"], [])


def test_a_client_that_says_it_is_stuck_gets_a_turn_again_and_is_normal_then() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)
    scene.pass_time(30.0)

    answer = scene.release(1, stuck=True, drain=10.0)

    assert granted(answer) == [(2, A)]
    assert scene.state(1) == "stuck"
    assert granted(scene.release(2)) == [(1, A)]
    assert scene.state(1) == "running"


def test_a_silent_stuck_client_gets_no_turn_until_it_speaks() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)
    scene.pass_time(40.0)

    assert granted(scene.release(2)) == []
    assert granted(scene.release(1, stuck=True)) == [(1, A)]


def test_a_client_may_ask_while_it_drains_and_waits_behind_the_others() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)
    scene.pass_time(30.0)
    scene.request(1)

    assert granted(scene.release(1))[0] == (2, A)
    assert granted(scene.release(2)) == [(1, A)]


def test_from_auto_to_serial_surplus_holders_are_dropped() -> None:
    scene = Scene(Mode.AUTO)
    for client in (1, 2, 3):
        scene.register(client)
        scene.request(client)

    answer = scene.change(mode=Mode.SERIAL)

    assert dropped(answer) == [(2, A), (3, A)]
    assert only(answer, c.Grant) == [c.Grant(1, A, 1, exclusive=True, contended=False, quantum=30.0)]


def test_from_serial_to_auto_waiters_are_granted_and_the_holder_keeps_running() -> None:
    scene = serial(1, 2, 3)
    for client in (1, 2, 3):
        scene.request(client)

    answer = scene.change(mode=Mode.AUTO)

    assert granted(answer) == [(1, A), (2, A), (3, A)]
    assert not any(grant.exclusive or grant.contended or grant.quantum for grant in only(answer, c.Grant))
    assert scene.wake is None


def test_anti_thrash_off_frees_everybody_and_on_again_makes_them_ask_anew() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    off = scene.change(anti_thrash=False)
    assert to_clients(off) == [c.SchedOff(1), c.SchedOff(2)]
    assert (scene.state(1), scene.state(2)) == ("free", "free")
    assert to_clients(scene.release(1, grant=1)) == []
    assert to_clients(scene.change(anti_thrash=True)) == [c.SchedOn(1), c.SchedOn(2)]
    assert granted(scene.request(2)) == [(2, A)]


def test_memory_on_the_host_starts_turns_in_auto_mode_in_sets_that_fit() -> None:
    # GIVEN three clients that came back with more than the card declares, part of it on the host
    scene = Scene(Mode.AUTO, declared=10 * GIB, demand=0.5)
    for client in (1, 2, 3):
        scene.register(client, e.HeldGpu(A, 5 * GIB, 3 * GIB), can_swap=True)

    # WHEN all ask
    answers = [scene.request(client) for client in (1, 2, 3)]
    assert all("memory does not fit (15360 > 10240 MB)" in said(answer)[0] for answer in answers)
    scene.move_all()

    # THEN two run together and the third waits for a turn
    assert [scene.state(client) for client in (1, 2, 3)] == ["running", "running", "waiting"]
    assert dropped(scene.pass_time(30.0)) == [(1, A), (2, A)]
    scene.release(1)
    scene.release(2)
    assert granted(scene.move_all()) == [(3, A)]


@pytest.mark.parametrize("how", ["larger card", "smaller waiter"])
def test_a_waiter_that_fits_after_all_runs_at_once(how: str) -> None:
    # GIVEN one client runs, and another waits because both together do not fit
    scene = Scene(Mode.AUTO, declared=10 * GIB)
    scene.register(1, e.HeldGpu(A, 8 * GIB, 8 * GIB), can_swap=True)
    scene.register(2, e.HeldGpu(A, 8 * GIB, 2 * GIB), can_swap=True)
    scene.request(1)
    scene.request(2)
    scene.move_all()
    assert scene.state(2) == "waiting"

    # WHEN the card becomes larger, but not large enough
    scene.send(e.GpuAdded(0.0, A, 16 * GIB, "T4", declared=16 * GIB - 1))
    scene.move_all()
    assert scene.state(2) == "waiting"

    # AND WHEN it is large enough, or the waiter needs less
    if how == "larger card":
        scene.send(e.GpuAdded(0.0, A, 16 * GIB, "T4", declared=16 * GIB))
    else:
        scene.free(2, GIB)
    scene.move_all()

    # THEN it runs beside the other one
    assert scene.state(2) == "running"


def test_a_timer_that_fires_early_or_late_does_no_harm() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    early = scene.send(e.TimerFired(1.0))
    assert early == [c.WakeAt(30.0)]
    late = scene.send(e.TimerFired(500.0))
    assert only(late, c.Drop) == [c.Drop(1, A, 1, 10.0)]


def test_a_new_quantum_holds_for_the_turn_under_way() -> None:
    scene = serial(1, 2)
    scene.request(1)
    scene.request(2)

    answer = scene.change(quantum=5.0)

    assert only(answer, c.Grant) == [c.Grant(1, A, 1, exclusive=True, contended=True, quantum=5.0)]
    assert dropped(scene.pass_time(5.0)) == [(1, A)]


@pytest.mark.parametrize("bad", [{"quantum": 0.5}, {"quantum": 301.0}, {"quantum": float("nan")}, {"max_runtime": 9.0}])
def test_a_setting_out_of_range_changes_nothing_and_names_the_range(bad: dict[str, float]) -> None:
    scene = serial(1)
    before = scene.scheduler.settings

    answer = scene.change(**bad)

    assert scene.scheduler.settings == before
    assert "is not allowed" in said(answer, c.Level.WARN)[0]
