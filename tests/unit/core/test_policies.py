from __future__ import annotations

import pytest

from nvshare.core.memory.policy.admission import Crowd, Denial, Holding, admit, keep_check
from nvshare.core.memory.policy.capacity import Size, capacity, is_material
from nvshare.core.memory.policy.demand import compatible, measured
from nvshare.core.memory.policy.multiprogramming import takes_turns
from nvshare.core.memory.policy.quantum import explain, longest_turn, quantum, typical
from nvshare.core.memory.policy.queue import fitting_set
from nvshare.core.memory.policy.residency import STEP, Claim, Stake, plan, steps
from nvshare.core.policy.precedence import Layers
from nvshare.core.settings import SIZE_MAX, DenyReason, Mode, Settings, SwitchTime
from nvshare.core.timers import Alarms


def test_the_fitting_set_is_the_longest_prefix_that_fits() -> None:
    assert fitting_set([3, 4, 2, 1], lambda need: need, 8) == [3, 4]
    assert fitting_set([9, 1], lambda need: need, 8) == []
    assert fitting_set([3, 5], lambda need: need, 8) == [3, 5]


def test_serial_turns_are_fitting_sets_of_one() -> None:
    assert fitting_set("abc", lambda _: 1, 1) == ["a"]
    assert fitting_set("abc", lambda _: 1, 0) == []


@pytest.mark.parametrize(
    ("stall", "expected"),
    [
        (0.0, 2.0),  # the floor
        (0.1, 5.0),  # 2 % of the time
        (100.0, 300.0),  # max runtime
    ],
)
def test_an_automatic_quantum_follows_the_cost_of_a_switch(stall: float, expected: float) -> None:
    assert quantum(Settings(switch_time=SwitchTime.AUTO), stall) == expected


def test_a_large_multiplier_makes_the_automatic_quantum_longer() -> None:
    assert quantum(Settings(switch_time=SwitchTime.AUTO, multiplier=100.0), 1.0) == 100.0


def test_a_fixed_quantum_is_bounded_by_the_max_runtime() -> None:
    assert quantum(Settings(switch_time=SwitchTime.FIXED, quantum=30.0), 5.0) == 30.0
    assert quantum(Settings(switch_time=SwitchTime.FIXED, quantum=30.0, max_runtime=10.0), 5.0) == 10.0


def test_the_bound_of_a_turn_is_its_quantum_and_its_drain() -> None:
    assert longest_turn(Settings(switch_time=SwitchTime.FIXED, quantum=30.0, drain_deadline=7.0)) == 37.0
    assert longest_turn(Settings(switch_time=SwitchTime.AUTO, drain_deadline=7.0)) == 307.0


def test_one_long_switch_does_not_make_the_turns_after_it_long() -> None:
    assert typical([]) == 0.0
    assert typical([0.8]) == 0.8
    assert typical([0.8, 0.1]) == pytest.approx(0.1)
    assert typical([0.2, 0.9, 0.1, 0.3]) == pytest.approx(0.2)


def test_a_declared_card_is_taken_at_its_word() -> None:
    assert capacity(Size(100, 70, reserve_percent=50), 20) == 70
    assert capacity(Size(100, reserve_percent=10), 20) == 70
    assert capacity(Size(100), 200) == 0


def test_only_material_changes_of_an_undeclared_card_are_told() -> None:
    assert not is_material(1000, 999, 1024, None)
    assert is_material(1000, 997, 1024, None)
    assert is_material(1000, 999, 1024, 999)


def test_the_environment_counts_only_where_nobody_set_a_value() -> None:
    layers: Layers[int] = Layers()
    layers.start_with(3)
    layers.start_with(5)
    assert layers.effective == 3
    layers.opened = 7
    assert layers.effective == 7
    layers.operator = 1
    assert layers.effective == 1


def test_a_quantum_alone_makes_it_the_fixed_one() -> None:
    changed = Settings(switch_time=SwitchTime.AUTO).changed(quantum=12.0)

    assert (changed.switch_time, changed.quantum) == (SwitchTime.FIXED, 12.0)


