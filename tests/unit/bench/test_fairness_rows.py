"""Rows of fairness: ratios, what is promised of all of them, and what processes used of a window."""

from __future__ import annotations

import pytest

from nvshare.bench.fairness.live import cores_of, used
from nvshare.bench.fairness.rows import Row, Yardstick, promises, row, summary
from nvshare.bench.fairness.tasks import LONG, RANDOM, SMALL, Task, parse_set

DUE = Yardstick((50.0, 50.0), (50.0, 40.0))
PAIR = parse_set("20+0 20+10")


def a_row(*got: float, part: str = RANDOM, native: tuple[float, float] | None = (45.0, 45.0)) -> Row:
    return row(part, PAIR, DUE, got, native)


def test_a_row_tells_the_worst_task_and_the_sum() -> None:
    found = a_row(50, 36)
    assert found.worst_ratio == pytest.approx(0.9)
    assert found.sum_ratio == pytest.approx(86 / 90)
    assert found.native_ratio == pytest.approx(0.8)
    assert found.above_cap is None
    assert (found.what, found.ok) == ("20+0 20+10", True)


def test_a_row_is_not_as_promised_where_a_task_or_the_sum_gets_too_little() -> None:
    assert a_row(50, 32).ok
    assert a_row(58, 31.9).ok is False
    assert a_row(40, 38.2).ok is False  # of sums 0.869
    assert a_row().ok is False


def test_a_task_without_a_share_is_not_judged() -> None:
    found = row(RANDOM, PAIR, Yardstick((100.0, 0.0), (100.0, 0.0)), (95.0, 0.0))
    assert (found.worst_ratio, found.ok) == (0.95, True)


def test_caps_are_compared_with_what_was_got_and_never_with_time_slicing() -> None:
    tasks = parse_set("20+0@..30 20+0@10..60 20+0")
    found = row(RANDOM, tasks, Yardstick((30.0, 60.0, 10.0), (30.0, 60.0, 10.0)), (30.5, 59.0, 9.0), (33.0, 33.0, 33.0))
    assert found.above_cap == pytest.approx(0.5)
    assert found.native_ratio is None


def test_small_bursts_are_judged_against_time_slicing_and_long_kernels_not_at_all() -> None:
    assert a_row(30, 41, part=SMALL, native=(33.0, 45.0)).ok
    assert a_row(50, 40, part=SMALL, native=(50.0, 45.0)).ok is False
    assert a_row(1, 1, part=LONG).ok is None
    assert promises([a_row(1, 1, part=LONG)]) == []
    (promise,) = promises([a_row(30, 41, part=SMALL, native=(33.0, 45.0))])
    assert (promise.ok, promise.asked) == (True, ">= 0.90")


def test_one_set_in_twenty_may_be_below_what_is_usual() -> None:
    usual, low = a_row(50, 36), a_row(55, 34)
    assert all(promise.ok for promise in promises([usual] * 19 + [low]))
    assert [promise.ok for promise in promises([usual] * 18 + [low] * 2)] == [False, True, True, True]
    assert [promise.ok for promise in promises([a_row(48, 36), a_row(44, 36)])] == [True, True, True, False]


def test_a_set_that_was_not_measured_breaks_the_promise() -> None:
    first = promises([a_row(50, 38), a_row()])[0]
    assert (first.what, first.seen, first.ok) == ("sets measured", "1 of 2", False)


def test_the_summary_is_of_all_rows() -> None:
    found = summary([a_row(50, 40), a_row(50, 36), a_row(50, 32)])
    assert (found.sets, found.above_cap) == (3, None)
    assert found.worst_ratio == found.worst_ratio_p5 == pytest.approx(0.8)
    assert found.worst_ratio_median == pytest.approx(0.9)
    assert found.sum_ratio == pytest.approx(82 / 90)
    assert found.sum_ratio_median == pytest.approx(86 / 90)
    assert summary([]).worst_ratio is None


def test_a_row_as_json_has_what_is_documented() -> None:
    written = a_row(50, 36).to_dict()
    assert written.keys() >= {"tasks", "fair", "attainable", "got", "native", "sum", "worst_ratio"}
    assert "mps" not in written
    assert written["tasks"][1] == {"gpu_ms": 20.0, "host_ms": 10.0, "floor": None, "cap": None}
    assert (written["sum"], written["worst_ratio"]) == (86.0, 0.9)


def test_bursts_over_an_edge_of_the_window_count_for_the_part_within() -> None:
    bursts = [(0.0, 2.0), (3.0, 1.0), (9.5, 2.0), (20.0, 1.0)]
    assert used(bursts, 1.0, 10.5, 0.5) == pytest.approx(100 * 0.5 * (0.5 + 1 + 0.5) / 9.5)
    assert used([], 0.0, 1.0, 0.5) == 0.0


def test_quotas_are_told_as_the_control_socket_takes_them() -> None:
    assert cores_of(Task(1, 1, cap=60)) == 60
    assert cores_of(Task(1, 1, floor=20, cap=60)) == "20..60"
    assert cores_of(Task(1, 1, floor=20)) == "20.."
