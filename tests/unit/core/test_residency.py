"""Memory that does not fit: who is on the card, who waits, and how it is handed over."""

from __future__ import annotations

import pytest

from nvshare.core import commands as c
from nvshare.core import events as e
from nvshare.core.settings import Mode, SwitchTime
from tests.unit.core.core_scene import CARD, GIB, MIB, A, B, Scene, dropped, granted, only, pair, said, targets


def hand_over(scene: Scene, holder: int, quantum: float = 30.0) -> list[c.Command]:
    """The holder's turn ends and it asks again at once; everybody moves until nothing is left to move."""
    answers = scene.pass_time(quantum)
    assert (holder, A) in dropped(answers)
    answers += scene.release(holder)
    answers += scene.request(holder)
    return answers + scene.move_all()


# --- everything fits


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.CONCURRENT])
def test_what_fits_is_told_nothing_and_moves_nothing(mode: Mode) -> None:
    scene = Scene(mode, declared=CARD)
    answers = [*scene.mover(1, 8 * GIB, works=True), *scene.mover(2, 8 * GIB, works=True)]
    answers += scene.move_all() + scene.pass_time(10_000.0)

    assert only(answers, (c.SetResidency, c.Drop, c.HoldMemory)) == []
    assert (scene.state(1), scene.state(2)) == ("running", "running")


def test_serial_turns_of_what_fits_move_nothing() -> None:
    scene = pair(8 * GIB, 8 * GIB, Mode.SERIAL)

    answers = hand_over(scene, 1) + hand_over(scene, 2)

    assert only(answers, c.SetResidency) == []
    assert scene.state(1) == "running"


# --- handing over


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("size", [9 * GIB, 12 * GIB])
def test_a_switch_moves_exactly_the_deficit_each_way(mode: Mode, size: int) -> None:
    # GIVEN two tasks of the same size that do not fit together
    scene = pair(size, size, mode)
    before = {key: (attachment.went_out, attachment.came_in) for key, attachment in scene.memory.items()}

    # WHEN the card is handed to the other one
    answers = hand_over(scene, 1)

    # THEN it runs, and what did not fit moved, once each way
    deficit = 2 * size - CARD
    assert granted(answers)[-1][0] in (1, 2)
    assert scene.state(2) == "running"
    first, second = scene.memory[1, A], scene.memory[2, A]
    assert first.went_out - before[1, A][0] == deficit
    assert second.came_in - before[2, A][1] == deficit
    assert (first.came_in, second.went_out) == (before[1, A][1], before[2, A][0])
    assert scene.most_resident[A] <= CARD


def test_sets_that_fit_run_together_and_each_switch_moves_the_deficit() -> None:
    # GIVEN 5, 7 and 9 GiB on 16: the first two fit beside each other
    scene = Scene(declared=CARD)
    for client, size in ((1, 5), (2, 7), (3, 9)):
        scene.mover(client, size * GIB, works=True)
    scene.move_all()
    assert [scene.state(client) for client in (1, 2, 3)] == ["running", "running", "waiting"]

    # WHEN their turns end, over and over
    ran = dict.fromkeys((1, 2, 3), 0)
    for _ in range(30):
        moved = sum(attachment.went_out for attachment in scene.memory.values())
        switches = scene.scheduler.snapshot(scene.now).counters.switches
        ended = {client for client, _ in dropped(scene.pass_time(30.0))}
        for client in ended:
            scene.release(client)
        for client in ended:
            scene.request(client)
        scene.move_all()
        # THEN what left the card is at most the deficit, per turn that ended
        assert sum(attachment.went_out for attachment in scene.memory.values()) - moved <= 5 * GIB * len(ended)
        assert scene.scheduler.snapshot(scene.now).counters.switches > switches
        for client in ran:
            ran[client] += scene.state(client) == "running"

    # AND all had their share
    assert min(ran.values()) >= 10
    assert scene.most_resident[A] <= CARD


def test_the_first_switch_of_a_set_takes_from_the_one_that_runs_again_last() -> None:
    scene = Scene(declared=CARD, demand=0.3)
    for client, size in ((1, 5), (2, 7), (3, 9)):
        scene.mover(client, size * GIB, works=True)
    scene.move_all()

    answers = scene.pass_time(30.0)
    assert dropped(answers) == [(1, A), (2, A)]
    answers = scene.release(1)
    assert only(answers, c.SetResidency) == []
    answers = scene.request(1)
    assert granted(answers) == []
    answers = scene.release(2)

    assert granted(answers)[0] == (1, A)
    assert targets(answers) == {2: 2 * GIB}


