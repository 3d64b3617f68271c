"""Which kind a client is found to be, and where clients take slices."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from nvshare.core.compute.policy.constants import BUSY_ABOVE, EVIDENCE, LAUNCH_BOUND_BELOW
from nvshare.core.compute.policy.regime import Evidence, Kind, contended
from nvshare.core.settings import Mode
from tests.unit.core.core_properties import for_all


def judged(before: Kind, ratio: float) -> Kind | None:
    evidence = Evidence()
    evidence.add(EVIDENCE, EVIDENCE * ratio)
    return evidence.verdict(before)


@pytest.mark.parametrize(
    ("before", "ratio", "verdict"),
    [
        (Kind.UNKNOWN, 0.59, Kind.LAUNCH_BOUND),
        (Kind.UNKNOWN, 0.61, Kind.BUSY),
        (Kind.BUSY, 0.59, Kind.LAUNCH_BOUND),
        (Kind.BUSY, 0.61, Kind.BUSY),
        (Kind.LAUNCH_BOUND, 0.74, Kind.LAUNCH_BOUND),
        (Kind.LAUNCH_BOUND, 0.76, Kind.BUSY),
    ],
)
def test_a_kind_changes_only_beyond_the_other_bound(before: Kind, ratio: float, verdict: Kind) -> None:
    assert judged(before, ratio) is verdict


def test_nobody_is_judged_by_little_evidence() -> None:
    evidence = Evidence()
    evidence.add(0.9 * EVIDENCE, 0.0)
    assert evidence.verdict(Kind.UNKNOWN) is None
    evidence.add(0.1 * EVIDENCE + 1e-9, 0.0)
    assert evidence.verdict(Kind.UNKNOWN) is Kind.LAUNCH_BOUND


def test_what_led_to_a_verdict_counts_half_in_the_next_one() -> None:
    # GIVEN a client that was launch-bound for so long
    evidence = Evidence()
    evidence.add(0.1, 0.0)
    assert evidence.verdict(Kind.UNKNOWN) is Kind.LAUNCH_BOUND
    # WHEN it keeps the card busy; THEN it is believed when that is more than three quarters
    evidence.add(0.1, 0.1)
    assert evidence.verdict(Kind.LAUNCH_BOUND) is Kind.LAUNCH_BOUND
    evidence.add(0.1, 0.1)
    assert evidence.verdict(Kind.LAUNCH_BOUND) is Kind.BUSY


def test_a_card_is_at_work_for_no_longer_than_it_was_used() -> None:
    evidence = Evidence()
    evidence.add(0.1, 5.0)
    assert evidence.busy == evidence.used == 0.1


@for_all(st.floats(LAUNCH_BOUND_BELOW, BUSY_ABOVE), st.sampled_from([Kind.BUSY, Kind.LAUNCH_BOUND]))
def test_between_the_bounds_a_client_stays_what_it_is(ratio: float, before: Kind) -> None:
    assert judged(before, min(ratio, BUSY_ABOVE - 1e-9) + 1e-10) is before


def test_clients_with_short_bursts_and_launch_bound_ones_are_left_to_run_beside_others() -> None:
    assert {kind for kind in Kind if kind.free} == {Kind.BRIEF, Kind.LAUNCH_BOUND}


@pytest.mark.parametrize(
    ("mode", "busy", "promised", "slices"),
    [
        (Mode.AUTO, 2, False, True),
        (Mode.AUTO, 1, True, False),
        (Mode.AUTO, 0, False, False),
        (Mode.CONCURRENT, 2, False, False),
        (Mode.CONCURRENT, 2, True, True),
        (Mode.SERIAL, 3, False, False),
    ],
)
def test_clients_without_quotas_take_slices_where_two_keep_the_card_busy(
    mode: Mode, busy: int, promised: bool, slices: bool
) -> None:
    assert contended(mode, busy, promised) is slices
