"""``run()``: a command in a lease."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from nvshare.cores import Cores
from nvshare.launch.errors import CleanupFailed, WorkerTimeout
from nvshare.launch.leasing import OnNoGpu, Site, find_site, wish_for
from nvshare.launch.orders import GRACE, Order, Wish
from nvshare.launch.supervised import Ending, Supervised


@dataclass(frozen=True)
class Finished:
    """A command that ended. ``code`` is its exit code, None when ``signal`` ended it."""

    pid: int
    lease: str
    gpus: tuple[str, ...]
    waited: float  # seconds for the lease
    code: int | None
    signal: int | None
    why: str = ""  # it was made to end

    @property
    def ok(self) -> bool:
        return self.code == 0


def start(
    command: Sequence[str],
    site: Site,
    wish: Wish,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    grace: float = GRACE,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    merge: bool = False,
) -> Supervised:
    """Start a command under a supervisor; it begins when its lease is granted."""
    order = Order(
        command,
        site.address,
        replace(wish, among=wish.among or site.among),
        site.cards,
        dict(env or {}),
        cwd,
        grace=grace,
    )
    return Supervised(order, stdin, stdout, merge)


def finished(worker: Supervised, ending: Ending) -> Finished:
    if ending.left:
        raise CleanupFailed(f"processes {', '.join(map(str, ending.left))} cannot be ended", ending.left)
    granted = worker.granted
    assert granted is not None
    code = ending.code if ending.code is not None and ending.code >= 0 else None
    return Finished(worker.pid, granted.lease, granted.gpus, granted.waited, code, ending.signal, ending.why)


def run(
    command: Sequence[str],
    *,
    mem: int | str | None = None,
    cores: Cores | int | str | None = None,
    gpus: int = 1,
    timeout: float | None = None,
    deadline: float | None = None,
    log: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    grace: float = GRACE,
    on_no_gpu: OnNoGpu = "error",
    sim: str | None = None,
) -> Finished:
    """Run a command in a lease of its own and wait for it; nothing of it is left afterwards.

    ``timeout`` is for the lease, ``deadline`` for the command (``WorkerTimeout``), in seconds; output goes to ``log``.
    ``sim`` is a simulated node such as "2xT4".
    ``CannotStart`` when there is no such command; the errors of ``lease`` as there.
    """
    wish = wish_for(mem, cores, gpus, os.path.basename(command[0]), timeout)
    site = find_site(wish, on_no_gpu, sim)
    with _output(log) as output:
        worker = start(command, site, wish, env=env, cwd=cwd, grace=grace, stdout=output, merge=log is not None)
    try:
        worker.wait_granted()
        ending = worker.wait(deadline)
        if ending is None:
            worker.end("it passed its deadline")
            worker.close()
            raise WorkerTimeout(f"{command[0]} was not finished within {deadline:g} s and was ended")
        return finished(worker, ending)
    except BaseException:
        worker.close()
        raise


@contextlib.contextmanager
def _output(log: str | os.PathLike[str] | None) -> Iterator[IO[bytes] | None]:
    if log is None:
        yield None
    else:
        with open(log, "ab") as file:
            yield file
