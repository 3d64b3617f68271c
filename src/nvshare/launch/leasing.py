"""``lease()``: a place on a GPU for the processes that this one starts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from nvshare import config
from nvshare.client.connection import Connection, NoScheduler, RequestRefused, SchedulerError
from nvshare.cores import Cores as Cores  # noqa: PLC0414 (others know it from here)
from nvshare.gpu.sim import SimError
from nvshare.launch.address import Address, Cards, find_address, find_cards
from nvshare.launch.errors import LaunchError, LeaseLost, LeaseRefused, LeaseTimeout, NoGpu
from nvshare.launch.orders import Wish, cpu_environment, lease_environment, warn_if_inside
from nvshare.native import NativeMissing

OnNoGpu = Literal["error", "wait", "cpu"]
_RETRY = 0.2  # seconds between attempts to reach a scheduler that went away
_LOOK = 1.0  # seconds between looks for a GPU with on_no_gpu="wait"


@dataclass(frozen=True)
class Site:
    """Where leases come from, and the cards they may be on; none: there is no GPU and that is all right."""

    address: Address
    cards: Cards | None

    @property
    def among(self) -> tuple[str, ...]:
        return self.cards.allowed if self.cards is not None else ()


def size_of(mem: int | str | None) -> int | None:
    return config.parse_size(mem) if isinstance(mem, str) else mem


def wish_for(
    mem: int | str | None, cores: Cores | int | str | None, gpus: int = 1, label: str = "", timeout: float | None = None
) -> Wish:
    """A checked wish. ``ValueError`` names what is allowed."""
    size = size_of(mem)
    if size is not None and not 0 < size <= config.MAX_SIZE:
        raise ValueError(f"mem {mem!r} is not a usable size: {config.SIZE_FORMS}")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
        raise ValueError(f"gpus {gpus!r} is not a number of GPUs: 0 (the CPU only) or more")
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout {timeout!r} is not a number of seconds")
    return Wish(size, _cores_of(cores), gpus, (), label, timeout)


def _cores_of(cores: Cores | int | str | None) -> Cores | None:
    try:
        return None if cores is None else Cores.of(cores)
    except ValueError as error:
        raise ValueError(f"cores: {error}") from None


def _address_of(simulated: str | None) -> Address:
    try:
        return find_address(simulated)
    except (SimError, NativeMissing) as error:
        raise LaunchError(str(error)) from error


def find_site(wish: Wish, on_no_gpu: OnNoGpu = "error", sim: str | None = None) -> Site:
    """The site of a lease like this, on this machine or on the simulated node ``sim``.

    ``NoGpu`` where there is none, unless that is all right or worth waiting for.
    """
    if on_no_gpu not in ("error", "wait", "cpu"):
        raise ValueError(f'on_no_gpu {on_no_gpu!r} is not one of "error", "wait", "cpu"')
    here = _address_of(sim)
    if wish.gpus == 0:
        return Site(here, None)
    deadline = None if wish.timeout is None else time.monotonic() + wish.timeout
    while True:
        try:
            cards = find_cards(here)
            if cards.allowed:
                return Site(here, cards)
            raise NoGpu("CUDA_VISIBLE_DEVICES leaves no GPU of this machine to use")
        except NoGpu:
            if on_no_gpu == "cpu":
                return Site(here, None)
            if on_no_gpu == "error" or (deadline is not None and time.monotonic() + _LOOK > deadline):
                raise
        time.sleep(_LOOK)


class Lease:
    """A lease that this process holds. Its processes are those that this one starts with ``env()``."""

    def __init__(self, site: Site, wish: Wish) -> None:
        self._site = site
        self._wish = replace(wish, among=site.among)
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._watcher: threading.Thread | None = None
        self._lost: str | None = None
        self.id = ""
        self.gpus: tuple[str, ...] = ()
        self.inside: str | None = None
        self.waited = 0.0

    def __repr__(self) -> str:
        quotas = [f"mem={config.format_size(self.mem)}"] if self.mem is not None else []
        quotas += [f"cores={self.cores}"] if self.cores is not None else []
        places = ", ".join([*(self.gpus or ("CPU only",)), *quotas])
        return f"<Lease {self.id or '-'}: {places}{f'; {self._lost}' if self._lost is not None else ''}>"

    @property
    def mem(self) -> int | None:
        return self._wish.mem

    @property
    def cores(self) -> int | str | None:
        """The cap, or text such as ``30..60`` where something is guaranteed."""
        return None if self._wish.cores is None else self._wish.cores.plain

    @property
    def lost(self) -> str | None:
        """Why it is not ours any more; None while it is."""
        return self._lost

    def require(self) -> None:
        """``LeaseLost`` when it is not ours any more."""
        if self._lost is not None:
            raise LeaseLost(self._lost)

    def env(self, **changes: str) -> dict[str, str]:
        """The environment of a process in this lease."""
        if not self.gpus:
            return {**cpu_environment(self._site.address.environment), **changes}
        own = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus), config.LEASE_VARIABLE: self.id}
        return {**lease_environment(self._site.address, self._wish), **own, **changes}

    def acquire(self) -> None:
        if not self._wish.among:
            return
        began = time.monotonic()
        try:
            self._connection = self._open(self._wish.timeout, {})
        except RequestRefused as error:
            raise LeaseRefused(str(error)) from error
        except NoScheduler as error:
            if self._wish.timeout is not None and time.monotonic() - began >= self._wish.timeout:
                raise LeaseTimeout(f"no lease within {self._wish.timeout:g} s") from None
            raise LaunchError(str(error)) from error
        self.waited = time.monotonic() - began
        warn_if_inside(self.inside)
        self._watcher = threading.Thread(target=self._keep, name=f"lease {self.id}", daemon=True)
        self._watcher.start()

    def interrupt(self) -> None:
        """Let ``acquire`` in another thread fail."""
        self._stop.set()
        if self._connection is not None:
            self._connection.interrupt()

    def release(self) -> None:
        self.interrupt()
        if self._watcher is not None:
            self._watcher.join()
        if self._connection is not None:
            self._connection.close()
        self._lost = self._lost or "it was given back"

    def _open(self, timeout: float | None, again: dict[str, Any]) -> Connection:
        connection = self._connection = Connection(self._site.address.socket)
        try:
            connection.patience(timeout)
            answer = connection.request("lease", **self._wish.fields(), **again)
        except SchedulerError:
            connection.close()
            raise
        self.id, self.gpus, self.inside = answer["lease"], tuple(answer["gpus"]), answer["inside"]
        return connection

    def _keep(self) -> None:
        """Ask for the same again whenever a scheduler comes back."""
        again = {"again": {"id": self.id, "gpus": list(self.gpus)}}
        while not self._stop.is_set():
            assert self._connection is not None
            self._connection.wait_for_end()
            self._connection.close()
            while not self._stop.is_set():
                try:
                    self._connection = self._open(None, again)
                    break
                except RequestRefused as error:
                    self._lost = str(error)
                    return
                except SchedulerError:
                    self._stop.wait(_RETRY)


@contextlib.contextmanager
def lease(
    mem: int | str | None = None,
    cores: Cores | int | str | None = None,
    gpus: int = 1,
    timeout: float | None = None,
    *,
    label: str = "",
    on_no_gpu: OnNoGpu = "error",
    sim: str | None = None,
) -> Iterator[Lease]:
    """A place on the least loaded GPU (or on several) for the processes that this one starts with ``lease.env()``.

    ``mem`` ("4GiB" or bytes) and ``cores`` (percent: 60 caps, "30..60" also guarantees 30) are quotas on each of its
    GPUs, for all its processes together. Ends with the block, or with this process. ``LeaseTimeout`` when it is not
    granted within ``timeout`` seconds, ``LeaseRefused`` when it never can be, ``NoGpu`` when there is no GPU (see
    ``on_no_gpu``). ``sim`` is a simulated node such as "2xT4", made when it is not there.
    """
    held = _prepare(mem, cores, gpus, timeout, label, on_no_gpu, sim)
    try:
        held.acquire()
        yield held
    finally:
        held.release()


@contextlib.asynccontextmanager
async def alease(
    mem: int | str | None = None,
    cores: Cores | int | str | None = None,
    gpus: int = 1,
    timeout: float | None = None,
    *,
    label: str = "",
    on_no_gpu: OnNoGpu = "error",
    sim: str | None = None,
) -> AsyncIterator[Lease]:
    """``lease`` for asyncio: the loop goes on while it waits, and a cancelled wait asks no more."""
    held = await _in_thread(lambda: _prepare(mem, cores, gpus, timeout, label, on_no_gpu, sim))
    acquiring = asyncio.ensure_future(_in_thread(held.acquire))
    try:
        await asyncio.shield(acquiring)
        yield held
    finally:
        held.interrupt()
        with contextlib.suppress(LaunchError):
            await asyncio.shield(acquiring)
        await _in_thread(held.release)


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _prepare(
    mem: int | str | None,
    cores: Cores | int | str | None,
    gpus: int,
    timeout: float | None,
    label: str,
    on_no_gpu: OnNoGpu,
    sim: str | None,
) -> Lease:
    wish = wish_for(mem, cores, gpus, label, timeout)
    return Lease(find_site(wish, on_no_gpu, sim), wish)
