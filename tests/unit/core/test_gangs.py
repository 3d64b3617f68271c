from __future__ import annotations

from nvshare.core import events as e
from nvshare.core.settings import Mode
from tests.unit.core.core_scene import CARD, GIB, A, B, Scene, dropped, granted

G = 9  # the client that uses both cards


def two_cards(mode: Mode = Mode.SERIAL) -> Scene:
    scene = Scene(mode, gpus=(B, A))
    scene.register(1, A)
    scene.register(2, B)
    scene.register(3, B)
    scene.register(G, B, A)
    return scene


def test_a_gang_is_granted_all_of_its_gpus_in_uuid_order() -> None:
    scene = two_cards()

    assert granted(scene.request(G, B)) == [(G, A), (G, B)]
    assert granted(scene.request(G, A)) == [(G, A)]


def test_a_gang_gets_nothing_while_one_of_its_gpus_is_taken() -> None:
    scene = two_cards()
    scene.request(1, A)

    scene.request(G, B)

    assert scene.gpu(B)["running"] == []
    assert granted(scene.release(1, A)) == [(G, A), (G, B)]


def test_a_gpu_is_kept_for_the_gang_that_is_first_in_line() -> None:
    scene = two_cards()
    scene.request(1, A)
    scene.request(G, A)

    later = scene.request(2, B)

    assert granted(later) == []
    assert granted(scene.release(1, A))[:2] == [(G, A), (G, B)]
    scene.release(G, A)
    assert granted(scene.release(G, B)) == [(2, B)]


def test_who_came_before_the_gang_is_served_before_it() -> None:
    scene = two_cards()
    scene.request(1, A)
    scene.request(2, B)
    scene.request(3, B)
    scene.request(G, A)

    assert granted(scene.release(2, B)) == [(3, B)]
    assert granted(scene.release(1, A)) == []
    assert granted(scene.release(3, B)) == [(G, A), (G, B)]


def test_a_drop_on_one_gpu_drops_the_whole_gang() -> None:
    scene = two_cards()
    scene.request(G, A)
    scene.request(2, B)

    assert dropped(scene.pass_time(30.0)) == [(G, A), (G, B)]
    assert granted(scene.release(G, B)) == [(2, B)]
    assert granted(scene.release(G, A)) == []


def test_a_gang_that_is_stuck_on_one_gpu_gives_up_the_others_and_gets_a_turn_again() -> None:
    scene = two_cards()
    scene.request(G, A)
    scene.request(1, A)

    answer = scene.release(G, A, stuck=True)

    assert dropped(answer) == [(G, B)]
    assert granted(answer) == [(1, A)]
    assert granted(scene.release(G, B)) == []
    assert granted(scene.release(1, A)) == [(G, A), (G, B)]


def test_a_gang_that_is_stuck_where_nobody_waits_just_goes_on() -> None:
    scene = two_cards(Mode.AUTO)
    scene.request(G, A)

    answer = scene.release(G, A, stuck=True)

    assert dropped(answer) == []
    assert granted(answer) == [(G, A)]
    assert scene.state(G) == "running"


def test_gangs_that_want_the_same_gpus_in_different_order_do_not_deadlock() -> None:
    scene = Scene(Mode.SERIAL, gpus=(A, B))
    scene.register(1, A, B)
    scene.register(2, B, A)

    scene.request(1, A)
    scene.request(2, B)
    scene.request(1, B)
    scene.request(2, A)

    assert scene.gpu(A)["running"] == scene.gpu(B)["running"] == ["0000000000000001"]
    scene.release(1, A)
    assert granted(scene.release(1, B)) == [(2, A), (2, B)]


def test_a_holder_that_attaches_a_free_gpu_gets_it_at_once() -> None:
    scene = two_cards()
    scene.request(1, A)

    assert granted(scene.attach(1, B)) == [(1, B)]


def test_a_holder_that_attaches_a_busy_gpu_gives_up_its_turn_and_waits_for_both() -> None:
    scene = two_cards()
    scene.request(1, A)
    scene.request(2, B)

    assert dropped(scene.attach(1, B)) == [(1, A)]
    scene.request(1, B)
    scene.release(1, A)
    assert granted(scene.release(2, B)) == [(1, A), (1, B)]


def test_a_waiter_that_attaches_a_gpu_keeps_its_place() -> None:
    scene = two_cards()
    scene.register(4, A)
    scene.request(4, A)
    scene.request(1, A)
    scene.request(2, B)
    scene.request(3, B)

    scene.attach(1, B)

    assert scene.gpu(B)["waiting"] == [f"{1:016x}", f"{3:016x}"]
    scene.release(2, B)
    assert granted(scene.release(4, A))[:2] == [(1, A), (1, B)]


def test_a_gang_in_auto_mode_runs_on_all_of_its_gpus_at_once() -> None:
    scene = two_cards(Mode.AUTO)
    scene.request(1, A)
    scene.request(2, B)

    assert granted(scene.request(G, A)) == [(G, A), (G, B)]


def test_a_gang_comes_back_whole_after_a_restart() -> None:
    scene = Scene(Mode.SERIAL, gpus=(A, B))

    answer = scene.register(G, e.HeldGpu(A, grant=3), e.HeldGpu(B, grant=4))

    assert granted(answer) == [(G, A), (G, B)]
    assert scene.state(G) == "running"


def test_the_death_of_a_gang_frees_all_of_its_gpus() -> None:
    scene = two_cards()
    scene.request(G, A)
    scene.request(1, A)
    scene.request(2, B)

    assert sorted(granted(scene.gone(G))) == [(1, A), (2, B)]


def test_who_waits_behind_a_gang_goes_on_when_the_gang_cannot_run_any_more() -> None:
    # GIVEN a gang that waits for its memory on one card, and a small task behind it on the other
    scene = Scene(Mode.SERIAL, gpus=(A, B), declared=CARD)
    scene.mover(1, 4 * GIB, 8 * GIB, gpus=(A, B), works=True)
    scene.mover(3, 6 * GIB)
    scene.mover(G, 12 * GIB, 8 * GIB, gpus=(A, B), works=True)
    scene.register(2, A)
    scene.request(2, A)
    assert dropped(scene.pass_time(30.0)) == [(1, A), (1, B)]
    scene.allocate(1, 8 * GIB, B)

    # WHEN the one before it cannot be stopped, and takes that card for itself
    answer = scene.pass_time(10.0)

    # THEN the task behind the gang does not wait for it
    assert granted(answer) == [(2, A)]
