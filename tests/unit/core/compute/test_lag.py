"""Lags of a card's groups: what each is owed by the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from nvshare.core.compute.policy.lag import Standing, bounded, lag, rescaled, virtual_time
from tests.unit.core.core_properties import for_all

shares = st.floats(0.001, 1.0)
standings = st.lists(st.builds(Standing, st.floats(-100.0, 100.0), shares), min_size=1, max_size=6)
seconds = st.floats(0.0, 10.0)


def time_of(groups: list[Standing]) -> float:
    time = virtual_time(groups)
    assert time is not None
    return time


def lags(groups: list[Standing]) -> list[float]:
    return [lag(group, time_of(groups)) for group in groups]


def after_use(group: Standing, used: float) -> Standing:
    return replace(group, virtual=group.virtual + used / group.share)


def test_a_card_without_groups_has_no_virtual_time() -> None:
    assert virtual_time([]) is None


@for_all(standings, st.lists(st.tuples(st.integers(0, 5), seconds), max_size=20))
def test_lags_add_up_to_zero_whatever_was_used(groups: list[Standing], uses: list[tuple[int, float]]) -> None:
    for who, used in uses:
        groups[who % len(groups)] = after_use(groups[who % len(groups)], used)
    assert sum(lags(groups)) == pytest.approx(0.0, abs=1e-6)


@for_all(standings, seconds)
def test_what_one_uses_is_owed_to_all_in_proportion_to_their_shares(groups: list[Standing], used: float) -> None:
    before = lags(groups)
    total = sum(group.share for group in groups)
    after = lags([after_use(groups[0], used), *groups[1:]])
    gained = [one - other for one, other in zip(after, before, strict=True)]
    parts = [used * group.share / total for group in groups]
    assert gained == pytest.approx([parts[0] - used, *parts[1:]], abs=1e-6)


@for_all(standings)
def test_groups_that_use_their_shares_stay_where_they_are(groups: list[Standing]) -> None:
    assert lags([after_use(group, group.share * 3.0) for group in groups]) == pytest.approx(lags(groups), abs=1e-6)


@for_all(standings, st.lists(shares, min_size=6, max_size=6))
def test_new_shares_change_neither_lags_nor_the_virtual_time(groups: list[Standing], new: list[float]) -> None:
    time, before = time_of(groups), lags(groups)
    changed = [Standing(rescaled(group, time, share), share) for group, share in zip(groups, new, strict=False)]
    assert time_of(changed) == pytest.approx(time, abs=1e-6)
    assert lags(changed) == pytest.approx(before, abs=1e-6)


@for_all(standings, st.floats(0.01, 1.0))
def test_a_lag_within_the_bound_is_kept_and_one_beyond_it_is_cut(groups: list[Standing], most: float) -> None:
    group, time = groups[0], time_of(groups)
    cut = replace(group, virtual=bounded(group, time, most))
    assert lag(cut, time) == pytest.approx(min(max(lag(group, time), -most), most), abs=1e-6)


@for_all(standings, st.floats(0.01, 1.0))
def test_a_lag_bounded_against_the_others_is_within_the_bound_among_all(groups: list[Standing], most: float) -> None:
    assume(len(groups) > 1)
    own, *others = groups
    groups[0] = replace(own, virtual=bounded(own, time_of(others), most))
    assert abs(lags(groups)[0]) <= most + 1e-6
