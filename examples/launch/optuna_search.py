"""A search with Optuna, trials on GPU workers: pip install optuna."""

from __future__ import annotations

import optuna
from trial import add

from nvshare.launch import GpuPool
from nvshare.launch.adapters.optuna import optimize


def space(trial: optuna.trial.Trial) -> dict[str, int]:
    return {"n": trial.suggest_int("n", 100, 1000)}


def objective(n: int) -> float:
    assert add(n)["right"]
    return abs(n - 640)


def main() -> None:
    study = optuna.create_study()
    with GpuPool(4, mem="512MiB", cores=25) as pool:
        optimize(study, space, objective, n_trials=20, pool=pool)
    print(f"best of {len(study.trials)} trials: {study.best_params}")


if __name__ == "__main__":
    main()
