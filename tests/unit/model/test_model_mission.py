"""The published table in the model: the real scheduler core, virtual time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nvshare.bench.mission import SCENARIOS, TESTS, BaselineFailed, Mission, place_in_table, shortening
from nvshare.bench.mission_rows import Row
from nvshare.bench.outcome import RunPlan, TaskPlan
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.gpu.profiles import load
from nvshare.model.run import ModelBackend

SHORT = dict.fromkeys(WORKLOADS, 0.05)


FITTING = tuple(test for test in TESTS if test != 2)


def table(backend: ModelBackend, **shorten: float) -> dict[int, Row]:
    """The tests whose tasks fit together, as they come."""
    return {row.test: row for row in Mission(backend, shorten).rows(FITTING) if row.test and not row.variant}


@pytest.mark.slow
def test_the_whole_table_on_two_t4() -> None:
    # GIVEN the tests of the table, each with a third of its work: the ratios are those of all of it
    rows = table(ModelBackend(2, load("T4")), **dict.fromkeys(WORKLOADS, 0.3))
    # THEN tasks alone cost at most half a percent, idle ones together and busy ones in turns at most 2 %
    for test in (1, 3, 5):
        assert 1.0 <= rows[test].ratio <= 1.005
    assert 1.0 < rows[6].ratio <= 1.02
    assert 2.0 < rows[4].ratio <= 2.04
    # AND nothing was ever moved, and nobody took turns
    assert {(row.swapped_bytes, row.switches, row.source) for row in rows.values()} == {(0, 0, "model")}
    assert all(row.passed for row in rows.values())
    # AND the speeds are those measured on the card
    assert rows[1].its == pytest.approx(25.8, rel=0.02)
    assert rows[3].its == pytest.approx(103, rel=0.02)


def test_without_turns_busy_tasks_lose_what_plain_time_slicing_lost_on_the_card() -> None:
    (four_small,) = (scenario for scenario in SCENARIOS if scenario.name == "4 concurrent")
    row = Mission(ModelBackend(2, load("T4")), SHORT).run(four_small)
    assert row.ratio == pytest.approx(2.21, rel=0.03)


def test_rows_that_need_the_speed_of_life_can_be_run_apart_and_put_back() -> None:
    mission = Mission(ModelBackend(2, load("T4")), SHORT)
    apart = [mission.rows([3, 4, 6], at_life=which) for which in (False, True)]
    assert [[row.name for row in rows] for rows in apart] == [["3", "4 concurrent", "6"], ["4"]]
    together = sorted([*apart[0], *apart[1]], key=place_in_table)
    assert [row.name for row in together] == [row.name for row in mission.rows([3, 4, 6])]


def test_twice_the_same_to_the_digit() -> None:
    def once() -> str:
        return json.dumps([row.to_dict() for row in table(ModelBackend(2, load("T4")), **SHORT).values()])

    assert once() == once()


def test_kernels_twice_as_long_double_the_busy_tests_and_the_busy_part_of_the_idle_one() -> None:
    profile = load("A100-40G")
    plain = table(ModelBackend(2, profile), **SHORT)
    slow = table(ModelBackend(2, profile.scaled(kernel=2)), **SHORT)
    for test in (1, 3, 4):
        assert slow[test].duration_s / plain[test].duration_s == pytest.approx(2.0, rel=0.01)
    workload = WORKLOADS["add-idle-small"]
    busy = profile.kernel_seconds(workload.kernel_bytes)
    expected = (2 * busy + workload.sleep) / (busy + workload.sleep)
    assert slow[5].duration_s / plain[5].duration_s == pytest.approx(expected, rel=0.01)


def test_half_the_link_changes_nothing_where_nothing_moves() -> None:
    profile = load("A100-40G")
    plain = table(ModelBackend(2, profile), **SHORT)
    narrow = table(ModelBackend(2, profile.scaled(link=0.5)), **SHORT)
    for test in (1, 3, 4, 5, 6):
        assert narrow[test].duration_s == pytest.approx(plain[test].duration_s, rel=1e-3)
    # THEN only the set-up, which copies, takes longer
    assert narrow[1].setup_s > plain[1].setup_s


def test_in_serial_mode_one_task_at_a_time_holds_the_card() -> None:
    # GIVEN two mostly idle tasks on one card in serial mode
    workload = WORKLOADS["add-idle-small"].shortened(0.02)
    tasks = tuple(TaskPlan(f"idle-{index}", workload, seed=index) for index in (1, 2))
    # WHEN they run
    outcome = ModelBackend(1, load("T4")).run(RunPlan(tasks, "serial"))
    # THEN both finish, and the turn went from one to the other
    assert [task.status for task in outcome.tasks] == ["PASS", "PASS"]
    assert outcome.switches > 0


def test_a_memory_quota_stops_the_greedy_task_only() -> None:
    workload = WORKLOADS["add-small"].shortened(0.001)
    tasks = (TaskPlan("greedy", workload, mem_limit=2**30, expected="OOM"), TaskPlan("neighbour", workload, seed=2))
    outcome = ModelBackend(1, load("T4")).run(RunPlan(tasks))
    assert [task.status for task in outcome.tasks] == ["OOM", "PASS"]


def test_a_node_with_one_gpu_gets_as_many_tasks_on_it() -> None:
    rows = table(ModelBackend(1, load("T4")), **SHORT)
    assert (rows[4].tasks, rows[4].gpus, rows[6].tasks) == (2, 1, 3)
    assert rows[4].title == "2 small on 1 GPU"


def test_a_workload_that_fails_without_nvshare_is_said_to() -> None:
    # GIVEN a card too small for the workload
    tiny = replace(load("T4"), memory_bytes=2 * 2**30)
    # WHEN it is to be measured
    # THEN there is nothing to compare with, and that is what is said
    with pytest.raises(BaselineFailed, match="add fails without nvshare too"):
        Mission(ModelBackend(1, tiny), SHORT).rows([1])


def test_shortening_gives_every_workload_about_the_same_time() -> None:
    profile = load("T4")
    rows = Mission(ModelBackend(2, profile), shortening(profile, 20.0, 80.0)).rows([0])
    for row in rows:
        assert row.duration_s == pytest.approx(20.0, rel=0.02)
