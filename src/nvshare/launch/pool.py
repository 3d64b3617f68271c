"""``GpuPool``: an executor whose workers are fresh interpreters, each in a lease of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from multiprocessing import spawn
from typing import IO, Any, TypeVar

from nvshare.cores import Cores
from nvshare.launch import worker
from nvshare.launch.errors import LaunchError, LeaseLost, WorkerKilled, WorkerTimeout
from nvshare.launch.leasing import OnNoGpu, Site, find_site, wish_for
from nvshare.launch.orders import GRACE, Order, Wish, with_package
from nvshare.launch.supervised import Ending, Granted, Supervised
from nvshare.launch.worker import RemoteTraceback, receive, send

T = TypeVar("T")
_TRIED_AGAIN = (WorkerKilled, WorkerTimeout, LeaseLost)
_PAUSE = 0.5  # seconds until a worker that could not be started is tried again, while others work
_DYING = 1.0  # seconds that a worker which hung up has until its supervisor says how it ended


@dataclass
class _Task:
    future: Future[Any]
    payload: bytes
    deadline: float | None
    retries: int  # left
    begun: bool = False

    def begins(self) -> bool:
        """False when it was cancelled before."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun


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
    """One supervised interpreter and the socket to it. ``begin`` first; ``close`` or ``leave`` at the end."""

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
        order = Order(argv, site.address, wish, site.cards, variables, fds=(theirs.fileno(),), grace=grace)
        self._preparation = preparation
        with theirs:
            self.process = Supervised(order, stdout=output, merge=output is not None)

    def begin(self) -> Granted:
        """Wait for its lease; the errors of a lease."""
        try:
            granted = self.process.wait_granted()
            self._prepare()
        except BaseException:
            self.close()
            raise
        return granted

    def _prepare(self) -> None:
        try:
            send(self.connection, self._preparation)
        except OSError as error:
            raise self._death() from error

    def do(self, task: _Task) -> tuple[bool, Any]:
        """Its answer. ``WorkerTimeout``, ``WorkerKilled`` or ``LeaseLost`` when there is none."""
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
    variables of the workers, ``among`` the UUIDs of the GPUs to use, ``output`` a file for what workers print,
    ``sim`` a simulated node ("2xT4").
    """

    def __init__(
        self,
        workers: int,
        mem: int | str | None = None,
        cores: Cores | int | str | None = None,
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
        sim: str | None = None,
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
        self._site = find_site(wish, on_no_gpu, sim)
        self._wish = replace(wish, among=self._site.among if among is None else tuple(among))
        self._variables = {**with_package(), **(env or {})}
        self._output = output
        self.workers = workers
        self._retries, self._deadline, self._reuse, self._grace = retries, deadline, reuse, grace
        self._preparation = pickle.dumps(_preparation())
        self._tasks: deque[_Task] = deque()
        self._waiting: set[Supervised] = set()  # workers that wait for their lease
        self._serving = 0  # workers that have theirs
        self._changed = threading.Condition()
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
        with self._changed:
            if not self._open:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._tasks.append(_Task(future, payload, deadline, self._retries))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._open = False
            if cancel_futures:
                for task in self._tasks:
                    task.future.cancel()
            self._changed.notify_all()
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
        """Tasks are taken by workers that have their lease: where there is not room for all, some do all the work."""
        mine: _Worker | None = None
        while self._is_wanted():
            try:
                mine = mine or self._start()
            except BaseException as error:
                self._not_started(error)
                continue
            task = self._take()
            if task is not None and task.begins():
                mine = self._do(task, mine)
        if mine is not None:
            self._dismiss(mine.leave)

    def _is_wanted(self) -> bool:
        """Wait for something to do; False when there will be nothing any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or not self._open)
            if not self._tasks:
                for process in self._waiting:
                    process.end("there is nothing left to do")
            return bool(self._tasks)

    def _take(self) -> _Task | None:
        with self._changed:
            return self._tasks.popleft() if self._tasks else None

    def _start(self) -> _Worker:
        mine = _Worker(self._site, self._wish, self._variables, self._grace, self._preparation, self._output)
        with self._changed:
            self._waiting.add(mine.process)
        try:
            granted = mine.begin()
        finally:
            with self._changed:
                self._waiting.discard(mine.process)
        counters = self._counters
        with counters.lock:
            counters.waits.append(granted.waited)
            counters.gpus.append(granted.gpus)
            counters.pids.append(mine.process.pid)
        with self._changed:
            self._serving += 1
        return mine

    def _not_started(self, error: BaseException) -> None:
        """A task fails of that only if nobody else is there to do it."""
        with self._changed:
            task = self._tasks.popleft() if self._tasks and not self._serving else None
            if task is None:
                self._changed.wait(_PAUSE)
        if task is not None and task.begins():
            task.future.set_exception(error)

    def _do(self, task: _Task, mine: _Worker) -> _Worker | None:
        """Do one task and finish its future; the worker for the next task, if it is still there."""
        try:
            right, answer = mine.do(task)
        except BaseException as error:
            self._dismiss(mine.close)
            if isinstance(error, _TRIED_AGAIN) and task.retries:
                self._put_back(replace(task, retries=task.retries - 1))
            else:
                task.future.set_exception(error)
            return None
        if not self._reuse:
            self._dismiss(mine.leave)
        if right:
            task.future.set_result(answer)
        else:
            raised, text = answer
            raised.__cause__ = RemoteTraceback(text)
            task.future.set_exception(raised)
        return mine if self._reuse else None

    def _dismiss(self, end: Callable[[], None]) -> None:
        with self._changed:
            self._serving -= 1
        with contextlib.suppress(LaunchError, OSError):
            end()

    def _put_back(self, task: _Task) -> None:
        """To the front: it has waited its turn."""
        with self._changed:
            self._tasks.appendleft(task)
            self._changed.notify()


def _preparation() -> dict[str, Any]:
    """What lets a fresh interpreter find the modules of this one, ``__main__`` too. Not our secrets."""
    data = spawn.get_preparation_data("nvshare worker")
    data["authkey"] = os.urandom(32)
    return data
