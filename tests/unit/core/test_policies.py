from __future__ import annotations

import pytest

from nvshare.core.policy.capacity import capacity, is_material
from nvshare.core.policy.precedence import Layers
from nvshare.core.policy.quantum import longest_turn, quantum, smoothed
from nvshare.core.policy.queue import fitting_set
from nvshare.core.settings import Settings, SwitchTime
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


def test_the_moving_average_starts_with_the_first_measurement() -> None:
    assert smoothed(0.0, 0.8) == 0.8
    assert smoothed(0.8, 0.4) == pytest.approx(0.7)


def test_a_declared_card_is_taken_at_its_word() -> None:
    assert capacity(100, 70, 50, 20) == 70
    assert capacity(100, None, 10, 20) == 70
    assert capacity(100, None, 0, 200) == 0


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
    assert alarms.clients() == frozenset()


def test_an_alarm_that_fired_can_be_set_again() -> None:
    alarms = Alarms()
    alarms.set(1, 5.0)
    alarms.pop_due(5.0)
    alarms.set(1, 7.0)

    assert alarms.next() == 7.0
    assert alarms.pop_due(7.0) == 1