def test_chunks_that_left_make_room_for_chunks_that_come_both_at_once() -> None:
    # GIVEN the holder has drained
    scene = pair()
    scene.pass_time(30.0)
    answers = scene.release(1)
    assert targets(answers) == {1: 4 * GIB}

    # WHEN it confirms, and one chunk has left
    assert targets(scene.tell_memory(1)) == {}
    answers = scene.move(1, 128 * MIB)

    # THEN the next one may bring as much
    assert targets(answers) == {2: 4 * GIB + 128 * MIB}
    assert granted(answers) == []
    # AND what is not worth a message waits for more
    assert targets(scene.move(1, 16 * MIB)) == {}
    assert targets(scene.move(1, 16 * MIB)) == {2: 4 * GIB + 160 * MIB}


def switch_slowly(scene: Scene, holder: int, waiter: int) -> list[c.Command]:
    """The holder drains for half a second and moves for a quarter; the answer to the waiter's last chunk."""
    scene.pass_time(scene.gpu()["quantum_s"])
    scene.now += 0.5
    scene.release(holder, drain=0.5)
    scene.request(holder)
    for client in (holder, waiter):
        scene.tell_memory(client)
    scene.now += 0.25
    scene.move(holder, 8 * GIB)
    scene.tell_memory(waiter)
    assert scene.state(waiter) == "waiting"
    assert scene.waiting_for(waiter) == "8.0 GiB to arrive"
    return scene.move(waiter, 8 * GIB)


def test_the_grant_comes_with_the_last_chunk_and_the_stall_is_measured() -> None:
    scene = Scene(declared=CARD, switch_time=SwitchTime.AUTO)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 12 * GIB, works=True)
    scene.move_all()
    switch_slowly(scene, 1, 2)
    switch_slowly(scene, 2, 1)

    answer = switch_slowly(scene, 1, 2)

    assert granted(answer)[0] == (2, A)
    assert (
        "Switched GPU GPU-a from client 0000000000000001 to client 0000000000000002: "
        "8192 MB out, 8192 MB in, 0.250 s of stall"
    ) in said(answer, c.Level.INFO)
    assert "Client 0000000000000002 promoted from wait queue" in said(answer, c.Level.INFO)
    gpu = scene.gpu()
    assert gpu["last_switch"] == {"bytes_out": 8 * GIB, "bytes_in": 8 * GIB, "seconds": 0.75, "stall_s": 0.25}
    assert gpu["quantum_s"] == 12.5
    assert gpu["quantum_reason"] == "a switch stalls the card for 0.250 s, 2% of the time at most"
    assert only(answer, c.Grant)[0].quantum == 12.5


def test_the_next_one_is_fetched_while_the_holder_computes() -> None:
    # GIVEN 6 runs, 5 and 12 wait; the 12 came first
    scene = Scene(declared=CARD)
    scene.mover(1, 6 * GIB, works=True)
    scene.mover(3, 5 * GIB)
    scene.mover(2, 12 * GIB, works=True)

    scene.move_all()

    # THEN what the holder leaves is the next one's, though an idle one lost some for it
    assert scene.state(2) == "waiting"
    assert scene.memory[2, A].resident == 10 * GIB
    assert scene.memory[3, A].resident == 0
    assert scene.memory[1, A].went_out == 0


def test_idle_clients_lose_memory_before_waiters_and_the_longest_idle_first() -> None:
    scene = Scene(declared=CARD, demand=0.3)
    for client in (1, 2, 3):
        scene.mover(client, 4 * GIB, works=True)
    scene.release(2)
    scene.release(1)

    scene.mover(4, 6 * GIB, works=True)
    scene.move_all()

    assert {client: scene.memory[client, A].resident for client in (1, 2, 3)} == {1: 4 * GIB, 2: 2 * GIB, 3: 4 * GIB}
    assert (scene.state(3), scene.state(4)) == ("running", "running")


