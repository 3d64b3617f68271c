"""Sets of tasks that compute and think: how they are written, and what a seed draws."""

from __future__ import annotations

import pytest

from nvshare.bench.fairness.tasks import LONG, RANDOM, SMALL, TABLE, Task, drawn, parse_set, parse_task, table


@pytest.mark.parametrize(
    ("written", "task"),
    [
        ("5+15", Task(5, 15)),
        ("20+0", Task(20)),
        ("0.5+2.25", Task(0.5, 2.25)),
        ("20+10@..60", Task(20, 10, cap=60)),
        ("20+10@60", Task(20, 10, cap=60)),
        ("20+0@30..", Task(20, 0, floor=30)),
        ("5+15@20..60", Task(5, 15, floor=20, cap=60)),
        ("5+15@100..100", Task(5, 15, floor=100, cap=100)),
    ],
)
def test_a_task_is_what_was_typed(written: str, task: Task) -> None:
    assert parse_task(written) == task


@pytest.mark.parametrize(
    ("written", "explanation"),
    [
        ("", "has 0 tasks"),
        ("5", "'5' is not a task: GPUms+HOSTms[@[floor]..[cap]], e.g. 5+15@20..60"),
        ("5+5@", "is not a task"),
        ("5+5@..", "names neither a floor nor a cap"),
        ("5+5@..0", "the cap '0' is not a whole number from 1 to 100 (percent)"),
        ("5+5@..101", "the cap '101' is not a whole number from 1 to 100 (percent)"),
        ("5+5@-1..", "the floor '-1' is not a whole number from 1 to 100 (percent)"),
        ("5+5@1.5..", "the floor '1.5' is not a whole number"),
        ("5+5@70..60", "the floor 70 % is above the cap 60 %: give a floor from 1 to 60"),
        ("0+5", "the GPU time '0' is not a number from 0.05 to 10000 (milliseconds)"),
        ("x+5", "the GPU time 'x' is not a number"),
        ("nan+5", "the GPU time 'nan' is not a number"),
        ("5+-1", "the host time '-1' is not a number from 0 to 10000 (milliseconds)"),
        ("5+5@60.. 5+5@50..", "the floors add up to 110 %: a card has 100 %"),
        (" ".join(["5+5"] * 17), "has 17 tasks: give 1 to 16"),
    ],
)
def test_what_is_no_set_is_refused_with_what_is_allowed(written: str, explanation: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_set(written)
    assert explanation in str(refused.value)


def test_kernels_of_a_burst_add_up_to_it() -> None:
    task = Task(5, 5, kernel_ms=0.19)
    assert task.kernels == 26
    assert task.kernels * task.kernel_seconds == pytest.approx(0.005)
    assert (Task(3, 0, kernel_ms=50).kernels, Task(3, 0, kernel_ms=50).kernel_seconds) == (1, 0.003)


def test_the_table_is_made_of_sets() -> None:
    assert len(table()) == len(TABLE) == 9
    assert table(0.5)[0][0].kernel_ms == 0.5


@pytest.mark.parametrize("kind", [RANDOM, SMALL, LONG])
def test_a_seed_draws_the_same_sets_every_time(kind: str) -> None:
    assert drawn(3, 20, kind) == drawn(3, 20, kind)
    assert drawn(3, 20, kind)[:5] == drawn(3, 5, kind)
    assert drawn(3, 20, kind) != drawn(4, 20, kind)


@pytest.mark.parametrize(
    ("kind", "bursts", "kernels"),
    [(RANDOM, (3, 60), (0.05, 1)), (SMALL, (0.5, 3), (0.05, 1)), (LONG, (3, 60), (3, 50))],
)
def test_drawn_sets_have_the_distribution_that_is_documented(
    kind: str, bursts: tuple[float, float], kernels: tuple[float, float]
) -> None:
    sets = drawn(1, 1000, kind)
    tasks = [task for each in sets for task in each]
    assert {len(each) for each in sets} == {2, 3, 4, 5}
    assert all(bursts[0] <= task.gpu_ms <= bursts[1] for task in tasks)
    assert sum(task.gpu_ms for task in tasks) / len(tasks) == pytest.approx(sum(bursts) / 2, rel=0.05)
    assert all(kernels[0] <= task.kernel_ms <= kernels[1] for task in tasks)
    assert all(task.host_ms == 0 or 2 <= task.host_ms <= 40 for task in tasks)
    assert sum(task.host_ms == 0 for task in tasks) / len(tasks) == pytest.approx(0.3, abs=0.03)


def test_some_drawn_sets_have_quotas_that_a_card_can_keep() -> None:
    sets = drawn(1, 1000)
    with_quotas = [each for each in sets if any(task.has_quota for task in each)]
    assert len(with_quotas) / len(sets) == pytest.approx(0.4, abs=0.05)
    assert all(sum(task.floor or 0 for task in each) <= 100 for each in sets)
    quotas = [task for each in with_quotas for task in each]
    assert all((task.floor or 0) <= (task.cap or 100) for task in quotas)
    assert {(task.floor is None, task.cap is None) for task in quotas} == {
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    }


def test_small_bursts_have_no_quotas_because_time_slicing_knows_none() -> None:
    assert not any(task.has_quota for each in drawn(1, 200, SMALL) for task in each)
