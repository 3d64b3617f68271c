"""The real core against the library's real state machine, with whatever programs and quotas there may be.

Inside, the core validates its invariants after every event, and the machine reports any change of a slice that its
table does not know. Both end the run with the recent story.
"""

from __future__ import annotations

import random

import pytest

from nvshare.model.contention import ComputeTask, QuotaChange, run

SHORTEST = 50e-6  # of a launch-bound task, whose kernels are modelled many at a time
KERNELS = (SHORTEST, 0.0005, 0.001, 0.004, 0.03)
BURSTS = (None, None, 0.001, 0.005, 0.02, 0.3)
SLEEPS = (0.0002, 0.0008, 0.002, 0.02, 0.2)
QUOTAS = (None, None, 5, 30, 50, 80)
LONGER_THAN_IS_WAITED_FOR = 2.2  # seconds: work of an ended slice is waited for a second


def some_task(rng: random.Random, name: str) -> ComputeTask:
    kernel = rng.choice(KERNELS)
    burst = rng.choice(BURSTS) if kernel > SHORTEST else None
    return ComputeTask(
        name,
        kernel=kernel,
        gap=0.0 if kernel > SHORTEST else 3 * kernel,
        burst=burst,
        sleep=rng.choice(SLEEPS) if burst is not None else 0.0,
        stalls=rng.choice((0.0, 0.0, 2.0)),
        quota=rng.choice(QUOTAS),
        urgent=rng.random() < 0.2,
    )


@pytest.mark.parametrize("seed", range(18))
def test_whatever_runs_all_of_it_goes_on(seed: int) -> None:
    rng = random.Random(seed)
    tasks = [some_task(rng, f"{seed} {number}") for number in range(rng.randint(1, 4))]
    if seed % 6 == 0:
        tasks.append(ComputeTask(f"{seed} long", kernel=LONGER_THAN_IS_WAITED_FOR))
    changes = [
        QuotaChange(rng.uniform(0.0, 3.0), rng.randrange(len(tasks)), rng.randint(5, 100))
        for _ in range(rng.randrange(6))
    ]
    outcome = run(tasks, seconds=5.0, warm_up=1.0, changes=changes)
    for task, delivery in zip(tasks, outcome.tasks, strict=True):
        assert delivery.delivered > 0, f"{task} stood still"
