"""Many jobs on a number of supervised workers: each job a process in a lease of its own, as many at once as asked."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvshare.launch.errors import CleanupFailed, LaunchError, LeaseTimeout
from nvshare.launch.leasing import Site
from nvshare.launch.orders import GRACE, Wish
from nvshare.launch.running import start
from nvshare.launch.supervised import Ending, Supervised


@dataclass(frozen=True)
class Job:
    """``number`` tells jobs of the same text apart."""

    number: int
    argv: tuple[str, ...]
    text: str = ""


@dataclass(frozen=True)
class Result:
    """``code`` is None when there is none: a signal ended it, it never began, or nothing is known."""

    job: Job
    worker: int
    pid: int = 0
    gpus: tuple[str, ...] = ()
    waited: float = 0.0
    seconds: float = 0.0
    code: int | None = None
    signal: int | None = None
    error: str = ""
    attempts: int = 1
    timed_out: bool = False  # no lease came in time
    left: tuple[int, ...] = ()  # processes that could not be ended

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.error


@dataclass(frozen=True)
class Terms:
    workers: int
    retries: int = 0
    deadline: float | None = None  # seconds for each job
    grace: float = GRACE
    log_directory: Path | None = None


STOPPED = "the launch was stopped"  # why jobs end with it
Watcher = Callable[[int, Supervised], None]  # worker number and what was just started in a granted lease


class Fleet:
    """Runs jobs. ``stop`` may be called from a signal handler or another thread."""

    def __init__(
        self,
        site: Site,
        wish: Wish,
        terms: Terms,
        started: Watcher = lambda worker, process: None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``variables`` are further ones of the workers."""
        self._variables = dict(variables or {})
        self._site = site
        self._wish = replace(wish, among=wish.among or site.among)
        self._terms = terms
        self._started = started
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a second signal may come while the first is told to the workers
        self._running: dict[int, Supervised] = {}
        self._stopped = threading.Event()

    def run(self, jobs: Iterable[Job], done: Callable[[Result], None] = lambda result: None) -> list[Result]:
        """All jobs; ``done`` is called for each as it ends, in this thread. Stopped: those that had begun.
        Whatever ends this, the workers have ended before."""
        wanted = list(jobs)
        for job in wanted:
            self._jobs.put(job)
        count = min(self._terms.workers, len(wanted))
        threads = [threading.Thread(target=self._serve, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        results: list[Result] = []
        try:
            while len(results) < len(wanted) and any(thread.is_alive() for thread in threads):
                self._collect(results, done, 0.1)
        except BaseException:  # whatever it is: no worker outlives us
            self.stop()
            raise
        finally:
            for thread in threads:
                thread.join()
        while self._collect(results, done, 0.0):
            pass
        return results

    def _collect(self, results: list[Result], done: Callable[[Result], None], timeout: float) -> bool:
        try:
            result = self._results.get(timeout=timeout) if timeout else self._results.get_nowait()
        except queue.Empty:
            return False
        results.append(result)
        done(result)
        return True

    def stop(self) -> None:
        """Start no more jobs and end those that run."""
        self._stopped.set()
        with self._lock:
            running = list(self._running.values())
        for process in running:
            process.end(STOPPED)

    def running(self) -> int:
        """Workers that have their lease and run."""
        with self._lock:
            return sum(process.pid != 0 for process in self._running.values())

    def _serve(self, worker: int) -> None:
        with contextlib.suppress(queue.Empty):
            while not self._stopped.is_set():
                job = self._jobs.get_nowait()
                result = Result(job, worker)
                for attempt in range(1, self._terms.retries + 2):
                    result = replace(self._do(job, worker), attempts=attempt)
                    if result.ok or result.left or self._stopped.is_set():
                        break
                self._results.put(result)

    def _do(self, job: Job, worker: int) -> Result:
        began = time.monotonic()
        try:
            process = self._start(job, worker)
        except (LaunchError, OSError) as error:
            return Result(job, worker, error=str(error))
        with self._lock:
            self._running[worker] = process
        if self._stopped.is_set():
            process.end(STOPPED)
        try:
            granted = process.wait_granted()
            began = time.monotonic()
            self._started(worker, process)
            ending, late = self._await(process)
        except LaunchError as failure:
            left = failure.left if isinstance(failure, CleanupFailed) else ()
            no_lease = isinstance(failure, LeaseTimeout)
            with contextlib.suppress(LaunchError):
                process.close()
            return Result(job, worker, process.pid, error=str(failure), left=left, timed_out=no_lease)
        finally:
            with self._lock:
                self._running.pop(worker, None)
        return Result(
            job,
            worker,
            process.pid,
            granted.gpus,
            granted.waited,
            time.monotonic() - began,
            ending.code if ending.code is not None and ending.code >= 0 else None,
            ending.signal,
            late or ending.why,
            left=ending.left,
        )

    def _await(self, process: Supervised) -> tuple[Ending, str]:
        ending = process.wait(self._terms.deadline)
        if ending is not None:
            return ending, ""
        process.end("it passed its deadline")
        return process.close() or Ending(None), f"not finished within {self._terms.deadline:g} s"

    def _start(self, job: Job, worker: int) -> Supervised:
        argv = [text.replace("{worker}", str(worker)) for text in job.argv]
        variables = {**self._variables, "NVSHARE_WORKER": str(worker)}
        wish = replace(self._wish, label=self._wish.label or os.path.basename(argv[0]))
        directory = self._terms.log_directory
        if directory is None:
            return start(argv, self._site, wish, env=variables, grace=self._terms.grace)
        with open(directory / f"job-{job.number}.log", "ab") as log:
            return start(argv, self._site, wish, env=variables, grace=self._terms.grace, stdout=log, merge=True)


def jobs_for(command: Sequence[str], count: int) -> list[Job]:
    """The same command for each of so many workers."""
    return [Job(number, tuple(command)) for number in range(count)]
