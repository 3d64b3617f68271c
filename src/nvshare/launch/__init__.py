"""Leases of GPUs, pools of workers in them, and supervised commands.

    with lease(mem="4GiB", cores=25) as place:            # for the processes that this one starts
        subprocess.run(["python", "trial.py"], env=place.env(), check=True)
    with GpuPool(12, mem="4GiB", cores=25) as pool:       # concurrent.futures, one interpreter and lease per worker
        results = list(pool.map(trial, range(100)))
    with lease(cores="30..60") as place: ...              # 30 % guaranteed, at most 60 %; also Cores(30, 60)
    run(["python", "train.py"], mem="4GiB", log="train.log").code
    check()                                               # inside a worker: sees what its lease says, or WrongDevice

Imported piece by piece: a worker that only wants ``check`` loads no more than that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvshare.launch.checking import Sight as Sight
    from nvshare.launch.checking import check as check
    from nvshare.launch.errors import CannotStart as CannotStart
    from nvshare.launch.errors import CleanupFailed as CleanupFailed
    from nvshare.launch.errors import DeviceOutOfMemory as DeviceOutOfMemory
    from nvshare.launch.errors import LaunchError as LaunchError
    from nvshare.launch.errors import LeaseLost as LeaseLost
    from nvshare.launch.errors import LeaseRefused as LeaseRefused
    from nvshare.launch.errors import LeaseTimeout as LeaseTimeout
    from nvshare.launch.errors import NoGpu as NoGpu
    from nvshare.launch.errors import OutOfMemory as OutOfMemory
    from nvshare.launch.errors import QuotaOutOfMemory as QuotaOutOfMemory
    from nvshare.launch.errors import WorkerKilled as WorkerKilled
    from nvshare.launch.errors import WorkerTimeout as WorkerTimeout
    from nvshare.launch.errors import WrongDevice as WrongDevice
    from nvshare.launch.leasing import Cores as Cores
    from nvshare.launch.leasing import Lease as Lease
    from nvshare.launch.leasing import alease as alease
    from nvshare.launch.leasing import lease as lease
    from nvshare.launch.pool import GpuPool as GpuPool
    from nvshare.launch.running import Finished as Finished
    from nvshare.launch.running import run as run

_HOMES = {
    "checking": ("Sight", "check"),
    "errors": (
        "CannotStart",
        "CleanupFailed",
        "DeviceOutOfMemory",
        "LaunchError",
        "LeaseLost",
        "LeaseRefused",
        "LeaseTimeout",
        "NoGpu",
        "OutOfMemory",
        "QuotaOutOfMemory",
        "WorkerKilled",
        "WorkerTimeout",
        "WrongDevice",
    ),
    "leasing": ("Cores", "Lease", "alease", "lease"),
    "pool": ("GpuPool",),
    "running": ("Finished", "run"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
