"""Random sequences of events, with every invariant checked after each one; see core_world.py."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.core.core_compute_world import ComputeWorld
from tests.unit.core.core_sleep_world import SleepWorld
from tests.unit.core.core_world import STEP_RANGE, Step, World

number = st.integers(min_value=0, max_value=STEP_RANGE - 1)
steps: st.SearchStrategy[list[Step]] = st.lists(st.tuples(number, number, number, number), min_size=15, max_size=60)


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of computing; others may want the processor too
@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_any_sequence_of_events_keeps_every_invariant(sequence: list[Step]) -> None:
    World().run(sequence)


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of computing; others may want the processor too
@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_compute_slices_in_any_sequence_keep_every_invariant(sequence: list[Step]) -> None:
    ComputeWorld().run(sequence)


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of computing; others may want the processor too
@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_sleep_in_any_sequence_keeps_every_invariant(sequence: list[Step]) -> None:
    SleepWorld().run(sequence)
