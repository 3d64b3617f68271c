"""Memory beyond the card in the model: the real planner against modelled movers, in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nvshare.bench import eviction, swap
from nvshare.bench.columns import GIB
from nvshare.bench.eviction import CASES, DECLARED, kernel_bytes, sized
from nvshare.bench.linkspeed import LinkSpeed
from nvshare.bench.mission import Mission
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import RunPlan, TaskPlan, Timeline, ignore_progress
from nvshare.bench.survivor import recovery
from nvshare.gpu.profiles import load
from nvshare.model.run import ModelBackend
from nvshare.report.sentences import findings

T4 = load("T4")
A100 = load("A100-40G")
ADDS = 1 / A100.kernel_seconds(kernel_bytes(GIB))  # per second, with 1 GiB of allocations
LINK = LinkSpeed(A100.link_h2d, A100.link_d2h, A100.link_duplex, A100.link_duplex)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.name: row for row in Mission(ModelBackend(2, T4)).rows([2])}


def test_tasks_that_do_not_fit_finish_as_if_one_after_the_other(rows: dict[str, Row]) -> None:
    # THEN the last of two, three and four tasks on a card ends about when the serial theory says
    limits = {"2 serial": 2.06, "2 auto": 2.06, "2x3": 3.1, "2x4": 4.15}
    assert rows.keys() == limits.keys()
    for name, limit in limits.items():
        assert rows[name].passed
        assert rows[name].ratio <= limit
        # AND they did take turns, and their data moved
        assert rows[name].switches >= 2 * rows[name].gpus
        assert rows[name].swapped_bytes > 0


def test_where_contexts_leave_too_little_tasks_are_as_large_as_fits(rows: dict[str, Row]) -> None:
    # GIVEN three or four contexts on a T4, which leave less than one add has
    # THEN the rows say how large their tasks were
    assert rows["2 auto"].title == "4 add on 2 GPUs, auto"
    assert "of n = 27600" in rows["2x3"].title
    assert "of n = 26400" in rows["2x4"].title


def test_a_survivor_is_back_at_full_speed_within_a_second() -> None:
    for row in Mission(ModelBackend(1, T4)).survivors(T4):
        assert row.passed
        assert row.survivor_s is not None
        assert row.survivor_limit_s is not None
        assert row.survivor_limit_s <= row.survivor_s <= 1.0


def test_a_survivor_behind_a_slow_link_is_judged_by_what_the_link_can() -> None:
    slow = T4.scaled(link=0.5)
    rows = Mission(ModelBackend(1, slow)).survivors(slow)
    for row in rows:
        assert row.survivor_s is not None
        assert row.survivor_limit_s is not None
        assert 1.0 < row.survivor_limit_s <= row.survivor_s <= 1.1 * row.survivor_limit_s
        assert row.recovered
        assert row.to_dict()["passed"]
        # AND one that takes longer than that is not back in time
        late = replace(row, survivor_s=1.11 * row.survivor_limit_s)
        assert not late.recovered
        assert f"the survivor has {1.1 * row.survivor_limit_s:.2f} s (a tenth more than" in findings([late])[-1]
        # AND without a slow link a second is all it has
        assert not replace(row, survivor_s=1.01, survivor_limit_s=0.5).recovered
        assert not replace(row, survivor_s=1.01, survivor_limit_s=None).recovered
    assert "it has 2.07 s (a tenth more than the link needs); the link alone needs 1.88 s" in findings(rows)[-1]


@pytest.mark.parametrize("sizes", CASES)
def test_a_switch_moves_what_does_not_fit_and_no_more(sizes: tuple[int, ...]) -> None:
    row = eviction.measure(ModelBackend(1, A100, declared=DECLARED), sizes, DECLARED, ADDS, 1.0, ignore_progress)
    assert row.switches >= 4
    assert row.largest is not None
    assert row.largest <= row.bound
    assert row.passed


def test_switches_come_close_to_the_limit_of_the_link() -> None:
    row = swap.measure(ModelBackend(1, A100, declared=DECLARED), LINK, 12 * GIB, DECLARED, ADDS, 1.0, ignore_progress)
    assert 0.9 <= row.of_limit <= 1.0
    assert row.copy_s + (row.map_s or 0.0) + row.wait_s == pytest.approx(row.stall_s)


def test_half_the_link_doubles_the_stall() -> None:
    def stall(link: float) -> float:
        backend = ModelBackend(1, A100.scaled(link=link), declared=DECLARED)
        return swap.measure(backend, LINK, 12 * GIB, DECLARED, ADDS, 1.0, ignore_progress).stall_s

    assert stall(0.5) / stall(1.0) == pytest.approx(2.0, rel=0.05)


def test_sets_that_fit_run_together_while_the_others_wait() -> None:
    # GIVEN three tasks of which two fit at a time
    tasks = tuple(TaskPlan(f"task-{seed}", sized(7 * GIB, 1000), seed=seed) for seed in (1, 2, 3))
    solo = ModelBackend(1, A100).run(RunPlan(tasks[:1], "plain")).tasks[0]
    # WHEN they share a card of 16 GiB
    outcome = ModelBackend(1, A100, declared=DECLARED).run(RunPlan(tasks))
    # THEN together they lose no more than time-slicing and a few switches cost
    assert all(task.status == "PASS" for task in outcome.tasks)
    assert 3 * solo.loop_seconds / max(task.loop_seconds for task in outcome.tasks) >= 0.85


def test_what_fits_moves_nothing() -> None:
    tasks = tuple(TaskPlan(f"task-{seed}", sized(8 * GIB - (64 << 20), 200), seed=seed) for seed in (1, 2))
    outcome = ModelBackend(1, A100, declared=DECLARED).run(RunPlan(tasks))
    assert outcome.swapped_bytes == 0
    assert outcome.switches == 0


def test_a_task_larger_than_the_declared_card_is_out_of_memory() -> None:
    task = TaskPlan("huge", sized(DECLARED + GIB, 10), expected="OOM")
    neighbour = TaskPlan("neighbour", sized(2 * GIB, 10), seed=2)
    outcome = ModelBackend(1, A100, declared=DECLARED).run(RunPlan((task, neighbour)))
    assert [result.status for result in outcome.tasks] == ["OOM", "PASS"]


def test_runs_in_turns_are_the_same_to_the_digit() -> None:
    def once() -> str:
        mission = Mission(ModelBackend(1, T4), {"turns": 0.2})
        return json.dumps([row.to_dict() for row in mission.rows([2])])

    assert once() == once()


def test_a_faster_node_differs_only_by_what_software_costs() -> None:
    # GIVEN the same turns on a node that runs ten times as fast, with a tenth of the quantum
    tasks = tuple(TaskPlan(f"task-{seed}", sized(12 * GIB, 2000), seed=seed) for seed in (1, 2))
    slow = ModelBackend(1, A100, declared=DECLARED).run(RunPlan(tasks, quantum=10.0))
    fast = ModelBackend(1, A100, declared=DECLARED, speed=10.0).run(RunPlan(tasks, quantum=1.0))
    for one, other in zip(slow.tasks, fast.tasks, strict=True):
        assert other.loop_seconds == pytest.approx(one.loop_seconds, rel=0.1)


def test_recovery_is_the_begin_of_full_speed_for_good() -> None:
    # GIVEN a task that does 10 adds per second, stands still from 1 to 2.5, crawls until 3.5, and is itself again
    crawl = tuple((2.5 + 0.5 * step, 10 + step) for step in range(1, 3))
    full = tuple((3.5 + 0.1 * step, 12 + step) for step in range(1, 21))
    timeline = Timeline((*((0.1 * step, step) for step in range(1, 11)), *crawl, *full))
    assert recovery(timeline, since=1.5, solo_its=10.0) == pytest.approx(2.0, abs=0.11)
    # AND one that crawls to its end never is
    assert recovery(replace(timeline, marks=timeline.marks[:-20]), since=1.5, solo_its=10.0) is None