def test_a_set_that_fits_is_not_asked_to_stop_for_an_idle_one() -> None:
    scene = Scene(declared=CARD)
    for client in (1, 2, 3):
        scene.mover(client, 7 * GIB, works=client < 3)
    scene.move_all()

    answers = scene.pass_time(10_000.0)

    assert dropped(answers) == []
    assert (scene.state(1), scene.state(2), scene.state(3)) == ("running", "running", "idle")


def test_a_waking_task_waits_for_the_turn_under_way_and_no_longer() -> None:
    scene = pair()
    hand_over(scene, 1)
    scene.release(2)
    scene.move_all()
    assert scene.state(1) == "running"
    scene.pass_time(20.0)

    scene.request(2)

    assert scene.waiting_for(2) == "turn of 0000000000000001, at most 10 s"
    assert dropped(scene.pass_time(10.0)) == [(1, A)]


def test_an_idle_holder_is_told_that_somebody_waits() -> None:
    scene = Scene(declared=CARD)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 12 * GIB)

    answer = scene.request(2)

    assert only(answer, c.Grant)[-1].contended is True
    assert "moved to wait queue (memory does not fit (24576 > 16384 MB))" in said(answer)[0]


# --- somebody goes


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.SERIAL])
def test_a_survivor_gets_all_of_its_memory_back_and_turns_end(mode: Mode) -> None:
    scene = pair(mode=mode)

    answers = scene.gone(1)

    assert targets(answers) == {2: 12 * GIB}
    answers = scene.move_all()
    assert granted(answers) == [(2, A)]
    grant = only(answers, c.Grant)[0]
    if mode is Mode.AUTO:
        assert (grant.exclusive, grant.contended, grant.quantum) == (False, False, None)
        assert scene.gpu()["policy"] == "free"
    assert scene.wake is None


def test_when_memory_fits_again_because_some_was_freed_turns_end_and_all_run() -> None:
    scene = pair()

    answers = scene.free(1, 8 * GIB)
    assert only(answers, c.Grant) == [c.Grant(1, A, 1, exclusive=False, contended=False, quantum=None)]
    answers += scene.move_all()

    assert (scene.state(1), scene.state(2)) == ("running", "running")
    assert dropped(answers + scene.pass_time(1000.0)) == []


@pytest.mark.parametrize("victim", [1, 2, 3])
@pytest.mark.parametrize("phase", range(7))
def test_a_death_in_any_phase_of_a_switch_loses_nothing_of_the_others(phase: int, victim: int) -> None:
    # GIVEN a switch from 1 to 2 with 3 behind, stopped at some point
    scene = pair()
    scene.mover(3, 12 * GIB, works=True)
    steps = [
        lambda: scene.pass_time(30.0),
        lambda: scene.release(1),
        lambda: scene.tell_memory(1),
        lambda: scene.move(1, 3 * GIB),
        lambda: scene.tell_memory(2),
        lambda: scene.move(2, 2 * GIB),
        lambda: scene.move(1, 3 * GIB),
    ]
    for step in steps[:phase]:
        step()

    # WHEN one of them dies
    scene.gone(victim)
    left = [client for client in (1, 2, 3) if client != victim]

    # THEN the others take turns, each with all of its memory
    scene.move_all()
    for _ in range(4):
        running = [client for client in left if scene.state(client) == "running"]
        assert all(scene.memory[client, A].resident == 12 * GIB for client in running)
        ended = {client for client, _ in dropped(scene.pass_time(60.0))}
        for client in left:
            if scene.state(client) in ("draining", "stuck"):
                ended.add(client)
        for client in ended:
            scene.release(client)
        for client in left:
            if scene.state(client) == "idle":
                scene.request(client)
        scene.move_all()
    assert scene.most_resident[A] <= CARD
    assert any(scene.state(client) == "running" for client in left)


# --- modes, gangs, stuck clients, restarts


def test_concurrent_mode_takes_turns_where_memory_does_not_fit_and_says_so() -> None:
    scene = Scene(Mode.CONCURRENT, declared=CARD)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 4 * GIB)

    answer = scene.send(e.MemoryRequested(scene.now, 2, A, 9, 8 * GIB))

    why = "memory does not fit (24576 > 16384 MB); concurrent mode takes turns too then"
    assert f"Clients of GPU GPU-a take turns: {why}" in said(answer, c.Level.INFO)
    assert (scene.gpu()["policy"], scene.gpu()["reason"]) == ("turns", why)