def test_alarms_come_in_order_of_time_however_often_they_are_moved() -> None:
    alarms = Alarms()
    alarms.set(1, 5.0)
    alarms.set(2, 3.0)
    alarms.set(1, 1.0)
    alarms.set(2, 4.0)
    alarms.set(3, 2.0)
    alarms.set(3, None)

    assert alarms.next() == 1.0
    assert alarms.pop_due(0.5) is None
    assert [alarms.pop_due(9.0), alarms.pop_due(9.0), alarms.pop_due(9.0)] == [1, 2, None]
    assert alarms.owners() == frozenset()


def test_an_alarm_that_fired_can_be_set_again() -> None:
    alarms = Alarms()
    alarms.set(1, 5.0)
    alarms.pop_due(5.0)
    alarms.set(1, 7.0)

    assert alarms.next() == 7.0
    assert alarms.pop_due(7.0) == 1


@pytest.mark.parametrize(
    ("stall", "said"),
    [
        (0.0, "the shortest; a switch stalls the card for 0.000 s"),
        (0.2, "a switch stalls the card for 0.200 s, 2% of the time at most"),
        (9.0, "the longest allowed; a switch stalls the card for 9.000 s"),
    ],
)
def test_a_quantum_is_explained(stall: float, said: str) -> None:
    assert explain(Settings(switch_time=SwitchTime.AUTO), stall) == said
    assert (
        explain(Settings(switch_time=SwitchTime.AUTO, multiplier=100.0), 1.0) == "100 x the stall of a switch (1.000 s)"
    )


def stake(claim: Claim, want: int, bound: int, held: int | None = None, fixed: int = 0, idle: bool = True) -> Stake:
    return Stake(claim, want, fixed, bound, bound if held is None else held, idle and claim is not Claim.RUNS)


def test_a_plan_takes_from_the_last_what_the_first_need_and_no_more() -> None:
    stakes = [
        stake(Claim.RUNS, 5, 5),
        stake(Claim.NEXT, 6, 2),
        stake(Claim.NEXT, 4, 4),
        stake(Claim.SPARE, 3, 3),
        stake(Claim.SPARE, 2, 2),
    ]

    assert plan(stakes, 16) == [5, 6, 4, 1, 0]
    assert plan(stakes, 18) == [5, 6, 4, 3, 0]
    assert plan(stakes, 12) == [5, 6, 1, 0, 0]


def test_a_plan_moves_nothing_while_nobody_who_waits_lacks_anything() -> None:
    stakes = [stake(Claim.RUNS, 5, 5), stake(Claim.SPARE, 8, 3), stake(Claim.SPARE, 9, 9)]

    assert plan(stakes, 17) == [5, 3, 9]
    assert plan(stakes, 10) == [5, 3, 9]


def test_spare_room_goes_to_those_who_ran_last() -> None:
    assert plan([stake(Claim.SPARE, 8, 3), stake(Claim.SPARE, 9, 1)], 10) == [8, 2]


def test_one_that_does_not_answer_is_offered_nothing_and_keeps_no_spare_room_from_others() -> None:
    silent = Stake(Claim.SPARE, want=8, fixed=5, bound=2, held=5, silent=True)
    stakes = [silent, stake(Claim.SPARE, 9, 1)]

    assert plan(stakes, 14) == [5, 9]
    assert steps(stakes, plan(stakes, 14), 14) == [(1, 9)]


def test_pinned_bytes_are_set_aside_for_all() -> None:
    stakes = [stake(Claim.NEXT, 10, 0), stake(Claim.SPARE, 8, 8, fixed=5)]

    assert plan(stakes, 12) == [7, 5]


