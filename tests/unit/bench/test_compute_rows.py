"""How the rows of ``nvshare bench compute`` are judged, by made-up figures."""

from __future__ import annotations

import json

import pytest

from nvshare.bench.compute import rows
from nvshare.bench.compute.track import Track

CYCLE = 0.2  # seconds in which a task gets its share
STEPS_PER_SECOND = 500.0


@pytest.mark.parametrize(
    ("quotas", "delivered", "ok"),
    [
        ((30,), (0.309,), True),
        ((30,), (0.311,), False),
        ((90,), (0.889,), False),
        ((30, 60), (0.295, 0.595), True),
        ((30, 60), (0.291, 0.588), False),  # each is within a point, their sum is not
        ((50, 60), (0.4545, 0.5455), True),
        ((50, 60), (0.50, 0.50), False),
        ((10,), (0.0970,), False),  # within a point, but less than it may have
    ],
)
def test_each_task_has_its_quota_and_all_have_what_they_may(
    quotas: tuple[int, ...], delivered: tuple[float, ...], ok: bool
) -> None:
    assert rows.quota_row("pairs", "add", quotas, delivered).ok is ok


def test_a_launch_bound_task_has_two_points() -> None:
    assert rows.quota_row("quotas", "tiny", (50,), (0.485,), launch_bound=True).ok
    assert not rows.quota_row("quotas", "tiny", (50,), (0.475,), launch_bound=True).ok


def test_a_row_tells_error_and_sum_in_its_json() -> None:
    content = rows.quota_row("pairs", "add", (50, 60), (0.46, 0.53)).to_dict()
    assert json.loads(json.dumps(content))["error_points"] == 1.55
    assert content["of_allowed"] == 0.99
    assert content["expected"] == [0.4545, 0.5455]
    assert content["ok"] is False


@pytest.mark.parametrize(
    ("how", "delivered", "ok"),
    [
        ("nvshare", (0.495, 0.49), True),
        ("nvshare", (0.50, 0.47), False),
        ("nvshare", (0.52, 0.48), False),
        ("native", (0.45, 0.45), None),
    ],
)
def test_busy_tasks_have_the_whole_card_in_equal_parts(how: str, delivered: tuple[float, ...], ok: bool | None) -> None:
    assert rows.busy_row("2 x add", how, delivered).ok is ok


def test_launch_bound_tasks_are_compared_with_what_they_reach_natively() -> None:
    assert rows.beside_native_row("2 x tiny", "nvshare", (0.99, 1.01), (1.03, 1.03)).ok
    assert not rows.beside_native_row("2 x tiny", "nvshare", (0.99, 1.0), (1.03, 1.03)).ok
    assert rows.beside_native_row("2 x tiny", "concurrent", (0.1, 0.1), (1.0, 1.0)).ok is None


def test_of_unequal_tasks_neither_may_lose() -> None:
    assert rows.not_worse_row("add + tiny", "nvshare", (0.89, 0.79), (0.90, 0.80)).ok
    assert not rows.not_worse_row("add + tiny", "nvshare", (0.95, 0.78), (0.90, 0.80)).ok


def test_mostly_idle_tasks_take_hardly_longer_than_alone() -> None:
    assert rows.idle_row("3 x idle", "nvshare", (1.01, 1.0, 0.99), judged=True).ok
    assert not rows.idle_row("3 x idle", "nvshare", (1.02, 1.0, 1.0), judged=True).ok
    assert not rows.idle_row("3 x idle", "nvshare", (None, 1.0, 1.0), judged=True).ok
    assert rows.idle_row("3 x idle", "native", (1.05, 1.05, 1.05), judged=False).ok is None


def test_slow_bursts_count_against_a_typical_one_alone() -> None:
    solo = [0.005] * 99 + [0.050]
    busy = [0.006] * 95 + [0.012] * 5
    row = rows.burst_row("interactive", "nvshare", busy, solo, 0.9, 2.4)
    assert row.ok
    assert (row.figures["p50_ms"], row.figures["p99_ms"], row.figures["p99_times_solo"]) == (6.0, 12.0, 2.4)
    assert not rows.burst_row("interactive", "nvshare", [*busy, 0.013, 0.013], solo, 0.9, 2.4).ok
    assert not rows.burst_row("interactive", "nvshare", busy, solo, 0.87, 2.4).ok
    assert rows.burst_row("interactive", "nvshare", busy, solo, 0.9, None).ok is None


def test_an_interactive_task_that_never_came_to_an_end_fails() -> None:
    row = rows.burst_row("interactive", "nvshare", [], [0.005], 0.9, None)
    assert (row.ok, row.note) == (False, "no burst ended")


def in_turns(shares: list[tuple[float, float]], end: float) -> Track:
    """A task whose share changes at these moments: at the begin of each cycle it runs, then it waits."""
    times: list[float] = []
    counts: list[int] = []
    done = cycle = 0
    while cycle * CYCLE < end:
        began = cycle * CYCLE
        share = [share for at, share in shares if at <= began + 1e-9][-1]
        for step in range(round(share * CYCLE * STEPS_PER_SECOND)):
            done += 1
            times.append(began + (step + 1) / STEPS_PER_SECOND)
            counts.append(done)
        cycle += 1
    return Track(times, counts)


@pytest.mark.parametrize(("old", "new"), [(0.3, 0.8), (0.8, 0.2), (0.9, 0.5), (0.5, 0.25), (0.1, 0.9)])
@pytest.mark.parametrize("delay", [0.0, 0.2, 0.6])
def test_a_change_of_quota_shows_when_the_turns_follow_it(old: float, new: float, delay: float) -> None:
    track = in_turns([(0.0, old), (2.0 + delay, new)], 4.0)
    after = rows.shown_after(track, 2.0, 4.0, STEPS_PER_SECOND, old, new)
    assert after is not None
    assert max(0.0, delay - CYCLE) <= after <= delay + CYCLE / 2


def test_a_change_that_is_not_carried_out_never_shows() -> None:
    track = in_turns([(0.0, 1.0)], 4.0)
    assert rows.shown_after(track, 2.0, 4.0, STEPS_PER_SECOND, 0.1, 0.9) is None


def test_a_change_that_does_not_last_never_shows() -> None:
    track = in_turns([(0.0, 0.3), (2.0, 0.8), (2.6, 0.3)], 4.0)
    assert rows.shown_after(track, 2.0, 4.0, STEPS_PER_SECOND, 0.3, 0.8) is None


def test_changes_have_300_milliseconds_to_show() -> None:
    steps = [(0.3, 0.8), (0.8, 0.2)]
    assert rows.change_row("add", steps, (0.1, 0.3)).ok
    assert not rows.change_row("add", steps, (0.1, 0.31)).ok
    assert not rows.change_row("add", steps, (0.1, None)).ok


def test_after_many_changes_nobody_is_above_its_quota_or_stuck() -> None:
    assert rows.storm_row("four", (0.2, 0.3), (0.209, 0.1), (0.2, 0.9), 200).ok
    assert not rows.storm_row("four", (0.2, 0.3), (0.211, 0.3), (0.2, 0.2), 200).ok
    assert not rows.storm_row("four", (0.2, 0.3), (0.2, 0.3), (0.2, 1.1), 200).ok
