"""Optuna trials on GPU workers: what to try is asked here, how good it is is found out there.

    optimize(study, space, objective, n_trials=100, pool=pool)

``space(trial)`` returns the parameters, in this process; ``objective(**parameters)`` the value, in a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from optuna.study import Study
from optuna.trial import Trial, TrialState

from nvshare.launch.pool import GpuPool

_LOG = logging.getLogger("nvshare")


def optimize(
    study: Study, space: Callable[[Trial], dict[str, Any]], objective: Callable[..., Any], n_trials: int, pool: GpuPool
) -> None:
    """So many trials, as many at once as the pool has workers. A trial whose worker dies or raises has failed."""
    running: dict[Future[Any], Trial] = {}
    begun = 0
    while running or begun < n_trials:
        while begun < n_trials and len(running) < pool.workers:
            trial = study.ask()
            running[pool.submit(objective, **space(trial))] = trial
            begun += 1
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            trial = running.pop(future)
            try:
                study.tell(trial, future.result())
            except Exception as error:
                _LOG.warning("trial %d failed: %s: %s", trial.number, type(error).__name__, error)
                study.tell(trial, state=TrialState.FAIL)
