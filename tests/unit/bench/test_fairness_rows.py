"""Rows of fairness: ratios, what is promised of all of them, and what processes used of a window."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nvshare.bench.fairness.live import Ruler, cores_of, used
from nvshare.bench.fairness.rows import Row, Yardstick, promises, row, summary
from nvshare.bench.fairness.tasks import LONG, RANDOM, SMALL, Task, parse_set
from nvshare.bench.worker import Worker, WorkerFailed
from nvshare.report.fairness import sets_text

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


def on_card(*got: float, native: tuple[float, ...], model: tuple[float, ...] | None = None) -> Row:
    return row(RANDOM, PAIR, Yardstick(DUE.fair, DUE.attainable, model), got, native, on_card=True)


def test_a_set_on_a_real_card_is_judged_against_time_slicing_and_the_model() -> None:
    assert on_card(50, 38, native=(53, 35)).ok
    assert on_card(50, 33.9, native=(53, 33)).ok is False  # 0.85 of what is attainable
    assert on_card(46, 38, native=(56, 35)).ok is False  # 0.96 of the sum by time-slicing
    assert on_card(50, 38, native=(52, 38.5)).ok is False  # the second one lacks natively, and gains nothing
    assert on_card(50, 38, native=(53, 35), model=(46, 42)).ok
    assert on_card(50, 38, native=(53, 35), model=(44, 40)).ok is False
    found = promises([on_card(50, 38, native=(53, 35), model=(46, 42))], on_card=True)
    assert [(promise.asked, promise.seen) for promise in found] == [
        (">= 0.85", "0.950"),
        (">= 0.96", "1.000"),
        ("> 1.00", "1.086"),
        ("<= 5.0", "4.0"),
    ]


def test_caps_are_judged_on_a_real_card_where_they_leave_a_tenth_of_it() -> None:
    tasks = parse_set("20+0@..60 20+0@..30")
    due = Yardstick((60.0, 30.0), (60.0, 29.0))
    assert row(RANDOM, tasks, due, (58.0, 27.0), (45.0, 45.0), on_card=True).cap_error == pytest.approx(2.0)
    assert row(RANDOM, tasks, due, (56.0, 27.0), (45.0, 45.0), on_card=True).ok is False
    full = Yardstick((60.0, 40.0), (60.0, 40.0))
    assert row(RANDOM, tasks, full, (56.0, 36.0), (45.0, 45.0), on_card=True).cap_error is None


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


class Timed:
    """Stands for a worker: a kernel takes a while to begin, and then so long for its amount of work."""

    def __init__(self, begins: float, each: float) -> None:
        self.begins, self.each = begins, each
        self.amount = 0

    def ask(self, **command: Any) -> dict[str, float]:
        if command["do"] == "set":
            self.amount = command["amount"]
            return {}
        return {"seconds": command["steps"] * (self.begins + self.each * self.amount)}


@pytest.mark.parametrize("each", [1e-9, 65e-9, 1e-6])
def test_the_ruler_finds_the_work_of_a_kernel_of_a_given_length(each: float) -> None:
    ruler = Ruler(cast("Worker", Timed(3e-6, each)))
    assert ruler.amount(0.5e-3) == pytest.approx((0.5e-3 - 3e-6) / each, abs=1)
    assert ruler.kernel_seconds(ruler.amount(0.5e-3)) == pytest.approx(0.5e-3, rel=0.01)


def test_the_ruler_refuses_kernels_that_do_not_get_longer() -> None:
    with pytest.raises(WorkerFailed, match="is another program using this card"):
        Ruler(cast("Worker", Timed(3e-6, 0.0)))


def test_sets_are_told_in_80_columns() -> None:
    tasks = parse_set("12.3+40.1@10..100 58.9+39.9@20..60 1.5+0 20.1+0@..30 47.7+24.3@30..")
    shares = (20.0, 20.0, 20.0, 20.0, 20.0)
    note = "nvshare was not measured: the worker task 1 (nvshare) ended: it said nothing of what was wrong with it"
    found = row(RANDOM, tasks, Yardstick(shares, shares), shares, shares, shares, note=note)
    told = sets_text([found] * 120, whole=True)
    assert max(map(len, told.splitlines())) <= 80
    assert "114 other" not in told
    assert "115 other sets are better: -v shows all" in sets_text([found] * 120, whole=False)
