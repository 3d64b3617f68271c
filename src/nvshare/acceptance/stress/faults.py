"""Faults that a stress test makes on purpose. nvshare must survive each, and nothing may be left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from nvshare import config, procfs
from nvshare.acceptance.finding import Verdict
from nvshare.acceptance.runner import Check, NotMade
from nvshare.acceptance.stress import acts
from nvshare.acceptance.stress.scene import Scene
from nvshare.acceptance.stress.verdicts import quantile
from nvshare.acceptance.waiting import eventually
from nvshare.client.connection import Connection
from nvshare.client.spawn import ensure_scheduler
from nvshare.launch.errors import LaunchError, QuotaOutOfMemory, WorkerKilled, WorkerTimeout
from nvshare.launch.leasing import Lease, wish_for
from nvshare.launch.orders import with_package
from nvshare.launch.pool import GpuPool

QUOTA = 256 << 20
WORK = 64 << 20
PATIENCE = 30.0
SOON = 2.0  # seconds until nothing may be left of a launcher that was killed
_STORM = 100
_STORM_AT_ONCE = 20


class NotSurvived(Exception):
    """The text says what went wrong."""


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise NotSurvived(text)


@contextmanager
def _pool(scene: Scene, workers: int = 1, **options: Any) -> Iterator[GpuPool]:
    where = {"sim": scene.address.simulated, "among": scene.cards.allowed, "env": {**scene.marked, **with_package()}}
    limits = {"timeout": PATIENCE, "deadline": PATIENCE, "output": subprocess.DEVNULL}
    with GpuPool(workers, QUOTA, 20, **{**where, **limits, **options}) as pool:
        yield pool


def _fails_with(future: Future[Any], kind: type[LaunchError]) -> LaunchError:
    try:
        result = future.result(PATIENCE)
    except kind as error:
        return error
    except Exception as error:
        raise NotSurvived(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise NotSurvived(f"{result!r} instead of {kind.__name__}")


def worker_killed(scene: Scene) -> str:
    with _pool(scene, 2) as pool:
        neighbour = pool.submit(acts.compute, WORK, 1.0)
        error = _fails_with(pool.submit(acts.kill_self), WorkerKilled)
        _require(isinstance(error, WorkerKilled) and error.signal == signal.SIGKILL, f"not by SIGKILL: {error}")
        _require(neighbour.result(PATIENCE), "its neighbour's data are wrong")
        _require(pool.submit(acts.compute, WORK, 0.1).result(PATIENCE), "its successor's data are wrong")
    return "its own future failed, its neighbour and its successor did not"


def out_of_memory(scene: Scene) -> str:
    with _pool(scene) as pool:
        _fails_with(pool.submit(acts.take, 2 * QUOTA), QuotaOutOfMemory)
        _require(pool.submit(acts.take, QUOTA // 2).result(PATIENCE) == QUOTA, "the card is not shown as the quota")
    return "QuotaOutOfMemory, and the same worker went on"


def hanging(scene: Scene) -> str:
    with _pool(scene) as pool:
        _fails_with(pool.submit_within(0.5, acts.hang), WorkerTimeout)
        _require(pool.submit(acts.compute, WORK, 0.1).result(PATIENCE), "its successor's data are wrong")
    return "ended at its deadline"


def ignoring_sigterm(scene: Scene) -> str:
    with _pool(scene, grace=0.5) as pool:
        began = time.monotonic()
        _fails_with(pool.submit_within(1.0, acts.hang, True), WorkerTimeout)
        took = time.monotonic() - began
    return f"killed after its grace, {took:.1f} s after it was asked for"


def leaving_an_orphan(scene: Scene) -> str:
    with _pool(scene) as pool:
        orphan = pool.submit(acts.leave_orphan).result(PATIENCE)
        _require(procfs.start_time(orphan) != 0, "there was no orphan")
    _require(eventually(lambda: procfs.start_time(orphan) == 0, SOON), f"orphan {orphan} is still there")
    return "ended with its worker"


def launcher_killed(scene: Scene) -> str:
    """``nvshare launch`` with four workers that have children, killed with SIGKILL."""
    before = scene.leases()
    command = [sys.executable, "-m", "nvshare.cli.main", "launch", "--workers", "4", "--mem", str(QUOTA)]
    environment = config.child_environment({**scene.address.variables, **scene.marked, **with_package()})
    launcher = subprocess.Popen(
        [*command, "--", "sh", "-c", "sleep 600 & setsid sleep 600 & sleep 600"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _require(eventually(lambda: len(scene.leases() - before) == 4, PATIENCE), "its workers did not begin")
    finally:
        launcher.kill()
        launcher.wait()
    began = time.monotonic()
    gone = eventually(lambda: not scene.processes() and scene.leases() <= before, PATIENCE)
    took = time.monotonic() - began
    left = f"{len(scene.processes())} processes, {len(scene.leases() - before)} leases"
    _require(gone and took <= SOON, f"after {took:.1f} s there were {left}")
    return f"no process and no lease left after {took:.2f} s"


def scheduler_restarted(scene: Scene) -> str:
    """Kill and restart the scheduler while a worker computes. The worker keeps its lease, quota and data."""
    with Connection(scene.address.socket) as connection:
        about = connection.status()["scheduler"]
    if scene.address.simulated is None and not scene.cards.started:
        raise NotMade("the scheduler of this machine was not started by this test")
    with _pool(scene) as pool:
        lease = pool.submit(acts.lease_id).result(PATIENCE)
        busy = pool.submit(acts.compute, WORK, 3.0)
        _require(procfs.kill(about["pid"], PATIENCE), "the scheduler did not die")
        ensure_scheduler(scene.address.socket, scene.address.environment)
        _require(eventually(lambda: lease in scene.leases(), PATIENCE), f"lease {lease} did not come back")
        _require(busy.result(PATIENCE), "the worker's data are wrong")
        _require(pool.submit(acts.lease_id).result(PATIENCE) == lease, "the worker has another lease")
        _fails_with(pool.submit(acts.take, 2 * QUOTA), QuotaOutOfMemory)
    return "the task went on, with the same lease and quota"


def storm_of_leases(scene: Scene) -> str:
    before = scene.leases()
    held = threading.Semaphore(0)

    def one(number: int) -> float:
        lease = Lease(scene.site, wish_for(WORK, 1, label=f"storm {number}", timeout=PATIENCE))
        try:
            lease.acquire()
            held.release()
            return lease.waited
        finally:
            lease.release()

    began = time.monotonic()
    with ThreadPoolExecutor(_STORM_AT_ONCE) as threads:
        waits = list(threads.map(one, range(_STORM)))
    took = time.monotonic() - began
    _require(eventually(lambda: scene.leases() <= before, SOON), "leases are left")
    median, worst = quantile(waits, 0.5), quantile(waits, 0.99)
    return f"{_STORM / took:.0f} leases/s, waited {median * 1e3:.1f} ms at the median, {worst * 1e3:.1f} ms at p99"


def neighbour_over_quota(scene: Scene) -> str:
    with _pool(scene, 2) as pool:
        good = pool.submit(acts.compute, WORK, 2.0)
        for _ in range(3):
            _fails_with(pool.submit(acts.take, 2 * QUOTA), QuotaOutOfMemory)
        _require(good.result(PATIENCE), "the neighbour's data are wrong")
    return "was refused each time; its neighbour's data are right"


FAULTS: dict[str, Callable[[Scene], str]] = {
    "a worker killed": worker_killed,
    "out of memory": out_of_memory,
    "a worker hanging": hanging,
    "a worker ignoring SIGTERM": ignoring_sigterm,
    "a worker leaving an orphan": leaving_an_orphan,
    "the launcher killed": launcher_killed,
    "the scheduler restarted": scheduler_restarted,
    "a storm of leases": storm_of_leases,
    "a neighbour over quota": neighbour_over_quota,
}


def checks() -> list[Check[Scene]]:
    """One check per fault. It sees how the fault was survived."""

    def survived(fault: Callable[[Scene], str]) -> Callable[[Scene], Verdict]:
        return lambda scene: Verdict(fault(scene), ok=True)

    return [Check(name, survived(fault)) for name, fault in FAULTS.items()]
