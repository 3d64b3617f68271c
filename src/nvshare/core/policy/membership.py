"""Group membership: whose quotas count for a process.

Guarantees: the pod of a process counts before all else; outside of pods the outermost run or lease around it does, so
that nobody escapes a quota by opening a run inside of it; a process in none of them is a group of its own. A group
follows from what the kernel says, never from what a process says. The one exception is harmless: of several leases of
one holder the environment of a process says which one is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """A process as the kernel describes it."""

    pid: int = 0  # 0: it is in a pid namespace that the scheduler does not see
    ancestors: tuple[int, ...] = ()  # process ids, itself first
    pod: str | None = None  # uid
    lease: str = ""  # the lease that its environment names


@dataclass(frozen=True)
class Opened:
    """What a process has opened for itself and all processes below it: a run, leases, or both."""

    process: Process
    run: bool = False
    leases: tuple[str, ...] = ()  # ids, oldest first


def pod_group(uid: str) -> str:
    return f"pod:{uid}"


def run_group(pid: int) -> str:
    return f"run:{pid}"


def lease_group(lease: str) -> str:
    return f"lease:{lease}"


def around(process: Process, opened: Mapping[int, Opened]) -> str | None:
    """The group of the outermost run or lease that a process is in, its own included; None: it is in none."""
    for ancestor in reversed(process.ancestors):
        found = opened.get(ancestor)
        if found is not None and found.run:
            return run_group(ancestor)
        if found is not None and found.leases:
            return lease_group(process.lease if process.lease in found.leases else found.leases[0])
    return None


def shared_group(process: Process, opened: Mapping[int, Opened]) -> str | None:
    """The pod, run or lease that a process belongs to; None: it belongs to itself."""
    return around(process, opened) if process.pod is None else pod_group(process.pod)


def group_of(process: Process, client: int, opened: Mapping[int, Opened]) -> str:
    """The group of a client's process."""
    alone = f"process:{process.pid or f'unknown-{client:016x}'}"
    return shared_group(process, opened) or alone
