"""The same with joblib: pip install joblib."""

from __future__ import annotations

from joblib import Parallel, delayed
from trial import add

from nvshare.launch import GpuPool
from nvshare.launch.adapters.joblib import on_gpus


def main() -> None:
    with GpuPool(4, mem="512MiB", cores=25) as pool, on_gpus(pool):
        results = Parallel(n_jobs=4)(delayed(add)(n) for n in range(200, 2200, 100))
    assert len(results) == 20
    assert all(result["right"] for result in results)
    print(f"{len(results)} trials on {len({result['gpu'] for result in results})} GPUs")


if __name__ == "__main__":
    main()
