"""What can go wrong with leases and workers. All are ``LaunchError``; the text says what to do."""

from __future__ import annotations


class LaunchError(Exception):
    """Base of all below."""


class NoGpu(LaunchError):
    """There is no GPU to be had: no driver, none inside the outer CUDA_VISIBLE_DEVICES, or none that was asked for."""


class LeaseRefused(LaunchError):
    """The scheduler can never grant this lease."""


class LeaseTimeout(LaunchError):
    """The lease was not granted in time."""


class LeaseLost(LaunchError):
    """The scheduler came back and gave the place to others, or nobody is left to hold it."""


class WorkerKilled(LaunchError):
    """A worker ended without an answer. ``signal`` is the one that ended it, else None; ``code`` its exit code."""

    def __init__(self, text: str, signal: int | None = None, code: int | None = None) -> None:
        super().__init__(text)
        self.signal = signal
        self.code = code

    def __reduce__(self) -> tuple[type[WorkerKilled], tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.signal, self.code)


class WorkerTimeout(LaunchError):
    """A task passed its deadline; its worker was ended."""


class WrongDevice(LaunchError):
    """A worker sees another GPU than its lease says, or another size of it."""


class CannotStart(LaunchError):
    """The command cannot be started at all."""


class CleanupFailed(LaunchError):
    """Processes of a worker are still there although they were killed. ``left`` are their numbers."""

    def __init__(self, text: str, left: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.left = left


class OutOfMemory(LaunchError, MemoryError):
    """An allocation of GPU memory was refused."""


class QuotaOutOfMemory(OutOfMemory):
    """... because it would have passed the memory quota of the lease: ask for more, or use less."""


class DeviceOutOfMemory(OutOfMemory):
    """... because the card (or the host memory behind it) has no room for it."""
