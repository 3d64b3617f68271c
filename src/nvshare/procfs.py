"""What the kernel says of processes, by number. Reads ``/proc``; a process that is gone is no error."""

from __future__ import annotations

import contextlib
import os
import select
import signal


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def processor_time() -> tuple[int, int]:
    """Ticks that all processors together have spent so far, and those of them with nothing to do."""
    try:
        with open("/proc/stat", "rb") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks), sum(ticks[3:5])


def _stat(pid: int) -> list[bytes]:
    """The fields after the command name, which may hold any character: state, parent, process group, session, …"""
    return _read(pid, "stat").rpartition(b")")[2].split()


def start_time(pid: int) -> int:
    """When a process started, in ticks since boot; 0 when it is gone or a zombie. With the number it names one process
    for ever."""
    fields = _stat(pid)
    return 0 if not fields or fields[0] in b"ZXx" else int(fields[19])


def boot() -> str:
    """Names the time since the machine was started, in which start times count."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_stopped(pid: int) -> bool:
    """Whether it was halted by a signal or a debugger."""
    return _stat(pid)[:1] in ([b"T"], [b"t"])


def kill(pid: int, patience: float, number: int = signal.SIGKILL) -> bool:
    """Send it a signal, and wait until all of it is gone; False when that takes too long. A process whose first thread
    is dead may have others that still hold its files and sockets."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(patience * 1000))
    finally:
        os.close(descriptor)


def parent(pid: int) -> int:
    """Its parent; 0 when it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def children(pid: int) -> list[int]:
    """Its children, those of all its threads."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        found += map(int, _read(pid, f"task/{thread}/children").split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below it, parents first."""
    found = children(pid)
    for one in found:  # grows meanwhile
        found += children(one)
    return found


def variable(pid: int, name: str) -> str:
    """A variable of the environment that a process was started with; empty when it has none or may not be read."""
    wanted = name.encode() + b"="
    entries = _read(pid, "environ").split(b"\0")
    return next((entry[len(wanted) :].decode(errors="replace") for entry in entries if entry.startswith(wanted)), "")
