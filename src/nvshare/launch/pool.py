"""``GpuPool``: an executor whose workers are fresh interpreters, each in a lease of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from multiprocessing import spawn
from typing import IO, Any, TypeVar

from nvshare.launch import worker
from nvshare.launch.errors import LaunchError, LeaseLost, WorkerKilled, WorkerTimeout
from nvshare.launch.leasing import OnNoGpu, Site, find_site, wish_for
from nvshare.launch.orders import GRACE, Order, Wish, with_package
from nvshare.launch.place import Place
from nvshare.launch.supervised import Ending, Supervised
from nvshare.launch.worker import RemoteTraceback, receive, send

T = TypeVar("T")
_TRIED_AGAIN = (WorkerKilled, WorkerTimeout, LeaseLost)
_DYING = 1.0  # seconds that a worker which hung up has until its supervisor says how it ended


@dataclass
class _Task:
    future: Future[Any]
    payload: bytes
    deadline: float | None
    retries: int


@dataclass(frozen=True)
class PoolStats:
    """What happened so far. ``waits``: seconds that each lease took; ``gpus``: of each worker that was started."""

    started: int
    waits: tuple[float, ...]
    gpus: tuple[tuple[str, ...], ...]
    pids: tuple[int, ...]


@dataclass
class _Counters:
    lock: threading.Lock = field(default_factory=threading.Lock)
    waits: list[float] = field(default_factory=list)
    gpus: list[tuple[str, ...]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)


class _Worker:
    """One supervised interpreter and the socket to it."""

    def __init__(
        self,
        site: Site,
        wish: Wish,
        variables: Mapping[str, str],
        grace: float,
        preparation: bytes,
        output: int | IO[Any] | None,
    ) -> None:
        self.connection, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "nvshare.launch.worker", str(theirs.fileno())]
        order = Order(argv, site.place, wish, site.cards, variables, fds=(theirs.fileno(),), grace=grace)
        with theirs:
            self.process = Supervised(order, stdout=output, merge=output is not None)
        try:
            self.granted = self.process.wait_granted()
            send(self.connection, preparation)
        except BaseException:
            self.close()
            raise

    def do(self, task: _Task) -> tuple[bool, Any]:
        """Its answer. ``WorkerTimeout``, ``WorkerKilled`` or ``LeaseLost`` when there is none; it is closed then."""
        deadline = None if task.deadline is None else time.monotonic() + task.deadline
        try:
            send(self.connection, task.payload)
            if not self._readable(deadline):
                self.process.end("its task passed its deadline")
                self.close()
                raise WorkerTimeout(f"the task was not finished within {task.deadline:g} s; its worker was ended")
            answer = receive(self.connection)
        except OSError:
            answer = None
        if answer is None:
            raise self._death()
        outcome: tuple[bool, Any] = pickle.loads(answer)  # noqa: S301 (from our own worker)
        return outcome

    def _readable(self, deadline: float | None) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000))

    def _death(self) -> LaunchError:
        pid = self.process.pid
        ending = self.process.wait(_DYING) or self.process.close() or Ending(None, "it never began")
        self.connection.close()
        if ending.why.startswith("the lease is lost"):
            return LeaseLost(ending.why)
        return WorkerKilled(f"worker {pid} ended without an answer: {ending}", ending.signal, ending.code)

    def close(self) -> None:
        """Its socket's end is its cue to leave; what stays is ended."""
        self.connection.close()
        self.process.close()

    def leave(self) -> None:
        """Let it end by itself, with its exit handlers, within the grace."""
        self.connection.shutdown(socket.SHUT_WR)
        if self.process.wait(GRACE) is None:
            self.process.close()
        self.connection.close()


