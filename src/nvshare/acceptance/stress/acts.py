"""What workers do in the fault tests. They run in other processes: each is a plain function of this module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from nvshare.acceptance.stress.task import work
from nvshare.bench.driver import Context, Driver


def compute(size: int, seconds: float) -> bool:
    """Compute for some seconds; whether the data were right."""
    return bool(work(size, seconds, os.getpid())["ok"])


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def take(size: int) -> int:
    """Allocate and free; returns the size that the card shows."""
    with Context(Driver()) as context:
        context.free(context.allocate(size))
        return context.memory()[1]


def hang(deaf: bool = False) -> None:
    """Never end. A deaf worker ignores SIGTERM too."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def leave_orphan() -> int:
    """Start a process in a session of its own that outlives its parent; returns its number."""
    script = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    script += "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


def lease_id() -> str:
    from nvshare.launch import check

    return check().lease
