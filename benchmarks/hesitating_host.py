"""Runs a command while its tasks lose their core now and then, as in a virtual machine whose host has other work:

    python benchmarks/hesitating_host.py -- nvshare bench compute --sim H200 --only pairs

At random moments the busiest thread of one of the command's processes under libnvshare.so is kept from running, by a
loop of real-time priority on the only core that it is allowed. Native processes are left alone, so what rows say is
what the hesitation costs under nvshare. Needs root. On few cores it hits others too: the scheduler, the other tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

_PRIORITY = 80
_KNOWN_FOR = 2.0  # seconds for which a list of processes is good


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def _is_task(pid: int) -> bool:
    try:
        return "libnvshare.so" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _cpu_ticks(stat: Path) -> int:
    user, system = stat.read_text().rsplit(")", 1)[1].split()[11:13]
    return int(user) + int(system)


def _busiest_thread(pid: int) -> int | None:
    try:
        return int(max(Path(f"/proc/{pid}/task").glob("*/stat"), key=_cpu_ticks).parent.name)
    except (OSError, ValueError):
        return None  # it ended


def _take_core(thread: int, core: int, seconds: float) -> bool:
    """False when the thread is no more."""
    try:
        allowed = os.sched_getaffinity(thread)
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(thread, {core})
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        os.sched_setaffinity(thread, allowed)
    except ProcessLookupError:
        return False
    return True


def _disturb(command: subprocess.Popen[bytes], every: float, seconds: float, source: random.Random) -> int:
    """Until the command has ended; how often a thread was kept from running."""
    cores = sorted(os.sched_getaffinity(0))
    known: list[int] = []
    known_at, times = float("-inf"), 0
    while command.poll() is None:
        time.sleep(source.expovariate(1 / every))
        if time.monotonic() - known_at > _KNOWN_FOR:
            known, known_at = list(filter(_is_task, _descendants(command.pid))), time.monotonic()
        thread = _busiest_thread(source.choice(known)) if known else None
        if thread is not None:
            times += _take_core(thread, source.choice(cores), seconds)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two, on average (1)")
    parser.add_argument("--ms", type=float, default=40.0, help="for how long (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if not arguments.every > 0 or not 0 < arguments.ms <= 1000:
        parser.error("--every must be above 0, --ms above 0 and at most 1000")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
    except PermissionError:
        parser.error("needs root and real-time priority: a loop takes the cores")
    try:
        command = subprocess.Popen(arguments.command)
    except OSError as error:
        parser.error(f"{arguments.command[0]}: {error.strerror}")
    try:
        times = _disturb(command, arguments.every, arguments.ms / 1000, random.Random(arguments.seed))
    except KeyboardInterrupt:
        return command.wait() or 130  # it had the Ctrl-C as well
    print(f"{times} times a task lost its core for {arguments.ms:g} ms", file=sys.stderr)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