def test_a_gang_runs_when_its_memory_is_on_all_of_its_cards() -> None:
    # GIVEN a gang on two cards, of which a neighbour has one
    scene = Scene(declared=CARD, gpus=(A, B))
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(9, 12 * GIB, 12 * GIB, gpus=(A, B))
    scene.request(9)
    scene.move_all()
    assert scene.state(9) == "waiting"
    assert scene.waiting_for(9, B) is None

    # WHEN that one's turn ends
    scene.pass_time(30.0)
    scene.release(1)
    assert scene.waiting_for(9, A) == "8.0 GiB to arrive"
    answers = scene.move_all()

    # THEN the gang is granted both together
    assert granted(answers)[:2] == [(9, A), (9, B)]


def test_two_gangs_exchange_both_cards() -> None:
    scene = Scene(declared=CARD, gpus=(A, B))
    for client in (1, 2):
        scene.mover(client, 12 * GIB, 10 * GIB, gpus=(A, B), works=True)
    scene.move_all()
    scene.pass_time(30.0)
    scene.release(1, A)
    scene.release(1, B)
    scene.request(1, B)

    answers = scene.move_all()

    assert granted(answers)[:2] == [(2, A), (2, B)]
    assert (scene.memory[1, A].went_out, scene.memory[1, B].went_out) == (8 * GIB, 4 * GIB)


def test_a_stuck_client_keeps_its_memory_and_those_it_leaves_room_for_go_on() -> None:
    # GIVEN a holder that cannot stop
    scene = Scene(declared=CARD, demand=0.3)
    scene.mover(1, 10 * GIB, works=True)
    scene.mover(2, 12 * GIB, works=True)
    scene.mover(3, 6 * GIB, works=True)
    scene.pass_time(30.0)
    answers = scene.release(1, stuck=True)

    # THEN the one that fits beside it runs, and the one that does not waits
    answers += scene.move_all()
    assert 1 not in targets(answers)
    assert (scene.state(1), scene.state(2), scene.state(3)) == ("running", "waiting", "running")

    # WHEN it stops in its next turn
    scene.pass_time(30.0)
    for client in (1, 3):
        scene.release(client)
    scene.move_all()

    # THEN the other one gets the card
    assert scene.state(2) == "running"


def test_a_silent_stuck_client_blocks_only_whom_it_leaves_no_room() -> None:
    scene = pair()
    scene.pass_time(40.0)
    assert scene.state(1) == "stuck"

    scene.move_all()

    assert scene.state(2) == "waiting"
    assert scene.waiting_for(2) == "room beside memory that cannot be moved"
    scene.release(1)
    scene.move_all()
    assert scene.state(2) == "running"


def test_after_a_restart_clients_bring_what_they_have_and_are_planned_anew() -> None:
    # GIVEN a new scheduler, and the one that was swapped out comes first
    scene = Scene(declared=CARD)
    answer = scene.register(2, e.HeldGpu(A, 12 * GIB, 4 * GIB), can_swap=True)
    assert targets(answer) == {2: 12 * GIB}

    # WHEN the one that has the card comes back too
    answer = scene.register(1, e.HeldGpu(A, 12 * GIB, 12 * GIB, grant=7), can_swap=True)

    # THEN it keeps its turn, more than the card was promised for a moment, and the other one takes it back
    assert set(granted(answer)) == {(1, A)}
    assert scene.gpu()["policy"] == "turns"
    scene.request(2)
    scene.mover(3, GIB, works=True)
    scene.move_all()
    assert scene.memory[1, A].went_out == 0
    assert scene.state(1) == "running"


def test_a_turn_claimed_without_its_memory_is_not_given_back() -> None:
    scene = Scene(declared=CARD)

    answer = scene.register(1, e.HeldGpu(A, 12 * GIB, 4 * GIB, grant=7), can_swap=True)

    assert only(answer, c.Drop) == [c.Drop(1, A, 7, 10.0)]
    assert scene.state(1) == "idle"
    assert scene.release(1, grant=7) is not None
    scene.request(1)
    answers = scene.move_all()
    assert [grant.grant for grant in only(answers, c.Grant)] == [8]


def test_one_that_was_adopted_with_more_than_the_card_declares_can_still_run() -> None:
    scene = Scene(declared=CARD)
    scene.register(1, e.HeldGpu(A, 20 * GIB, 10 * GIB), can_swap=True)
    scene.mover(2, 6 * GIB, works=True)
    scene.request(1)

    scene.move_all()
    for _ in range(2):
        for client, _ in dropped(scene.pass_time(30.0)):
            scene.release(client)
        scene.move_all()

    assert scene.state(1) == "running"