def test_a_raise_is_paid_from_confirmed_room_only() -> None:
    unit = STEP
    stakes = [stake(Claim.NEXT, 12 * unit, 4 * unit), stake(Claim.SPARE, 12 * unit, 4 * unit, held=9 * unit)]

    goals = plan(stakes, 16 * unit)

    assert goals == [12 * unit, 4 * unit]
    assert steps(stakes, goals, 16 * unit) == [(0, 7 * unit)]
    assert steps(stakes, goals, 13 * unit + unit // 2) == []


def test_lowerings_come_first_and_not_while_the_client_drains() -> None:
    stakes = [stake(Claim.NEXT, 12, 4), stake(Claim.SPARE, 12, 12), stake(Claim.SPARE, 4, 0)]
    draining = [stakes[0], stake(Claim.SPARE, 12, 12, idle=False), stakes[2]]

    assert steps(stakes, plan(stakes, 16), 16) == [(1, 4)]
    assert steps(draining, plan(draining, 16), 16) == []


def test_a_raise_that_completes_is_worth_a_message_however_small() -> None:
    assert steps([stake(Claim.NEXT, 5, 4)], [5], 5) == [(0, 5)]
    assert steps([stake(Claim.NEXT, 9, 4)], [9], 5) == []


def crowd(own: Holding, *others: Holding, makes_room: bool = True, budget: int | None = None) -> Crowd:
    """A card of 10 bytes; 5 bytes would be in host memory."""
    return Crowd(10, own, others, makes_room, budget, 5)


PINNED, MOVING, OVERSIZE = Holding(4, 4, False), Holding(4, 0, False), Holding(4, 0, True)


@pytest.mark.parametrize(
    ("card", "size", "movable", "refused"),
    [
        (None, 99, True, None),
        (crowd(MOVING, PINNED), 2, True, None),
        (crowd(MOVING, PINNED), 3, True, DenyReason.CARD),
        (crowd(PINNED, MOVING), 2, False, None),
        (crowd(PINNED, MOVING), 3, False, DenyReason.CARD),  # the other client could no longer run
        (crowd(PINNED, OVERSIZE), 6, False, None),
        (crowd(OVERSIZE, PINNED), SIZE_MAX - 4, True, None),
        (crowd(OVERSIZE, PINNED), SIZE_MAX - 3, True, DenyReason.CARD),
        (crowd(OVERSIZE, PINNED), 3, False, None),
        (crowd(MOVING, MOVING, makes_room=False), 0, True, DenyReason.CARD),
        (crowd(MOVING, budget=5), 1, True, None),
        (crowd(MOVING, budget=4), 1, True, DenyReason.HOST),
    ],
)
def test_a_request_is_admitted_where_every_client_can_still_run(
    card: Crowd | None, size: int, movable: bool, refused: DenyReason | None
) -> None:
    denial = admit(size, movable, None, 0, card)
    assert (denial.reason if denial is not None else None) is refused


def test_a_quota_counts_what_the_group_has_and_waits_for_and_is_named_first() -> None:
    assert admit(3, True, 10, 7, None) is None
    full = crowd(MOVING, PINNED, makes_room=False)
    assert admit(4, True, 10, 7, full) == Denial(DenyReason.QUOTA, 10)


def test_memory_may_stay_for_good_while_every_other_client_can_still_run() -> None:
    assert keep_check(crowd(PINNED, MOVING), 2) is None
    assert keep_check(crowd(PINNED, MOVING), 3) == Denial(DenyReason.CARD, 10)
    assert keep_check(crowd(MOVING, OVERSIZE), 10) is None


@pytest.mark.parametrize(
    ("mode", "asked", "missing", "turns"),
    [
        (Mode.AUTO, 10, True, False),
        (Mode.AUTO, 11, True, True),
        (Mode.AUTO, 11, False, False),  # adopted beyond the limit, but all of it is on the card
        (Mode.CONCURRENT, 11, True, True),
        (Mode.SERIAL, 0, False, True),
    ],
)
def test_turns_begin_where_memory_does_not_fit_and_some_is_missing(
    mode: Mode, asked: int, missing: bool, turns: bool
) -> None:
    assert takes_turns(mode, asked, 10, missing) is turns


def test_turns_overlap_as_long_as_their_demands_fit_the_card() -> None:
    assert compatible([0.4, 0.4, 0.4], []) == 2
    assert compatible([0.4], [0.8]) == 0
    assert compatible([1.0], []) == 1
    assert compatible([], [0.5]) == 0


def test_demand_is_a_moving_average_over_two_seconds() -> None:
    assert measured(1.0, 0.25, 0.5) == pytest.approx(0.875)
    assert measured(1.0, 1.0, 4.0) == 0.25
    assert measured(0.3, 1.0, 0.0) == 0.3