class GpuPool(Executor):
    """``workers`` fresh interpreters (never forked), each in its own lease with these quotas, for functions to run in.

    A worker that crashes fails only its own future (``WorkerKilled``) and is replaced; ``retries`` tries a task again
    that a worker died of. ``deadline`` is for each task, in seconds: its worker is ended (``WorkerTimeout``).
    ``reuse=False`` gives every task an interpreter of its own. ``timeout`` is for each lease, ``env`` are further
    variables of the workers, ``among`` the UUIDs of the GPUs to use, ``output`` a file for what workers print.
    """

    def __init__(
        self,
        workers: int,
        mem: int | str | None = None,
        cores: int | None = None,
        *,
        gpus: int = 1,
        retries: int = 0,
        deadline: float | None = None,
        timeout: float | None = None,
        reuse: bool = True,
        grace: float = GRACE,
        label: str = "pool",
        on_no_gpu: OnNoGpu = "error",
        env: Mapping[str, str] | None = None,
        among: Sequence[str] | None = None,
        output: int | IO[Any] | None = None,
        place: Place | None = None,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers {workers!r} is not a number of workers: at least 1")
        if worker.preparing:
            raise RuntimeError(
                "a worker imports the main module of its launcher, which must not start a pool then: "
                'put what the program does under  if __name__ == "__main__":'
            )
        if retries < 0:
            raise ValueError(f"retries {retries!r} is less than 0")
        wish = wish_for(mem, cores, gpus, label, timeout)
        self._site = find_site(wish, on_no_gpu, place)
        self._wish = replace(wish, among=self._site.among if among is None else tuple(among))
        self._variables = {**with_package(), **(env or {})}
        self._output = output
        self.workers = workers
        self._retries, self._deadline, self._reuse, self._grace = retries, deadline, reuse, grace
        self._preparation = pickle.dumps(_preparation())
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._counters = _Counters()
        self._threads = [threading.Thread(target=self._serve, name=f"{label} {n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return self.submit_within(self._deadline, fn, *args, **kwargs)

    def submit_within(self, deadline: float | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """``submit`` with a deadline of its own, in seconds from when a worker takes it; None: none."""
        future: Future[T] = Future()
        payload = pickle.dumps((fn, args, kwargs), pickle.HIGHEST_PROTOCOL)
        with self._lock:
            if not self._open:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._tasks.put(_Task(future, payload, deadline, self._retries))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            if self._open:
                self._open = False
                if cancel_futures:
                    with contextlib.suppress(queue.Empty):
                        while (task := self._tasks.get_nowait()) is not None:
                            task.future.cancel()
                for _ in self._threads:
                    self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def stats(self) -> PoolStats:
        counters = self._counters
        with counters.lock:
            waits, gpus, pids = tuple(counters.waits), tuple(counters.gpus), tuple(counters.pids)
        return PoolStats(len(waits), waits, gpus, pids)

    # --- one thread for each worker

    def _serve(self) -> None:
        mine: _Worker | None = None
        while (task := self._tasks.get()) is not None:
            if task.future.set_running_or_notify_cancel():
                mine = self._do(task, mine)
        if mine is not None:
            with contextlib.suppress(LaunchError, OSError):
                mine.leave()

    def _do(self, task: _Task, mine: _Worker | None) -> _Worker | None:
        """Settle one future; the worker for the next."""
        for attempt in range(task.retries + 1):
            try:
                if mine is None:
                    mine = self._start()
                right, answer = mine.do(task)
            except BaseException as error:
                mine = None
                if not isinstance(error, _TRIED_AGAIN) or attempt == task.retries:
                    task.future.set_exception(error)
                    return None
                continue
            if not self._reuse:
                with contextlib.suppress(LaunchError, OSError):
                    mine.leave()
                mine = None
            if right:
                task.future.set_result(answer)
            else:
                raised, text = answer
                raised.__cause__ = RemoteTraceback(text)
                task.future.set_exception(raised)
            return mine
        return mine

    def _start(self) -> _Worker:
        mine = _Worker(self._site, self._wish, self._variables, self._grace, self._preparation, self._output)
        counters = self._counters
        with counters.lock:
            counters.waits.append(mine.granted.waited)
            counters.gpus.append(mine.granted.gpus)
            counters.pids.append(mine.process.pid)
        return mine


def _preparation() -> dict[str, Any]:
    """What lets a fresh interpreter find the modules of this one, ``__main__`` too. Not our secrets."""
    data = spawn.get_preparation_data("nvshare worker")
    data["authkey"] = os.urandom(32)
    return data