def test_a_confirmation_of_a_target_that_was_never_sent_expels_its_sender() -> None:
    scene = pair()

    answer = scene.send(e.MemoryUpdated(scene.now, 1, A, 0, 12 * GIB, applied=99))

    assert [expel.client for expel in only(answer, c.Expel)] == [1]
    assert targets(answer) == {2: 12 * GIB}


@pytest.mark.parametrize("mode", list(Mode))
def test_modes_can_change_in_the_middle_of_a_switch(mode: Mode) -> None:
    scene = pair()
    scene.pass_time(30.0)
    scene.release(1)
    scene.tell_memory(1)
    scene.move(1, GIB)

    scene.change(mode=mode)
    scene.move_all()

    assert scene.state(2) == "running"
    assert scene.most_resident[A] <= CARD


def test_a_card_that_shrinks_while_memory_is_on_its_way_makes_room_for_it() -> None:
    # GIVEN a task that was told to bring all of its memory, and the room for it was there
    scene = Scene(total=CARD)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 12 * GIB, works=True)
    scene.move_all()
    scene.pass_time(30.0)
    scene.release(1)
    while scene.memory[2, A].target < 12 * GIB:
        scene.move(1)
    assert scene.state(2) == "waiting"

    # WHEN the scheduler learns that contexts take some of the card
    answer = scene.context(1, GIB)

    # THEN the other one gives that up too, and the task comes to run
    assert targets(answer) == {1: 3 * GIB}
    assert granted(scene.move_all()) == [(2, A)]


# --- compute, where memory makes clients take turns


def three_of_which_two_fit(demand: float | None = None) -> Scene:
    scene = Scene(declared=CARD, demand=demand)
    for client in (1, 2, 3):
        scene.mover(client, 7 * GIB, works=True)
    scene.move_all()
    return scene


def use(scene: Scene, shares: dict[int, float], seconds: float = 10.0) -> list[c.Command]:
    """Time passes in which these clients use so much of the card, and say so."""
    answers = scene.pass_time(seconds)
    for client, share in shares.items():
        answers += scene.send(e.UsageReported(scene.now, client, A, share * seconds, 1, 1))
    return answers


def test_tasks_whose_demand_is_not_known_yet_count_as_busy() -> None:
    # GIVEN two that ran side by side before a third one came
    scene = three_of_which_two_fit()
    assert [scene.state(client) for client in (1, 2, 3)] == ["running", "running", "waiting"]

    # WHEN their turns are over, THEN one runs at a time
    scene.pass_time(30.0)
    for client in (1, 2):
        scene.release(client)
        scene.request(client)
    scene.move_all()
    assert [scene.state(client) for client in (1, 2, 3)] == ["waiting", "waiting", "running"]


def test_busy_tasks_run_one_at_a_time_where_memory_makes_them_take_turns() -> None:
    # GIVEN two that fit together and are measured to use all of the card's time each
    scene = three_of_which_two_fit()
    use(scene, {1: 1.0, 2: 0.98})

    # WHEN their turns are over
    answers = scene.pass_time(30.0)
    assert sorted(dropped(answers)) == [(1, A), (2, A)]
    for client in (1, 2):
        scene.release(client)
        scene.request(client)
    scene.move_all()

    # THEN the one that waited has the card, and the next one's memory is there already
    assert [scene.state(client) for client in (1, 2, 3)] == ["waiting", "waiting", "running"]
    use(scene, {3: 1.0})
    assert granted(scene.pass_time(30.0)) == [(1, A)]


def test_tasks_with_pauses_run_together_where_memory_makes_others_wait() -> None:
    scene = three_of_which_two_fit(demand=0.5)
    use(scene, {1: 0.3, 2: 0.6})

    scene.pass_time(30.0)
    for client in (1, 2):
        scene.release(client)
        scene.request(client)
    scene.move_all()

    assert [scene.state(client) for client in (1, 2, 3)] == ["running", "waiting", "running"]


