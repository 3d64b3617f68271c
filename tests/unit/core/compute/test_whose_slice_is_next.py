"""Whose slice is next, and how long the holder of a slice goes on beside those who wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from nvshare.core.compute.policy.constants import CYCLE, GRAIN, LONGEST, SLICE
from nvshare.core.compute.policy.lag import virtual_time
from nvshare.core.compute.policy.order import NEVER, Claim, goes_on, next_claim, slice_of
from tests.unit.core.core_properties import for_all

BUSY = float("inf")  # what is left of a burst that does not end
QUARTER, HALF = SLICE / 4, SLICE / 2


def claim(owed: float = 0.0, *, share: float = 0.5, left: float = BUSY, woke: bool = False, **more: object) -> Claim:
    """Of a group that is owed so many seconds at virtual time 0."""
    return Claim(-owed / share, share, left, woke, **more)  # type: ignore[arg-type]


def first(*claims: Claim, longest: float = SLICE) -> int:
    return next_claim(claims, 0.0, longest)


# --- whose slice is next


def test_a_group_that_is_owed_goes_before_one_that_owes() -> None:
    assert first(claim(-0.001, left=0.001), claim(0.001)) == 1


def test_among_those_that_are_owed_the_earliest_deadline_goes_first() -> None:
    # A short burst has an early deadline, although another is owed a little more.
    assert first(claim(0.012), claim(0.01, left=0.002)) == 1
    assert first(claim(0.04), claim(0.01, left=0.002)) == 0


def test_where_all_owe_the_one_that_owes_least_goes_first() -> None:
    assert first(claim(-0.03, left=0.001), claim(-0.02), claim(-0.04)) == 1


def test_of_equals_the_first_that_asked_goes_first() -> None:
    assert first(claim(), claim(), claim()) == 0


def test_a_client_of_high_priority_has_a_head_start_of_the_longest_slice() -> None:
    assert first(claim(), claim(-0.039, urgent=True)) == 1
    assert first(claim(0.03), claim(-0.06, urgent=True)) == 0


# --- how long a slice is


@pytest.mark.parametrize(("share", "length"), [(1.0, SLICE), (0.1, SLICE), (0.05, 0.01), (0.01, GRAIN), (0.001, GRAIN)])
def test_a_slice_is_a_part_of_the_cycle_and_not_too_short(share: float, length: float) -> None:
    assert slice_of(share, SLICE) == pytest.approx(length)


def test_without_rivals_a_slice_goes_on() -> None:
    assert goes_on(claim(), 5.0, [], SLICE) == NEVER


def test_equal_busy_tasks_have_whole_slices() -> None:
    assert goes_on(claim(), 0.0, [claim()], SLICE) == pytest.approx(SLICE)
    assert goes_on(claim(), 0.005, [claim()], LONGEST) == pytest.approx(LONGEST - 0.005)


def test_a_holder_that_is_owed_goes_on_until_its_rival_is_owed_more() -> None:
    # A rival of the same length is owed a whole slice more than at the start; half of one is enough.
    assert goes_on(claim(0.05), 0.0, [claim()], SLICE) == pytest.approx(0.05 + HALF)
    assert goes_on(claim(0.05, left=0.001), 0.0, [claim()], SLICE) == pytest.approx(0.05 + SLICE)


def test_claims_of_one_group_take_turns_by_slices() -> None:
    holder, rival = claim(0.05, group=1), claim(0.05, group=1, left=0.001, woke=True)
    assert goes_on(holder, 0.005, [rival], SLICE) == pytest.approx(SLICE - 0.005)


def test_the_first_of_several_rivals_ends_the_slice() -> None:
    rivals = [claim(-0.5), claim(QUARTER - 0.003, left=0.001, woke=True), claim()]
    assert goes_on(claim(), GRAIN, rivals, SLICE) == pytest.approx(0.003)


# --- wakers


def test_a_waker_that_is_owed_a_quarter_of_a_slice_takes_the_card() -> None:
    waker = claim(QUARTER, left=0.005, woke=True)
    assert goes_on(claim(), GRAIN, [waker], SLICE) == 0.0


def test_a_slice_lasts_for_two_milliseconds_although_a_waker_comes() -> None:
    waker = claim(0.05, left=0.005, woke=True)
    assert goes_on(claim(), 0.0005, [waker], SLICE) == pytest.approx(GRAIN - 0.0005)


def test_a_waker_that_is_owed_less_waits_until_it_is_owed_a_quarter() -> None:
    waker = claim(0.002, left=0.005, woke=True)
    assert goes_on(claim(), GRAIN, [waker], SLICE) == pytest.approx(QUARTER - 0.002)


def test_a_waker_with_a_longer_burst_than_is_left_waits_until_it_is_owed_a_whole_slice() -> None:
    waker = claim(QUARTER, left=0.05, woke=True)
    assert goes_on(claim(left=0.03), GRAIN, [waker], SLICE) == pytest.approx(SLICE - QUARTER)


def test_a_waker_that_is_owed_a_whole_slice_takes_the_card_whatever_its_burst() -> None:
    holder, waker = claim(left=0.03), claim(SLICE, left=0.05, woke=True)
    assert goes_on(holder, GRAIN, [waker], SLICE) == 0.0


def test_a_long_burst_waits_for_a_short_one_until_it_is_owed_a_whole_slice() -> None:
    holder, rival = claim(0.01, left=0.01), claim(0.0)
    assert goes_on(holder, 0.0, [rival], SLICE) == pytest.approx(0.01 + SLICE)
    assert goes_on(replace(holder, left=BUSY), 0.0, [rival], SLICE) == pytest.approx(SLICE)


def test_one_that_did_not_wake_takes_no_slice_away() -> None:
    assert goes_on(claim(), 0.005, [claim(0.08, left=0.001)], SLICE) == pytest.approx(SLICE - 0.005)


def test_high_priority_takes_the_card_when_it_wakes_unless_it_owes_more_than_its_head_start() -> None:
    assert goes_on(claim(), 0.0, [claim(-0.03, woke=True, urgent=True)], SLICE) == 0.0
    assert goes_on(claim(), 0.0, [claim(-0.05, woke=True, urgent=True)], SLICE) == pytest.approx(0.01)


def test_between_two_of_high_priority_the_waker_waits_like_any_other() -> None:
    waker = claim(left=1.0, woke=True, urgent=True)
    assert goes_on(claim(urgent=True), GRAIN, [waker], SLICE) == pytest.approx(QUARTER)


# --- together


def slices_taken(shares: list[float], seconds: float, longest: float = LONGEST) -> list[tuple[int, float, float]]:
    """Who has the card, from when and to when, where all always want it."""
    virtual, taken, now = [0.0] * len(shares), [], 0.0
    while now < seconds:
        claims = [Claim(virtual[who], share, BUSY, group=who + 1) for who, share in enumerate(shares)]
        holder = next_claim(claims, virtual_time(claims) or 0.0, longest)
        rivals = [claim for who, claim in enumerate(claims) if who != holder]
        length = goes_on(claims[holder], 0.0, rivals, longest)
        taken.append((holder, now, now + length))
        virtual[holder] += length / shares[holder]
        now += length
    return taken


def test_equal_tasks_alternate() -> None:
    taken = slices_taken([0.5, 0.5], 2.0)
    assert [who for who, _, _ in taken] == [0, 1] * (len(taken) // 2)
    # The second begins owed what the first had: its first slice is longer.
    assert [end - begin for _, begin, end in taken[:2]] == pytest.approx([LONGEST, 1.5 * LONGEST])
    assert all(end - begin == pytest.approx(LONGEST) for _, begin, end in taken[2:])


@pytest.mark.parametrize(
    "shares", [[0.9, 0.1], [0.99, 0.01], [0.49, 0.49, 0.02], [0.3, 0.3, 0.3, 0.1], [0.96, 0.01, 0.01, 0.02]]
)
def test_every_task_has_a_slice_in_a_cycle_whatever_its_share(shares: list[float]) -> None:
    taken = slices_taken(shares, 4.0)
    for who in range(len(shares)):
        begins = [begin for holder, begin, _ in taken if holder == who]
        pauses = [after - before for before, after in pairwise(begins)]
        assert max(pauses) <= 1.5 * CYCLE, f"{who} of {shares}"
        assert sum(pauses) / len(pauses) <= CYCLE + 0.005


@for_all(st.lists(st.floats(0.02, 1.0), min_size=2, max_size=5))
def test_busy_tasks_share_the_card_by_their_shares(weights: list[float]) -> None:
    shares = [weight / sum(weights) for weight in weights]
    taken = slices_taken(shares, 5.0)
    for who, share in enumerate(shares):
        used = sum(end - begin for holder, begin, end in taken if holder == who)
        assert abs(used - share * taken[-1][2]) <= 2 * LONGEST


claims = st.builds(
    Claim,
    st.floats(-1.0, 1.0),
    st.floats(0.001, 1.0),
    st.one_of(st.just(BUSY), st.floats(0.0, 1.0)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)


@for_all(claims, st.floats(0.0, 0.1), st.lists(claims, max_size=4))
def test_a_slice_ends_at_some_time_and_none_ends_in_the_past(holder: Claim, since: float, rivals: list[Claim]) -> None:
    more = goes_on(holder, since, rivals, SLICE)
    assert more >= 0.0
    assert (more == NEVER) is (not rivals)
