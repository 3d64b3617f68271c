"""Plain multiprocessing on GPUs: each process of a spawned pool takes a lease of its own before it does anything.

    with leased(mem="2GiB", cores=25) as context, context.Pool(8, *context.initializer) as pool:
        pool.map(trial, range(100))

Supervision, deadlines and retries: see ``GpuPool``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnContext
from typing import Any

from nvshare.cores import Cores
from nvshare.launch.address import find_address
from nvshare.launch.leasing import Lease, find_site, wish_for
from nvshare.launch.orders import lease_environment

_held: list[Lease] = []  # for as long as this process lives


class LeasedContext(SpawnContext):
    initializer: tuple[Callable[..., None], tuple[Any, ...]]


def take_lease(mem: int | str | None, cores: Cores | int | str | None, gpus: int, timeout: float | None) -> None:
    """The initializer: wait for a lease, and see its GPUs only. CUDA looks at this when it is first used."""
    wish = wish_for(mem, cores, gpus, "multiprocessing", timeout)
    lease = Lease(find_site(wish), wish)
    lease.acquire()
    _held.append(lease)
    os.environ.update(lease.env())


@contextlib.contextmanager
def leased(
    mem: int | str | None = None, cores: Cores | int | str | None = None, gpus: int = 1, timeout: float | None = None
) -> Iterator[LeasedContext]:
    """A context whose processes start with the environment of a lease."""
    context, before = LeasedContext(), dict(os.environ)
    context.initializer = (take_lease, (mem, cores, gpus, timeout))
    os.environ.update(lease_environment(find_address(), wish_for(mem, cores, gpus)))
    try:
        yield context
    finally:
        os.environ.clear()
        os.environ.update(before)
