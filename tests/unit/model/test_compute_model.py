"""Quotas, slices and priorities in the model: the real core against modelled clients, figures exact and repeatable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nvshare.bench.outcome import PLAIN, RunPlan, TaskPlan
from nvshare.bench.workloads.spec import WORKLOADS
from nvshare.gpu.profiles import load
from nvshare.model.contention import ComputeTask, QuotaChange, run
from nvshare.model.run import ModelBackend

BUSY = ComputeTask()
TINY = ComputeTask(kernel=3e-6, gap=10e-6)
POINT = 0.01


def delivered(*tasks: ComputeTask, seconds: float = 8.0, changes: Sequence[QuotaChange] = ()) -> list[float]:
    return [task.delivered for task in run(tasks, seconds=seconds, changes=changes).tasks]


def with_quotas(task: ComputeTask, *quotas: int) -> list[ComputeTask]:
    return [replace(task, quota=quota) for quota in quotas]


@pytest.mark.parametrize("quota", [10, 25, 30, 50, 75, 90])
@pytest.mark.parametrize("kernel", [0.0002, 0.002, 0.01])
def test_a_task_alone_gets_its_quota(quota: int, kernel: float) -> None:
    assert delivered(ComputeTask(kernel=kernel, quota=quota)) == [pytest.approx(quota / 100, abs=POINT)]


@pytest.mark.parametrize(
    "quotas", [(30, 60), (25, 75), (10, 90), (50, 60), (80, 40), (80, 80), (20, 30, 50), (30, 60, 30, 60)]
)
def test_tasks_on_one_card_get_their_quotas_or_the_proportion_of_them(quotas: tuple[int, ...]) -> None:
    shares = [quota / max(100, sum(quotas)) for quota in quotas]
    got = delivered(*with_quotas(BUSY, *quotas))
    assert got == [pytest.approx(share, abs=POINT) for share in shares]
    assert sum(got) >= 0.98 * sum(shares)


@pytest.mark.parametrize("quotas", [(25, 75), (10, 90), (50, 60), (80, 40), (80, 80), (20, 30, 50), (30, 60, 30, 60)])
def test_quotas_hold_where_hosts_hesitate(quotas: tuple[int, ...]) -> None:
    """Some 20 ms every other second cost a task alone one percent. What it missed it gets as soon as it is back, from
    the others, who had the card meanwhile as far as their own quotas go."""
    shares = [quota / max(100, sum(quotas)) for quota in quotas]
    errors = []
    for round_ in range(8):
        tasks = [ComputeTask(f"{round_} {who}", 0.0015, stalls=0.5, quota=quota) for who, quota in enumerate(quotas)]
        got = delivered(*tasks)
        assert sum(got) >= 0.98 * sum(shares)
        errors.append(max(abs(one - share) for one, share in zip(got, shares, strict=True)))
    assert sorted(errors)[6] <= 1.1 * POINT
    assert max(errors) <= 1.5 * POINT


@pytest.mark.parametrize("count", [2, 3])
def test_busy_tasks_are_even_where_hosts_hesitate(count: int) -> None:
    apart = []
    for round_ in range(8):
        got = delivered(*[ComputeTask(f"{round_} {who}", 0.0015, stalls=0.5) for who in range(count)])
        assert sum(got) >= 0.98
        apart.append((max(got) - min(got)) * count / sum(got))
    assert sorted(apart)[6] <= 0.02
    assert max(apart) <= 0.03


def test_quotas_are_scaled_over_the_tasks_of_a_card_only() -> None:
    tasks = [ComputeTask(quota=quota, gpu=gpu) for gpu in (0, 1) for quota in (30, 60)]
    assert delivered(*tasks) == [pytest.approx(share, abs=POINT) for share in (0.3, 0.6, 0.3, 0.6)]


def test_kernels_of_different_length_get_the_same_time() -> None:
    got = delivered(ComputeTask(kernel=0.0003, quota=30), ComputeTask(kernel=0.0097, quota=60))
    assert got == [pytest.approx(0.3, abs=POINT), pytest.approx(0.6, abs=POINT)]


@pytest.mark.parametrize("quota", [25, 50, 75])
def test_a_launch_bound_task_gets_its_quota_of_time(quota: int) -> None:
    assert delivered(replace(TINY, quota=quota)) == [pytest.approx(quota / 100, abs=2 * POINT)]


def test_launch_bound_tasks_overlap() -> None:
    got = delivered(*with_quotas(TINY, 30, 60))
    assert got == [pytest.approx(0.3, abs=2 * POINT), pytest.approx(0.6, abs=2 * POINT)]


@pytest.mark.parametrize("count", [2, 3])
def test_busy_tasks_without_quotas_share_the_whole_card_equally(count: int) -> None:
    got = delivered(*[BUSY] * count)
    assert sum(got) >= 0.98
    assert max(got) <= 1.02 * min(got)


@pytest.mark.parametrize(("card", "workload"), [("A100-40G", "add"), ("T4", "add-small")])
def test_three_tasks_that_fit_are_seen_to_be_busy_beside_each_other(card: str, workload: str) -> None:
    """What they submitted freely still runs when slices begin: it takes longer for all, and nobody idles meanwhile."""
    backend = ModelBackend(1, load(card))
    work = WORKLOADS[workload].shortened(0.1)
    solo = backend.run(RunPlan((TaskPlan("solo", work),), PLAIN)).tasks[0].loop_seconds
    outcome = backend.run(RunPlan(tuple(TaskPlan(f"task {number}", work) for number in range(3))))
    assert outcome.switches == 0
    assert all(task.loop_seconds / solo <= 3.1 for task in outcome.tasks)


def test_launch_bound_tasks_without_quotas_run_side_by_side() -> None:
    native = [task.delivered for task in run([TINY, TINY], seconds=20.0, mode=None).tasks]
    assert all(one >= 0.97 * alone for one, alone in zip(delivered(TINY, TINY, seconds=20.0), native, strict=True))


def test_a_launch_bound_task_beside_a_busy_one_is_as_fast_as_natively() -> None:
    native = [task.delivered for task in run([BUSY, TINY], seconds=20.0, mode=None).tasks]
    assert all(one >= 0.98 * alone for one, alone in zip(delivered(BUSY, TINY, seconds=20.0), native, strict=True))


@pytest.mark.parametrize("burst", [0.005, 0.02])
def test_a_busy_task_keeps_its_quota_beside_a_launch_bound_one_at_work(burst: float) -> None:
    """Where quotas fill the card. Kernels of the launch-bound task take a part of the card while both have slices."""
    launches = replace(TINY, kernel=10e-6, gap=50e-6, quota=20)
    pausing = ComputeTask("pausing", 0.001, burst=burst, sleep=4 * burst, quota=60)
    busy, *_ = delivered(ComputeTask("busy", 0.0015, quota=20), launches, pausing, seconds=16.0)
    assert busy == pytest.approx(0.2, abs=1.5 * POINT)


def test_mostly_idle_tasks_hardly_notice_each_other() -> None:
    tasks = [ComputeTask(kernel=0.001, burst=0.01, sleep=0.1) for _ in range(3)]
    assert all(1 / speed <= 1.01 for speed in delivered(*tasks, seconds=30.0))


def test_an_urgent_task_is_served_next() -> None:
    interactive = ComputeTask(kernel=0.001, burst=0.005, sleep=0.095, urgent=True)
    outcome = run([interactive, ComputeTask(kernel=0.004), ComputeTask(kernel=0.004)], seconds=30.0)
    alone = run([interactive], seconds=5.0, mode=None).tasks[0].bursts[0]
    bursts = sorted(outcome.tasks[0].bursts)
    assert bursts[int(0.99 * len(bursts))] <= 2.5 * alone


def test_an_urgent_task_that_is_always_busy_leaves_the_others_their_share() -> None:
    got = delivered(ComputeTask(urgent=True), BUSY)
    assert got == [pytest.approx(0.5, abs=3 * POINT)] * 2


def test_after_two_hundred_changes_of_quota_everybody_had_what_its_quotas_came_to() -> None:
    rng = random.Random(7)
    changes = [QuotaChange(0.3 * step + 0.5, rng.randrange(4), rng.randint(1, 100)) for step in range(200)]
    quotas, promised, before = [25] * 4, [0.0] * 4, 2.0
    for at, changed, quota in [*((change.at, change.task, change.quota) for change in changes), (62.0, 0, 0)]:
        for index in range(4):
            promised[index] += quotas[index] / max(100, sum(quotas)) * max(0.0, at - before)
        before, quotas[changed] = max(before, at), quota
    got = run(with_quotas(BUSY, *[25] * 4), seconds=60.0, changes=changes).tasks
    for task, share in zip(got, promised, strict=True):
        assert share / 60 - 1.5 * POINT <= task.delivered <= share / 60 + POINT
        assert max(b[0] - a[0] for a, b in zip(task.marks, task.marks[1:], strict=False)) < 3.0


def test_a_hundred_changes_a_second_are_no_way_around_a_quota() -> None:
    """A task whose quota changes gains nothing by that, however often, beside one that pauses."""
    percents, every, seconds = (80, 20, 5), 0.01, 10.0
    changes = [
        QuotaChange(1.0 + change * every, 0, percents[change % 3]) for change in range(int((seconds + 1.0) / every))
    ]
    pausing = ComputeTask("pausing", 0.001, burst=0.001, sleep=0.02)
    changed, _ = delivered(ComputeTask(kernel=0.0015, quota=80), pausing, seconds=seconds, changes=changes)
    assert changed <= sum(percents) / 300 + POINT


@pytest.mark.parametrize("every", [0.02, 0.1, 0.3], ids=lambda every: f"every {every} s")
def test_changes_of_quota_take_nothing_from_the_others(every: float) -> None:
    """What was used before a change counts for whose slice is next, also where quotas are more than a card."""
    changes = [QuotaChange(0.5 + step * every, 0, 80 + step % 2) for step in range(int(10.0 / every))]
    got = delivered(*with_quotas(BUSY, 80, 80), seconds=8.0, changes=changes)
    assert got == [pytest.approx(0.5, abs=1.5 * POINT)] * 2


def test_a_change_acts_within_300_ms() -> None:
    """In the mean over the phases of a cycle: a window of three cycles has three or four slices in it."""

    def used_soon_after(change: float) -> float:
        quotas = [QuotaChange(change, 0, 20)]
        marks = run([replace(BUSY, quota=80)], seconds=4.0, changes=quotas).tasks[0].marks

        def done(at: float) -> float:
            return max(work for time, work in marks if time <= at)

        return done(change + 0.9) - done(change + 0.3)

    phases = [used_soon_after(4.0 + step * 0.03) for step in range(6)]
    assert sum(phases) / len(phases) == pytest.approx(0.6 * 0.2, abs=0.02)


def test_throttling_and_scaling_are_told() -> None:
    log = run(with_quotas(BUSY, 80, 80), seconds=4.0).log
    assert any("Quota scaling: client c000000000000001 limit 80%, total 160%, scaled to 50.0%" in line for line in log)
    alone = run(with_quotas(BUSY, 30), seconds=8.0).log
    throttling = [line for line in alone if "Throttling client c000000000000001 (Used: " in line]
    assert 3 <= len(throttling) <= 5


def test_quotas_hold_among_tasks_that_do_not_fit_together() -> None:
    workload = WORKLOADS["add"].shortened(0.3)
    backend = ModelBackend(1, load("T4"))
    solo = backend.run(RunPlan((TaskPlan("solo", workload),), PLAIN)).tasks[0].loop_seconds
    tasks = tuple(TaskPlan(f"{quota}", workload, core_limit=quota) for quota in (30, 60))
    outcome = backend.run(RunPlan(tasks))
    assert outcome.switches > 2
    assert [solo / task.loop_seconds for task in outcome.tasks] == [
        pytest.approx(0.3, abs=2 * POINT),
        pytest.approx(0.6, abs=3 * POINT),
    ]