def test_a_waiter_is_let_in_when_the_holder_turns_out_to_leave_time() -> None:
    # GIVEN a waiter that fits beside a busy holder
    scene = three_of_which_two_fit()
    use(scene, {1: 1.0, 2: 1.0})
    scene.pass_time(20.0)
    scene.release(1)
    scene.release(2)
    scene.request(1)
    scene.move_all()
    use(scene, {3: 1.0})
    assert scene.state(1) == "waiting"

    # WHEN the holder is measured to pause, THEN the waiter runs beside it
    scene.pass_time(5.0)
    answer = scene.send(e.UsageReported(scene.now, 3, A, 10.0, 1, 1))

    assert granted(answer)[0] == (1, A)
    assert (scene.state(1), scene.state(3)) == ("running", "running")


def test_a_holder_is_told_what_may_have_to_leave_as_soon_as_somebody_waits() -> None:
    scene = Scene(declared=CARD)
    scene.mover(1, 12 * GIB, works=True)
    assert only(scene.mover(2, 12 * GIB), c.PrepareSwapOut) == []

    assert only(scene.request(2), c.PrepareSwapOut) == [c.PrepareSwapOut(1, A, 8 * GIB)]
    answers = hand_over(scene, 1)
    assert only(answers, c.PrepareSwapOut) == [c.PrepareSwapOut(2, A, 8 * GIB)]
    assert only(hand_over(scene, 2), c.PrepareSwapOut) == []


def test_serial_turns_of_what_fits_prepare_nothing() -> None:
    scene = pair(8 * GIB, 8 * GIB, Mode.SERIAL)

    assert only(hand_over(scene, 1), c.PrepareSwapOut) == []


# --- a client that does not answer


def one_that_was_stopped() -> Scene:
    """1 has 12 GiB on the card, is idle and silent; 2 needs most of that room, 3 needs none of it."""
    scene = Scene(declared=CARD)
    scene.mover(1, 12 * GIB)
    scene.mover(2, 12 * GIB, works=True)
    scene.mover(3, 2 * GIB, works=True)
    for client in (2, 3):
        scene.tell_memory(client)
    return scene


def test_a_client_that_does_not_give_memory_up_is_named_and_planned_around() -> None:
    # GIVEN one that waits for the memory of another, and one behind it that does not need it
    scene = one_that_was_stopped()
    assert (scene.state(2), scene.state(3)) == ("waiting", "waiting")

    # WHEN the other one does not answer
    answers = scene.pass_time(10.0)
    for client in (2, 3):
        answers += scene.move(client, 2 * GIB)

    # THEN it is named, and whoever fits beside it goes on
    assert any("0000000000000001 (pid 1) does not give up" in text for text in said(answers, c.Level.WARN))
    assert scene.state(3) == "running"
    assert scene.waiting_for(2) == "room beside memory that cannot be moved"


def test_a_client_that_does_not_answer_is_not_told_to_keep_what_it_should_give_up() -> None:
    # GIVEN one that was told to give room up; it may have done so without saying it yet
    scene = one_that_was_stopped()
    assert scene.memory[1, A].target == 2 * GIB

    # WHEN it is planned around, THEN it is not invited back into what it may have left
    assert 1 not in targets(scene.pass_time(10.0))
    assert 1 not in targets(scene.gone(2))


def test_when_nobody_needs_its_room_any_more_a_client_gets_it_back_once_it_answers() -> None:
    scene = one_that_was_stopped()
    scene.pass_time(10.0)
    scene.gone(2)

    scene.move_all()

    assert scene.memory[1, A].resident == 12 * GIB


def test_a_client_that_answers_again_gives_up_what_it_should_have() -> None:
    scene = one_that_was_stopped()
    scene.pass_time(10.0)

    scene.move_all()

    assert scene.state(2) == "running"
    assert scene.memory[1, A].resident <= CARD - 12 * GIB


def test_a_client_that_moves_slowly_but_moves_is_waited_for() -> None:
    scene = one_that_was_stopped()

    answers = []
    for _ in range(8):
        answers += scene.pass_time(9.0) + scene.move(1, GIB)

    assert said(answers, c.Level.WARN) == []


# --- contexts


