"""The arithmetic of ``nvshare bench compute``: speeds from marks, promised shares, percentiles."""

from __future__ import annotations

import pytest

from nvshare.bench.compute.kinds import BURSTY, KINDS, LAUNCH
from nvshare.bench.compute.shares import Change, promised, promised_over
from nvshare.bench.compute.track import Track, midmean, percentile

STEADY = Track([10.0, 11.0, 12.0, 13.0], [0, 100, 200, 300])


def test_speed_counts_parts_of_the_steps_at_the_edges_of_a_window() -> None:
    assert STEADY.speed(10.5, 12.25) == pytest.approx(100)


def test_before_the_first_mark_nothing_is_done_and_after_the_last_nothing_more() -> None:
    assert STEADY.done(9.0) == 0
    assert STEADY.done(14.0) == 300
    assert STEADY.speed(12.0, 14.0) == pytest.approx(50)


def test_a_task_that_never_finished_a_step_has_no_speed() -> None:
    assert Track([], []).speed(0.0, 1.0) == 0


def test_a_pause_at_the_edge_of_a_window_counts() -> None:
    track = Track([1.0, 1.1, 1.2, 3.0, 3.1], [1, 2, 3, 4, 5])
    assert track.longest_pause(1.0, 3.2) == pytest.approx(1.8)
    assert track.longest_pause(0.0, 1.3) == pytest.approx(1.0)
    assert track.longest_pause(3.0, 6.0) == pytest.approx(2.9)
    assert Track([], []).longest_pause(0.0, 2.0) == 2.0


def test_a_step_is_as_long_as_it_is_while_the_task_computes() -> None:
    track = Track([0.0, 0.01, 0.02, 0.2, 0.21, 0.22], [0, 2, 4, 6, 8, 10])
    assert track.step_seconds(0.0, 1.0) == pytest.approx(0.005)
    assert track.step_seconds(0.1, 0.205) is None


def test_latencies_are_those_of_bursts_wanted_within_the_window() -> None:
    track = Track([], [], [(0.9, 1.0), (1.0, 2.0), (1.9, 3.0), (2.0, 4.0)])
    assert track.latencies(1.0, 2.0) == [2.0, 3.0]


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (0, 1), (98.5, 99)])
def test_percentile_is_a_value_that_was_measured(percent: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 99)


@pytest.mark.parametrize(
    ("quotas", "shares"),
    [
        ((30,), (0.3,)),
        ((30, 60), (0.3, 0.6)),
        ((50, 60), (0.4545, 0.5455)),
        ((80, 40), (0.6667, 0.3333)),
        ((30, 60, 30, 60), (0.1667, 0.3333, 0.1667, 0.3333)),
        ((None,), (1.0,)),
        ((None, None), (0.5, 0.5)),
        ((None, 50), (0.6667, 0.3333)),
    ],
)
def test_quotas_above_the_card_are_scaled_in_proportion(
    quotas: tuple[int | None, ...], shares: tuple[float, ...]
) -> None:
    assert promised(quotas) == pytest.approx(shares, abs=1e-4)


def test_what_is_promised_over_time_follows_the_changes() -> None:
    changes = [Change(-1.0, 0, 40), Change(2.0, 0, 20), Change(6.0, 1, None), Change(9.0, 0, 100)]
    first, second = promised_over((10, 50), changes, 0.0, 8.0)
    assert first == pytest.approx((2 * 0.4 + 4 * 0.2 + 2 * 0.2 / 1.2) / 8)
    assert second == pytest.approx((6 * 0.5 + 2 * 1 / 1.2) / 8)


def test_marks_are_a_burst_or_enough_steps_not_to_cost_anything() -> None:
    assert KINDS[LAUNCH].batch(5e-6) == 300
    assert KINDS[LAUNCH].batch(0.01) == 1
    assert KINDS[BURSTY].batch(0.0017) == 6


def test_a_speed_on_the_core_counts_only_the_time_that_a_task_had_of_it() -> None:
    # GIVEN a task that had the core in every other second
    track = Track([0.0, 1.0, 2.0, 3.0, 4.0], [0, 100, 100, 200, 200], cpu=[5.0, 6.0, 6.0, 7.0, 7.0])
    assert track.speed(0.0, 4.0) == 50
    assert track.speed_on_cpu(0.0, 4.0) == 100
    assert track.speed_on_cpu(-1.0, 0.5) == 100
    assert track.speed_on_cpu(1.0, 2.0) == 0
    assert Track([], []).speed_on_cpu(0.0, 1.0) == 0


def test_the_middle_half_is_not_moved_by_what_went_wrong() -> None:
    assert midmean([1.0, 1.1, 0.9, 1.0, 0.2, 9.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert midmean([3.0]) == 3.0
