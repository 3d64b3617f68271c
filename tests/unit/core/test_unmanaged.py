"""Processes on a card that are no clients: what they hold is shown, and planned around."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.memory.policy.capacity import Size, capacity
from nvshare.core.memory.policy.residency import Claim, Stake, steps
from nvshare.core.settings import Mode
from tests.unit.core.core_scene import GIB, MIB, A, Scene, only, said, to_clients


def test_what_outsiders_hold_is_not_given_to_tasks_and_comes_back_when_they_go() -> None:
    # GIVEN a card of 16 GiB of which somebody outside has 6
    scene = Scene()
    scene.register(1)
    assert to_clients(scene.outsiders(6 * GIB)) == [c.SetLimit(1, A, None, 10 * GIB)]
    # THEN a task can have 10
    assert isinstance(scene.allocate(1, 10 * GIB + 1), c.DenyMemory)
    assert isinstance(scene.allocate(1, 10 * GIB), c.GrantMemory)
    # AND all of the card when the outsider has gone
    assert to_clients(scene.outsiders()) == [c.SetLimit(1, A, None, 16 * GIB)]
    assert isinstance(scene.allocate(1, 6 * GIB), c.GrantMemory)


@pytest.mark.parametrize(
    ("declared", "contexts", "unmanaged", "left"),
    [
        (70, 20, 0, 70),
        (90, 20, 0, 90),  # taken at its word
        (70, 20, 5, 70),  # there is room enough
        (70, 20, 30, 50),
        (70, 20, 95, 0),
        (None, 20, 30, 50),
        (None, 20, 95, 0),
    ],
)
def test_no_card_promises_more_than_outsiders_leave(
    declared: int | None, contexts: int, unmanaged: int, left: int
) -> None:
    assert capacity(Size(100, declared), contexts, unmanaged) == left


@pytest.mark.parametrize("declared", [None, 16 * GIB])
def test_tasks_that_fitted_take_turns_when_they_grow_beside_an_outsider(declared: int | None) -> None:
    # GIVEN two tasks that run side by side, and an outsider that has taken the rest of the card
    scene = Scene(declared=declared, quantum=2.0)
    scene.mover(1, 5 * GIB, works=True)
    scene.mover(2, 5 * GIB, works=True)
    scene.outsiders(6 * GIB)
    assert scene.gpu()["policy"] == "free"
    # WHEN one of them grows THEN it is not refused: they take turns, and never have more than is there
    assert not isinstance(scene.allocate(1, 2 * GIB), c.DenyMemory)
    assert scene.gpu()["policy"] == "turns"
    scene.release(2)
    scene.request(2)
    scene.most_resident[A] = 0
    scene.move_all()
    assert scene.most_resident[A] <= 10 * GIB
    # AND side by side again when the outsider has gone
    scene.outsiders()
    scene.move_all()
    assert scene.gpu()["policy"] == "free"


def test_memory_that_is_on_the_card_stays_there_when_outsiders_come() -> None:
    scene = Scene()
    scene.mover(1, 8 * GIB, works=True)
    scene.mover(2, 7 * GIB, works=True)
    answer = scene.outsiders(2 * GIB)  # it cannot have taken what others have: that frees itself, or was mismeasured
    assert only(answer, c.Drop) == []
    assert only(answer, c.SetResidency) == []


def test_outsiders_are_shown_and_said_once() -> None:
    scene = Scene()
    assert said(scene.outsiders(3 * GIB, None)) == [
        "Process 2000 (outsider-0) uses 3072 MB of GPU GPU-a outside nvshare: planned around",
        "Process 2001 (outsider-1) uses an unknown amount of GPU GPU-a outside nvshare: planned around",
    ]
    assert said(scene.outsiders(4 * GIB, None)) == []
    assert scene.gpu()["unmanaged"] == [
        {"pid": 2000, "name": "outsider-0", "bytes": 4 * GIB},
        {"pid": 2001, "name": "outsider-1", "bytes": None},
    ]


def test_who_waits_for_room_that_outsiders_have_is_told_so() -> None:
    # GIVEN a task whose room was taken by an unmanaged process while it was away
    scene = Scene(total=1000 * MIB)
    scene.register(1, e.HeldGpu(A, 600 * MIB, 0), can_swap=True)
    scene.register(2, e.HeldGpu(A, 300 * MIB, 300 * MIB), can_swap=True)
    scene.outsiders(600 * MIB)
    scene.request(1)
    # THEN it waits, until that one has gone
    assert scene.waiting_for(1) == "room beside memory that cannot be moved (0.6 GiB of it outside nvshare)"
    scene.outsiders()
    scene.move_all()
    assert scene.state(1) == "running"


def test_sizes_that_cannot_be_are_ignored() -> None:
    scene = Scene()
    answer = scene.outsiders(-1)
    assert said(answer, c.Level.WARN)
    assert scene.gpu()["unmanaged"] == []


def test_a_drain_has_all_of_its_time_whatever_the_client_is_told_meanwhile() -> None:
    # GIVEN a client that may be larger than the card, told to bring memory, and granted the card because less is needed
    scene = Scene(Mode.SERIAL, total=1000 * MIB, quantum=1.0)
    scene.register(1, e.HeldGpu(A, 650 * MIB, 300 * MIB), can_swap=True, oversize=True)
    scene.request(1)
    scene.register(2)
    scene.pass_time(8.0)
    scene.outsiders(700 * MIB)
    assert scene.state(1) == "running"
    # WHEN its turn ends, and it asks for more while it drains
    scene.request(2)
    scene.pass_time(1.2)
    assert scene.state(1) == "draining"
    scene.allocate(1, MIB)
    # THEN the time it had for its memory does not end its drain
    scene.pass_time(2.0)
    assert scene.state(1) == "draining"
    scene.pass_time(10.0)
    assert scene.state(1) == "stuck"


def test_memory_that_cannot_leave_may_be_used_though_the_card_has_shrunk_below_it() -> None:
    pinned = Stake(Claim.NEXT, want=400, fixed=400, bound=100, held=400)
    other = Stake(Claim.SPARE, want=300, fixed=0, bound=0, held=0)
    assert steps([pinned, other], [400, 300], limit=200) == [(0, 400)]


def test_one_that_does_not_answer_is_told_of_no_room_where_outsiders_have_taken_it() -> None:
    # GIVEN one that was told to leave the card for another; it may have done so without saying it yet
    scene = Scene(total=1000 * MIB)
    scene.register(1, e.HeldGpu(A, 600 * MIB, 600 * MIB), can_swap=True)
    scene.mover(2, 1000 * MIB, works=True)
    assert scene.memory[1, A].target == 0
    # WHEN outsiders come, and it still says nothing
    scene.outsiders(600 * MIB)
    answers = scene.pass_time(10.0)
    # THEN it is not told to have more than there is now
    assert any("does not give up 600 MB" in text for text in said(answers, c.Level.WARN))
    assert 1 not in {command.client for command in only(answers, c.SetResidency)}
