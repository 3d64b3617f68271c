"""The bucket that keeps a cap: what it lets through, in any window, and what it leaves owed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import strategies as st

from nvshare.core.compute.account import Account
from nvshare.core.compute.policy.bucket import Bucket
from nvshare.core.compute.policy.constants import ENDS_BY, GRAIN, LONGEST
from tests.unit.core.core_properties import for_all

caps = st.floats(0.01, 0.99)
gaps = st.floats(0.0, 0.5)
bursts = st.floats(GRAIN, LONGEST)


def capped(cap: float, depth: float = 0.05, level: float | None = None) -> Bucket:
    return Bucket(cap, depth, depth if level is None else level)


def slices_of(bucket: Bucket, draws: list[tuple[float, float]], late: float = 0.0) -> list[tuple[float, float]]:
    """Begin and end of slices that the bucket lets through: after a gap, a burst, which runs on for ``late``."""
    now, found = 0.0, []
    for gap, burst in draws:
        now = bucket.ready_at(burst, now + gap)
        bucket.fill(now)
        end = now + min(burst, max(bucket.lasts(now, 0.0), 0.0)) + late
        bucket.draw(end - now, end)
        found.append((now, end))
        now = end
    return found


@for_all(caps, st.floats(0.002, 0.2), st.lists(st.tuples(gaps, bursts), min_size=1, max_size=30))
def test_over_any_window_the_use_is_bounded(cap: float, depth: float, draws: list[tuple[float, float]]) -> None:
    found = slices_of(capped(cap, depth), draws)
    for first in range(len(found)):
        used = 0.0
        for begin, end in found[first:]:
            used += end - begin
            assert used <= cap * (end - found[first][0]) + depth + LONGEST + 1e-6


@for_all(caps, st.floats(0.002, 0.2), st.floats(0.0, 0.01), st.lists(st.tuples(gaps, bursts), min_size=1, max_size=30))
def test_work_that_runs_on_is_paid_back(
    cap: float, depth: float, late: float, draws: list[tuple[float, float]]
) -> None:
    found = slices_of(capped(cap, depth), draws, late)
    used = sum(end - begin for begin, end in found)
    assert used <= cap * found[-1][1] + depth + LONGEST + late + 1e-6


@for_all(caps, bursts, gaps)
def test_a_bucket_of_a_task_holds_enough_for_its_burst_in_one_piece(cap: float, burst: float, later: float) -> None:
    # GIVEN the account of a task with bursts of this length, whose bucket is empty
    account = Account(1, bucket=Bucket(cap))
    account.set_depth(burst, 0.0, 0.0)
    bucket = account.bucket
    # WHEN the bucket says that it holds enough
    ready = bucket.ready_at(burst, later)
    # THEN the burst goes through, and one that begins earlier does not
    bucket.fill(ready)
    assert bucket.lasts(ready, 0.0) >= burst - 1e-6
    assert ready == later or bucket.at(ready) == pytest.approx(burst * (1.0 - cap), abs=1e-6)


def test_a_bucket_without_a_cap_is_always_ready_and_never_empty() -> None:
    bucket = Bucket(level=-3.0)
    assert not bucket.capped
    assert bucket.ready_at(0.04, 5.0) == 5.0
    assert bucket.lasts(5.0, 1.0) == float("inf")


def test_a_bucket_fills_with_time_up_to_its_depth() -> None:
    bucket = capped(0.5, depth=0.1, level=0.0)
    assert bucket.at(0.1) == pytest.approx(0.05)
    assert bucket.at(1.0) == pytest.approx(0.1)
    bucket.fill(1.0)
    assert bucket.level == pytest.approx(0.1)
    assert bucket.filled == pytest.approx(0.5)


def test_what_was_drawn_too_much_comes_back() -> None:
    bucket = capped(0.5, depth=0.1)
    bucket.draw(0.08, 0.0)
    bucket.draw(-0.03, 0.0)
    assert bucket.level == pytest.approx(0.05)


@for_all(caps, st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5))
def test_the_largest_debt_is_paid_in_ten_seconds(cap: float, uses: list[float]) -> None:
    bucket = capped(cap)
    for used in uses:
        bucket.draw(used, 0.0)
    assert bucket.ready_at(0.0, 0.0) <= ENDS_BY + 1e-6


def test_a_debt_is_paid_at_the_rate_of_the_new_cap() -> None:
    bucket = capped(0.8, level=-0.144)
    bucket.restart(0.1, 0.0)
    assert bucket.level == pytest.approx(-0.144)
    assert bucket.ready_at(0.0, 0.0) == pytest.approx(1.44)
    bucket.restart(0.01, 0.0)
    assert bucket.level == pytest.approx(-0.1)  # never for more than ten seconds


def test_a_group_that_gets_a_cap_owes_nothing_for_the_time_before() -> None:
    bucket = Bucket(level=-3.0)
    bucket.restart(0.3, 0.0)
    assert bucket.level == GRAIN


def test_credit_that_a_smaller_bucket_does_not_hold_is_lost_at_once() -> None:
    # GIVEN the credit of a group where memory takes turns
    account = Account(1, bucket=Bucket(0.5))
    account.set_depth(LONGEST, 4.0, 0.0)
    account.bucket.fill(10.0)
    assert account.bucket.level == pytest.approx(2.0)
    # WHEN memory takes no turns any more
    account.set_depth(LONGEST, 0.0, 10.0)
    # THEN half a cycle of its cap is left, beside a slice
    assert account.bucket.level == pytest.approx(0.04 * 0.5 + 0.1 * 0.5)


def test_asking_a_bucket_changes_nothing() -> None:
    bucket = capped(0.5, level=0.01)
    before = replace(bucket)
    bucket.at(1.0)
    bucket.ready_at(0.03, 1.0)
    bucket.lasts(1.0, 0.001)
    assert [getattr(bucket, each.name) for each in fields(bucket)] == [
        getattr(before, each.name) for each in fields(before)
    ]
