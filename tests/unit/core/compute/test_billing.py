"""What a group is charged for a slice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from nvshare.core.compute.policy.bill import Usage, bill
from nvshare.core.compute.policy.constants import ENDS_BY, GRAIN
from tests.unit.core.core_properties import for_all

seconds = st.floats(0.0, 20.0)
usages = st.builds(Usage, st.floats(-5.0, 1e9), seconds, seconds, seconds, seconds)


def test_a_client_is_billed_for_what_it_says_it_used() -> None:
    assert bill(Usage(said=0.013, elapsed=0.02)) == 0.013


def test_nobody_is_billed_for_more_than_the_time_that_passed() -> None:
    assert bill(Usage(said=1e6, elapsed=0.02)) == 0.02


def test_a_negative_use_is_none() -> None:
    assert bill(Usage(said=-1.0, elapsed=0.02)) == 0.0


def test_who_keeps_others_waiting_pays_for_it_whatever_it_says() -> None:
    assert bill(Usage(said=0.0, elapsed=0.05, kept_waiting=0.03)) == pytest.approx(0.03 - GRAIN)
    assert bill(Usage(said=0.04, elapsed=0.05, kept_waiting=0.03)) == 0.04
    assert bill(Usage(said=0.0, elapsed=0.05, kept_waiting=9.0)) == 0.05


def test_a_moment_in_which_others_wait_for_work_in_flight_costs_nothing() -> None:
    assert bill(Usage(said=0.0, elapsed=0.05, kept_waiting=GRAIN)) == 0.0


def test_two_that_share_the_card_pay_for_half_of_it_each() -> None:
    assert bill(Usage(said=0.05, elapsed=0.05, overlapped=0.01)) == pytest.approx(0.045)
    assert bill(Usage(said=0.05, elapsed=0.05, overlapped=9.0)) == pytest.approx(0.025)


def test_what_is_in_flight_is_billed_before_it_ends() -> None:
    assert bill(Usage(said=0.02, elapsed=0.02, pending=0.003)) == pytest.approx(0.023)
    assert bill(Usage(said=0.0, elapsed=0.02, pending=1e6)) == ENDS_BY


@for_all(usages)
def test_a_bill_is_between_half_of_the_use_and_all_that_passed_and_is_pending(usage: Usage) -> None:
    used = min(max(usage.said, 0.0), usage.elapsed)
    assert used / 2 - 1e-9 <= bill(usage) <= usage.elapsed + min(usage.pending, ENDS_BY) + 1e-9


@for_all(usages, seconds)
def test_who_says_that_it_used_less_never_gains_more_than_that(usage: Usage, more: float) -> None:
    higher = bill(replace(usage, said=usage.said + more))
    assert bill(usage) - 1e-6 <= higher <= bill(usage) + more + 1e-6
