"""nvshare: several processes or containers share one NVIDIA GPU, each as if it owned the card.

    with nvshare.lease(mem="4GiB", cores=25) as place:
        subprocess.run(["python", "trial.py"], env=place.env(), check=True)
    with nvshare.GpuPool(12, mem="4GiB") as pool:
        results = list(pool.map(trial, range(100)))

All names are those of ``nvshare.launch``, which is imported when one is first used.
"""

__version__ = "0.2.0"

_OF_LAUNCH = (
    "CannotStart",
    "CleanupFailed",
    "Cores",
    "DeviceOutOfMemory",
    "Finished",
    "GpuPool",
    "LaunchError",
    "Lease",
    "LeaseLost",
    "LeaseRefused",
    "LeaseTimeout",
    "NoGpu",
    "OutOfMemory",
    "QuotaOutOfMemory",
    "Sight",
    "WorkerKilled",
    "WorkerTimeout",
    "WrongDevice",
    "alease",
    "check",
    "lease",
    "run",
)
__all__ = (*_OF_LAUNCH, "__version__")  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _OF_LAUNCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("nvshare.launch"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_OF_LAUNCH])