def test_idle_memory_makes_room_for_the_context_of_a_newcomer() -> None:
    # GIVEN a card that idle tasks fill, and on which contexts of half a GiB were seen
    scene = Scene(total=CARD)
    scene.mover(1, 8 * GIB)
    scene.context(1, GIB // 2)
    scene.mover(2, 7 * GIB)
    scene.context(2, GIB // 2)

    # WHEN another process comes, THEN room is made for its context before it asks for anything
    answer = scene.register(3, can_swap=True)

    assert targets(answer) == {2: 7 * GIB - GIB // 2}
    # AND when the context turns out to be smaller, what is left over comes back
    scene.move_all()
    assert targets(scene.context(3, GIB // 4)) == {2: 7 * GIB - GIB // 4}


def test_who_runs_makes_no_room_for_the_context_of_a_newcomer() -> None:
    scene = Scene(total=CARD)
    scene.mover(1, 15 * GIB, works=True)
    scene.context(1, GIB)

    answer = scene.register(2, can_swap=True)

    assert only(answer, (c.SetResidency, c.Drop)) == []
    assert scene.state(1) == "running"


def test_contexts_that_leave_no_room_for_large_tasks_do_not_stop_a_small_one() -> None:
    # GIVEN two tasks that each take all that two contexts leave of a card
    scene = Scene(total=CARD)
    for client in (1, 2):
        scene.register(client, can_swap=True)
        scene.context(client, GIB)
        scene.allocate(client, 27 * GIB // 2)
        scene.request(client)
    scene.move_all()
    assert (scene.state(1), scene.state(2)) == ("running", "waiting")

    # WHEN a third process makes its context, and their turns are over
    scene.register(3, can_swap=True)
    scene.context(3, GIB)
    scene.allocate(3, GIB)
    scene.request(3)
    scene.pass_time(30.0)
    scene.release(1)
    scene.request(1)
    scene.move_all()

    # THEN the small one runs, and the others wait for its context to go
    assert [scene.state(client) for client in (1, 2, 3)] == ["waiting", "waiting", "running"]
    assert scene.waiting_for(2) == "room beside memory that cannot be moved"
    scene.gone(3)
    scene.move_all()
    assert scene.state(2) == "running"


def silent_next() -> Scene:
    """Of three on a card for two, 2 is next and does not answer any more; 3 would fit beside what 2 has there."""
    scene = Scene(declared=CARD, demand=0.3)
    scene.mover(1, 12 * GIB, works=True)
    scene.mover(2, 12 * GIB, works=True)
    scene.move_all()
    scene.mover(3, 4 * GIB, works=True)
    scene.pass_time(30.0)
    scene.release(1)
    scene.move(1, 12 * GIB)
    assert scene.memory[2, A].target == 12 * GIB
    return scene


def test_a_client_that_does_not_bring_its_memory_is_named_and_passed_over() -> None:
    scene = silent_next()
    assert scene.state(3) == "waiting"

    answers = scene.pass_time(10.0)
    for client in (1, 3):
        answers += scene.move(client, 12 * GIB)

    assert any("0000000000000002 (pid 2) does not bring 8192 MB" in text for text in said(answers, c.Level.WARN))
    assert scene.state(3) == "running"


def test_a_client_that_lives_but_finds_the_card_full_is_waited_for() -> None:
    # GIVEN the same, but the client answers that it knows its target
    scene = silent_next()
    scene.tell_memory(2)

    # WHEN nothing comes, THEN it is asked again and again, and answers
    for _ in range(3):
        answer = scene.pass_time(10.0)
        assert targets(answer) == {2: 12 * GIB}
        assert said(scene.tell_memory(2), c.Level.WARN) == []
    # AND when the card has room, it runs
    assert (2, A) in granted(scene.move(2, 12 * GIB))


def test_a_client_is_not_waited_for_because_of_memory_that_cannot_leave() -> None:
    # GIVEN a card with more on it than it has, and a client there that was told to have nothing
    scene = Scene(total=1000 * MIB)
    scene.register(1, e.HeldGpu(A, 400 * MIB, 200 * MIB), can_swap=True)
    scene.register(2, e.HeldGpu(A, 2000 * MIB, 2000 * MIB), can_swap=True)
    scene.request(2)
    assert targets(scene.request(1)) == {1: 0}
    # WHEN it says that it does, but for what others know by more than its address
    number = scene.memory[1, A].number
    scene.send(e.MemoryUpdated(scene.now, 1, A, 0, 100 * MIB, 300 * MIB, pinned=100 * MIB, applied=number))
    # THEN nobody expects more of it
    assert not [text for text in said(scene.pass_time(60.0)) if "does not give up" in text]
