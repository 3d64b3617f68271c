"""Memory asked for when not everything fits: granted, held until there is room, or refused."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import DenyReason, Mode
from tests.unit.core.core_scene import CARD, GIB, A, B, Scene, dropped, only, pair, said, targets


def test_a_waiting_client_is_granted_memory_that_comes_into_being_with_its_turn() -> None:
    scene = Scene(declared=CARD)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 4 * GIB)

    answer = scene.send(e.MemoryRequested(scene.now, 2, A, 9, 8 * GIB))

    assert [type(command) for command in only(answer, (c.SetResidency, c.GrantMemory))] == [
        c.SetResidency,
        c.GrantMemory,
    ]
    assert targets(answer) == {2: 4 * GIB}
    assert scene.gpu()["policy"] == "turns"


def test_a_growing_holder_turns_a_free_set_into_turns_in_the_same_answer() -> None:
    # GIVEN three that run freely
    scene = Scene(declared=CARD)
    for client in (1, 2, 3):
        scene.mover(client, 5 * GIB, works=True)

    # WHEN the first one asks for more than is left
    answer = scene.send(e.MemoryRequested(scene.now, 1, A, 9, 4 * GIB))

    # THEN it waits for the last one to be moved, the others go on
    assert only(answer, c.HoldMemory) == [c.HoldMemory(1, A, 9, 4 * GIB)]
    assert dropped(answer) == [(3, A)]
    assert scene.waiting_for(1) == "4.0 GiB it asked for to get room"
    assert targets(scene.release(3)) == {3: 2 * GIB}
    answers = scene.move_all()
    assert only(answers, c.GrantMemory) == [c.GrantMemory(1, A, 9, 4 * GIB)]
    assert scene.memory[1, A].resident == 9 * GIB
    assert only(answers, c.DenyMemory) == []
    assert scene.most_resident[A] <= CARD


def test_the_one_granted_last_gives_its_turn_up_for_its_own_growth() -> None:
    scene = Scene(declared=CARD)
    for client in (1, 2):
        scene.mover(client, 6 * GIB, works=True)

    answer = scene.send(e.MemoryRequested(scene.now, 2, A, 9, 6 * GIB))
    assert dropped(answer) == [(2, A)]
    answer = scene.release(2)

    assert only(answer, c.GrantMemory) == [c.GrantMemory(2, A, 9, 6 * GIB)]
    assert scene.memory[2, A].resident == 6 * GIB
    scene.request(2)
    scene.move_all()
    assert (scene.state(1), scene.state(2)) == ("running", "waiting")
    assert dropped(scene.pass_time(30.0)) == [(1, A)]


def test_a_holder_grows_into_what_a_waiter_gives_up() -> None:
    scene = pair()

    assert isinstance(scene.allocate(1, 2 * GIB), c.HoldMemory)
    assert scene.memory[2, A].target == 2 * GIB
    answers = scene.move_all()

    assert only(answers, c.GrantMemory) == [c.GrantMemory(1, A, 3, 2 * GIB)]
    assert scene.memory[1, A].resident == 14 * GIB
    assert scene.memory[2, A].resident == 2 * GIB


@pytest.mark.parametrize("event", ["death", "freed", "quota", "drop", "serial"])
def test_a_held_request_is_answered_whatever_happens_meanwhile(event: str) -> None:
    scene = pair()
    assert isinstance(scene.allocate(1, 2 * GIB), c.HoldMemory)

    if event == "death":
        answers = scene.gone(2)
    elif event == "freed":
        answers = scene.free(2, 11 * GIB)
    elif event == "quota":
        answers = scene.limit("process:1", mem_limit=13 * GIB)
    elif event == "drop":
        answers = scene.pass_time(30.0) + scene.release(1)
    else:
        answers = scene.change(mode=Mode.SERIAL) + scene.move_all()

    expected = c.DenyMemory if event == "quota" else c.GrantMemory
    assert [type(answer) for answer in only(answers, (c.GrantMemory, c.DenyMemory))] == [expected]


def test_the_held_request_of_a_client_that_dies_dies_with_it() -> None:
    scene = pair()
    scene.allocate(1, 2 * GIB)

    answers = scene.gone(1) + scene.move_all()

    assert only(answers, (c.GrantMemory, c.DenyMemory)) == []
    assert scene.gpu()["requested"] == 0


# --- admission


def test_no_client_is_admitted_beyond_the_card_alone() -> None:
    scene = Scene(declared=CARD)
    scene.mover(1, 12 * GIB)
    scene.mover(2, 12 * GIB)

    assert scene.allocate(1, 4 * GIB + 1) == c.DenyMemory(1, A, 3, 4 * GIB + 1, CARD, DenyReason.CARD)
    assert isinstance(scene.allocate(1, 4 * GIB), c.GrantMemory)


def test_memory_beyond_the_cards_is_bounded_by_the_host_budget() -> None:
    scene = Scene(declared=CARD, gpus=(A, B), host_budget=10 * GIB)
    scene.mover(1, 12 * GIB, 12 * GIB, gpus=(A, B))
    scene.mover(2, 10 * GIB, 4 * GIB, gpus=(A, B))

    denial = scene.allocate(2, 4 * GIB + 1, B)

    assert denial == c.DenyMemory(2, B, 5, 4 * GIB + 1, 10 * GIB, DenyReason.HOST)
    assert isinstance(scene.allocate(2, 4 * GIB, B), c.GrantMemory)
    assert isinstance(scene.allocate(2, 1, A), c.DenyMemory)


def test_a_client_that_cannot_move_gets_room_from_those_who_can_and_is_never_moved() -> None:
    # GIVEN two movers on a full card
    scene = Scene(declared=CARD)
    scene.mover(1, 8 * GIB, works=True)
    scene.mover(2, 8 * GIB)
    scene.register(3)

    # WHEN one that cannot move asks
    assert isinstance(scene.allocate(3, 6 * GIB), c.HoldMemory)
    answers = scene.move_all()

    # THEN the idle one makes room
    assert [command.client for command in only(answers, c.GrantMemory)] == [3]
    assert scene.memory[2, A].resident == 2 * GIB
    # AND what would keep one of them from the card for ever is refused
    assert scene.allocate(3, 2 * GIB + 1) == c.DenyMemory(3, A, 4, 2 * GIB + 1, CARD, DenyReason.CARD)
    scene.request(2)
    answers = scene.move_all()
    assert 3 not in targets(answers)
    assert isinstance(scene.allocate(2, 4 * GIB), c.DenyMemory)


def test_pinned_memory_stays_and_counts_against_others() -> None:
    scene = pair()
    attachment = scene.memory[1, A]
    scene.send(e.MemoryUpdated(scene.now, 1, A, 0, attachment.resident, 0, pinned=3 * GIB, applied=attachment.number))

    scene.pass_time(30.0)
    scene.gone(2)
    scene.release(1)
    scene.mover(4, 10 * GIB, works=True)
    assert isinstance(scene.allocate(4, 3 * GIB + 1), c.DenyMemory)
    assert isinstance(scene.allocate(4, 3 * GIB), c.GrantMemory)
    scene.pass_time(0.0)

    assert scene.memory[1, A].target == 3 * GIB


def test_without_turns_nothing_is_admitted_beyond_the_card() -> None:
    scene = Scene(declared=CARD, anti_thrash=False)
    scene.mover(1, 12 * GIB)
    scene.register(2, can_swap=True)

    assert isinstance(scene.allocate(2, 4 * GIB + 1), c.DenyMemory)


def test_anti_thrash_stays_on_while_memory_waits_for_its_card() -> None:
    scene = pair()

    before = scene.scheduler.settings
    off = e.SettingsChanged(scene.now, anti_thrash=False, quantum=1.0)
    reason = scene.scheduler.why_unchanged(off)
    answer = scene.change(anti_thrash=False, quantum=1.0)

    assert said(answer, c.Level.WARN) == [f"Settings unchanged: {reason}"]
    assert scene.scheduler.settings == before
    assert only(answer, c.SchedOff) == []
    assert "anti-thrash stays on while memory of tasks waits for GPU GPU-a" in said(answer, c.Level.WARN)[0]
    scene.gone(1)
    scene.move_all()
    assert scene.scheduler.why_unchanged(off) is None
    assert only(scene.change(anti_thrash=False), c.SchedOff) == [c.SchedOff(2)]


def test_a_client_with_memory_on_the_host_switches_turns_on_again() -> None:
    scene = Scene(declared=CARD, anti_thrash=False)
    scene.mover(1, 12 * GIB)

    answer = scene.register(2, e.HeldGpu(A, 12 * GIB, 4 * GIB), can_swap=True)

    assert only(answer, c.SchedOn) == [c.SchedOn(1), c.SchedOn(2)]
    assert scene.scheduler.settings.anti_thrash


# --- a client that may be larger than the card


def larger_than_the_card(size: int = 24 * GIB) -> Scene:
    scene = Scene(declared=CARD)
    scene.register(1, can_swap=True, oversize=True)
    scene.request(1)
    for _ in range(size // (4 * GIB)):
        assert isinstance(scene.allocate(1, 4 * GIB), c.GrantMemory)
    return scene


def test_one_that_says_so_may_be_larger_than_the_card() -> None:
    scene = larger_than_the_card()

    assert scene.memory[1, A].target == CARD
    assert (scene.state(1), scene.gpu()["policy"]) == ("running", "free")


def test_one_larger_than_the_card_takes_turns_with_others() -> None:
    # GIVEN one that takes all of the card, and one that waits
    scene = larger_than_the_card()
    scene.memory[1, A].resident = CARD
    scene.mover(2, 6 * GIB, works=True)
    assert scene.state(2) == "waiting"

    # WHEN turns end
    scene.pass_time(30.0)
    scene.release(1)
    scene.request(1)
    scene.move_all()

    # THEN the other has the card, with no more moved than it needs, and later the large one again
    assert (scene.state(1), scene.state(2)) == ("waiting", "running")
    assert scene.memory[1, A].resident == CARD - 6 * GIB
    scene.pass_time(30.0)
    scene.release(2)
    scene.request(2)
    scene.move_all()
    assert (scene.state(1), scene.state(2)) == ("running", "waiting")
    assert scene.memory[1, A].resident == CARD


def test_one_larger_than_the_card_is_bounded_by_its_quota_and_by_the_host() -> None:
    scene = Scene(declared=CARD, host_budget=8 * GIB)
    scene.register(1, can_swap=True, oversize=True, mem_limit=20 * GIB)
    scene.allocate(1, 18 * GIB)

    assert scene.allocate(1, 4 * GIB) == c.DenyMemory(1, A, 2, 4 * GIB, 20 * GIB, DenyReason.QUOTA)
    scene.limit("process:1", mem_limit=64 * GIB)
    assert scene.allocate(1, 8 * GIB) == c.DenyMemory(1, A, 3, 8 * GIB, 8 * GIB, DenyReason.HOST)


def test_one_larger_than_the_card_makes_room_for_memory_that_must_be_there() -> None:
    scene = larger_than_the_card()
    scene.memory[1, A].resident = CARD
    scene.register(2)

    assert isinstance(scene.allocate(2, 2 * GIB), c.HoldMemory)
    scene.release(1)
    scene.request(1)
    answers = scene.move_all()

    assert only(answers, c.GrantMemory) == [c.GrantMemory(2, A, 7, 2 * GIB)]
    assert scene.state(1) == "running"
    assert scene.memory[1, A].resident == CARD - 2 * GIB
