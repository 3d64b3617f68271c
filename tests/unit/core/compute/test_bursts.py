"""What is learnt of bursts and host phases, and what is expected from that."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from nvshare.core.compute.policy.constants import LONG, OFTEN, PAUSE
from nvshare.core.compute.policy.rhythm import BUSY, Rhythm
from tests.unit.core.core_properties import for_all


class Task:
    """Uses the card as the scheduler sees it."""

    def __init__(self) -> None:
        self.rhythm = Rhythm()
        self.now = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.rhythm.used(seconds)

    def pause(self, seconds: float) -> bool:
        """True: it was a host phase."""
        self.rhythm.ended(self.now)
        self.now += seconds
        return self.rhythm.resumed(self.now)

    def rounds(self, count: int, burst: float, host: float) -> Rhythm:
        for _ in range(count):
            self.work(burst)
            self.pause(host)
        return self.rhythm


def test_a_client_of_which_nothing_is_known_counts_as_always_busy() -> None:
    rhythm = Rhythm()
    assert (rhythm.want, rhythm.left, rhythm.burst) == (1.0, BUSY, BUSY)
    assert not rhythm.thinks
    assert not rhythm.brief
    assert rhythm.patience == PAUSE


def test_one_burst_and_its_host_phase_tell_what_a_client_wants() -> None:
    rhythm = Task().rounds(1, 0.005, 0.015)
    assert rhythm.want == pytest.approx(0.25)
    assert rhythm.left == pytest.approx(0.005)
    assert rhythm.thinks


def test_bursts_are_averaged_over_the_last_four() -> None:
    task = Task()
    task.rounds(4, 0.1, 0.9)
    assert task.rounds(2, 0.02, 0.02).burst == pytest.approx(0.06)
    assert task.rounds(2, 0.02, 0.02).burst == pytest.approx(0.02)
    assert task.rhythm.want == pytest.approx(0.5)


def test_a_gap_of_less_than_a_millisecond_belongs_to_the_burst() -> None:
    # GIVEN a client that hesitates within its bursts
    task = Task()
    task.work(0.004)
    # WHEN it goes on after a short gap; THEN no burst has ended
    assert not task.pause(0.0009)
    task.work(0.004)
    assert task.pause(0.01)
    assert list(task.rhythm.bursts) == [pytest.approx(0.008)]
    assert list(task.rhythm.hosts) == [pytest.approx(0.01)]


def test_time_that_a_client_waits_for_the_card_is_no_host_phase() -> None:
    task = Task()
    task.work(0.004)
    task.pause(0.01)
    task.now += 5.0  # it waits for a slice
    assert not task.rhythm.resumed(task.now)
    task.work(0.004)
    task.pause(0.01)
    assert list(task.rhythm.hosts) == [pytest.approx(0.01)] * 2


def test_a_request_while_work_goes_on_begins_no_burst() -> None:
    task = Task()
    task.work(0.04)
    assert not task.rhythm.resumed(task.now)
    task.work(0.04)
    task.pause(0.01)
    assert task.rhythm.burst == pytest.approx(0.08)


def test_what_is_left_of_a_burst_falls_with_use() -> None:
    task = Task()
    task.rounds(2, 0.02, 0.01)
    task.work(0.015)
    assert task.rhythm.left == pytest.approx(0.005)
    task.work(0.008)
    assert task.rhythm.left == 0.0


def test_a_burst_that_does_not_end_is_expected_to_take_as_long_again() -> None:
    # GIVEN a client with bursts of 20 ms
    task = Task()
    task.rounds(4, 0.02, 0.02)
    # WHEN one goes on for much longer
    task.work(0.06)
    # THEN as much is expected again, and it wants more of the card
    assert task.rhythm.left == pytest.approx(0.06)
    assert task.rhythm.burst == pytest.approx(0.06)
    assert task.rhythm.want == pytest.approx(0.75)
    assert task.rhythm.thinks
    # AND one that goes on for longer than a tenth of a second is that of a busy client
    task.work(LONG)
    assert not task.rhythm.thinks


def test_what_was_learnt_is_forgotten_after_a_long_sleep() -> None:
    task = Task()
    task.rounds(4, 0.005, 0.01)
    task.work(0.005)
    assert task.pause(2.1)
    assert (task.rhythm.want, task.rhythm.left) == (1.0, BUSY)


def test_a_client_that_computes_for_much_longer_than_before_counts_as_busy() -> None:
    task = Task()
    task.rounds(4, 0.03, 0.03)
    task.work(0.11)
    assert task.rhythm.known
    task.work(0.02)
    assert (task.rhythm.want, task.rhythm.left) == (1.0, BUSY)


def test_a_client_that_hardly_pauses_does_not_think() -> None:
    assert not Task().rounds(4, 0.02, 0.0015).thinks
    assert Task().rounds(4, 0.02, 0.005).thinks


def test_patience_is_short_where_four_host_phases_were_long() -> None:
    task = Task()
    assert task.rounds(3, 0.005, 0.01).patience == PAUSE
    assert task.rounds(1, 0.005, 0.01).patience == 2 * OFTEN


def test_a_client_that_hesitates_is_given_time_for_eight_bursts() -> None:
    task = Task()
    task.rounds(4, 0.005, 0.01)
    task.work(0.005)
    task.pause(0.0005)
    for _ in range(8):
        assert task.rhythm.patience == PAUSE
        task.rounds(1, 0.005, 0.01)
    assert task.rhythm.patience == 2 * OFTEN


def test_bursts_are_brief_when_four_are_known_and_short() -> None:
    task = Task()
    assert not task.rounds(3, 0.001, 0.01).brief
    assert task.rounds(1, 0.001, 0.01).brief
    assert not task.rounds(4, 0.004, 0.01).brief


def test_a_correction_of_the_bill_leaves_no_negative_burst() -> None:
    task = Task()
    task.work(0.002)
    task.rhythm.used(-0.005)
    assert task.rhythm.running == 0.0
    task.pause(0.01)
    assert not task.rhythm.bursts  # a burst without use is none


@for_all(st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 0.5)), max_size=20), st.floats(0.0, 1.0))
def test_expectations_stay_within_their_bounds(rounds: list[tuple[float, float]], running: float) -> None:
    task = Task()
    for burst, host in rounds:
        task.rounds(1, burst, host)
    task.work(running)
    assert 0.0 < task.rhythm.want <= 1.0
    assert task.rhythm.left >= 0.0
    assert task.rhythm.burst >= running - 1e-9
