"""The yardstick of sharing, and tasks that compute and think in the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshare.bench.fairness.rows import Row
from nvshare.bench.fairness.tasks import RANDOM, Task, Tasks, drawn, parse_set
from nvshare.gpu.profiles import load
from nvshare.model.attainable import fair, measure
from nvshare.model.fairness import Job, measured_row, shares

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "attainable.json").read_text())
POINTS = 0.5  # percentage points


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_yardstick_gives_what_was_recorded_of_its_definition(number: int) -> None:
    entry = RECORDED[number]
    found = measure([Task(**task) for task in entry["tasks"]])
    assert found.fair == pytest.approx(entry["fair"], abs=POINTS)
    assert found.attainable == pytest.approx(entry["attainable"], abs=POINTS)


@st.composite
def sets_of_tasks(draw: st.DrawFn) -> Tasks:
    tasks, left = [], 100
    for _ in range(draw(st.integers(1, 5))):
        cap = draw(st.none() | st.integers(1, 100))
        most = min(left, cap or 100)
        floor = draw(st.none() | st.integers(1, most)) if most else None
        left -= floor or 0
        tasks.append(Task(draw(st.floats(0.5, 60)), draw(st.just(0.0) | st.floats(0.1, 60)), floor, cap))
    return tuple(tasks)


def held(tasks: Tasks, values: list[float]) -> None:
    """No task has more than it can use or may have, and all together have no more than the card."""
    for task, value in zip(tasks, values, strict=True):
        assert value <= min(task.want, task.cap or 100) + 1e-6
    assert sum(values) <= 100 + 1e-6


@settings(deadline=None)
@given(sets_of_tasks())
def test_fair_shares_keep_floors_wants_caps_and_the_card(tasks: Tasks) -> None:
    found = fair(tasks)
    held(tasks, found)
    for task, share in zip(tasks, found, strict=True):
        assert share >= min(task.floor or 0, task.want) - 1e-6


@settings(deadline=None)
@given(sets_of_tasks())
def test_what_the_fair_shares_leave_nobody_can_use(tasks: Tasks) -> None:
    found = fair(tasks)
    if sum(found) < 100 - 1e-6:
        assert found == pytest.approx([min(task.want, task.cap or 100) for task in tasks])


@settings(max_examples=5, deadline=None)
@given(sets_of_tasks())
def test_attainable_shares_are_fair_ones_at_most(tasks: Tasks) -> None:
    found = measure(tasks)
    held(tasks, list(found.attainable))
    assert all(could <= due for could, due in zip(found.attainable, found.fair, strict=True))


def test_a_task_whose_neighbours_are_promised_all_of_the_card_has_no_share() -> None:
    found = measure([Task(20, 0, floor=100), Task(20, 0)])
    assert found.fair == [100.0, 0.0]
    assert found.attainable == pytest.approx([100.0, 0.0])


# --- in the model


def model_row(tasks: Tasks) -> Row:
    return measured_row(Job(RANDOM, tasks, "H200", 2.0, 0.5))


def test_drawn_sets_are_measured_the_same_every_time() -> None:
    for tasks in drawn(1, 2):
        found = model_row(tasks)
        assert found == model_row(tasks)
        assert 0 < found.sum <= 100
        assert found.native is not None
        assert 0 < sum(found.native) <= 100
        for task, got in zip(tasks, found.got, strict=True):
            assert 0 < got <= task.want + 1


def test_a_task_alone_gets_what_it_wants_natively() -> None:
    (share,) = shares([Task(20, 20)], 2.0, 0.5, load("H200"), None)
    assert share == pytest.approx(50, abs=0.5)


def test_a_task_alone_that_never_thinks_has_nearly_the_whole_card() -> None:
    (share,) = shares([Task(20)], 2.0, 0.5, load("H200"), validates=True)
    assert 95 < share <= 100


def test_time_slicing_gives_equal_tasks_equal_shares() -> None:
    profile = load("H200")
    found = shares([Task(20), Task(20)], 2.0, 0.5, profile, None)
    assert found == pytest.approx([50 * profile.timeslice_efficiency] * 2, abs=0.5)


def test_a_cap_holds_in_the_model() -> None:
    capped, free = shares([Task(20, cap=30), Task(20)], 4.0, 1.0, load("H200"))
    assert capped <= 31
    assert free > 60


@pytest.mark.parametrize("written", ["7.7+20.3 34.8+39.1@..38 50.8+26.4@44..64", "22.6+8.5@47.. 24.9+3.3@..70"])
def test_no_rhythm_of_bursts_keeps_a_task_from_its_share(written: str) -> None:
    """These fall into step: the last part of one burst begins just before the other wakes up."""
    tasks = parse_set(written)
    got = shares(tasks, 4.0, 1.0, load("H200"))
    for share, due in zip(got, measure(tasks).attainable, strict=True):
        assert share >= 0.88 * due


@pytest.mark.parametrize("written", ["20+0@..50 3+3", "20+0 3+1@40..45", "20+0@..30 2+2@..30 3+2@..30"])
def test_quotas_hold_beside_brief_bursts(written: str) -> None:
    tasks = parse_set(written)
    got = shares(tasks, 4.0, 1.0, load("H200"), validates=True)
    for share, due in zip(got, measure(tasks).attainable, strict=True):
        assert share >= 0.88 * due
