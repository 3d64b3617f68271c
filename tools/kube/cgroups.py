"""The control groups of a cluster: one name below every hierarchy, by which all its processes are found and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_SYSTEM = "system"  # what is not in a pod
_KILL_SECONDS = 20.0


def _hierarchies() -> Iterator[tuple[Path, bool]]:
    """Where each is mounted, and whether it is of version 2."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield Path(place), kind == "cgroup2"


def make(name: str) -> list[Path]:
    """The groups; the files through which a process of the cluster that is in no pod joins them."""
    joins = []
    for root, is_second in _hierarchies():
        group = root / name
        (group / _SYSTEM).mkdir(parents=True, exist_ok=True)
        for level in (group, group / _SYSTEM):
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if not is_second and (level / setting).exists():
                    (level / setting).write_text((root / setting).read_text())
        if is_second:
            controllers = (root / "cgroup.controllers").read_text().split()
            for level in (root, group):
                (level / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in controllers))
        joins.append(group / _SYSTEM / "cgroup.procs")
    return joins


def remove(name: str) -> None:
    """End every process in them, then the groups."""
    groups = [root / name for root, _ in _hierarchies() if (root / name).is_dir()]
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := {pid for group in groups for pid in _processes(group)}) and time.monotonic() < deadline:
        for pid in pids - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for group in groups:
        for directory, _, _ in os.walk(group, topdown=False):
            _remove_group(Path(directory), deadline)


def _processes(group: Path) -> Iterator[int]:
    for procs in group.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            yield from map(int, procs.read_text().split())


def _remove_group(directory: Path, deadline: float) -> None:
    """A group whose last process has just ended may be busy for a moment."""
    while True:
        try:
            return directory.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
