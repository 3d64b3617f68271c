"""joblib on GPU workers.

with GpuPool(8, mem="2GiB") as pool, on_gpus(pool):
    results = Parallel(n_jobs=8)(delayed(trial)(seed) for seed in range(100))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from joblib import parallel_config, register_parallel_backend
from joblib.parallel import ParallelBackendBase

from nvshare.launch.pool import GpuPool


class GpuBackend(ParallelBackendBase):  # type: ignore[misc]
    """Hands joblib's batches to a pool. How many run at once is the pool's business."""

    supports_retrieve_callback = True

    def __init__(self, pool: GpuPool, **options: Any) -> None:
        super().__init__(**options)
        self._pool = pool

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        return self._pool.workers if n_jobs is None or n_jobs < 0 else min(n_jobs, self._pool.workers)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Future[Any]:
        future = self._pool.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()


@contextlib.contextmanager
def on_gpus(pool: GpuPool) -> Iterator[None]:
    """Inside, ``Parallel`` uses this pool."""
    register_parallel_backend("nvshare", lambda **options: GpuBackend(pool, **options))
    with parallel_config(backend="nvshare"):
        yield
