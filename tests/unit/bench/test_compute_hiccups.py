"""Whether the host stood still."""

from __future__ import annotations

import threading

import pytest

from nvshare.bench.compute.hiccups import HiccupWatch


def test_what_a_thread_woke_up_too_late_is_counted_within_the_window() -> None:
    witness = HiccupWatch()
    for woke, due in ((1.005, 1.0), (2.05, 2.0), (3.04, 3.0), (3.08, 3.0)):
        witness.note(woke, due)
    assert witness.seconds(0.0, 10.0) == pytest.approx(0.05 + 0.04 + 0.08)
    assert witness.seconds(2.02, 3.02) == pytest.approx(0.03 + 0.02 + 0.02)
    assert witness.seconds(4.0, 5.0) == 0.0


def test_no_thread_of_it_is_left() -> None:
    before = threading.active_count()
    with HiccupWatch():
        assert threading.active_count() > before
    assert threading.active_count() == before
