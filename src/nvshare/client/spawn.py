"""Starting a scheduler for the user when none answers."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from nvshare import config, procfs
from nvshare.client.connection import Connection, NoScheduler, SchedulerError

IDLE_EXIT = 600.0  # seconds without any connection after which a scheduler we started ends itself
_END_PATIENCE = 5.0  # seconds that one has to end
LOG_NAME = "scheduler.log"
PROGRAM = ("-m", "nvshare.cli.scheduler")  # what Python runs as the scheduler


class SchedulerNotStarted(SchedulerError):
    """A scheduler was started and ended at once; the text is its own reason."""


def is_running(socket: Path) -> bool:
    """Whether a scheduler listens on this socket."""
    try:
        Connection(socket).close()
    except NoScheduler:
        return False
    return True


def end_unused(socket: Path) -> bool:
    """End the scheduler on this socket and wait for that, unless it serves somebody; False when it goes on."""
    try:
        with Connection(socket) as connection:
            status = connection.status()
        if status["clients"] or status["leases"] or status["groups"]:
            return False
        return procfs.kill(int(status["scheduler"]["pid"]), _END_PATIENCE, signal.SIGTERM)
    except (NoScheduler, PermissionError):
        return True
    except SchedulerError:
        return False


def ensure_scheduler(
    socket: Path,
    env: Mapping[str, str],
    card_memory: int | None = None,
    mode: str | None = None,
    idle_exit: float = IDLE_EXIT,
    program: Sequence[str] = PROGRAM,
) -> bool:
    """Return once a scheduler answers on this socket; True when it had to be started.

    ``env`` is the whole environment of the scheduler (for a simulated node: with the node's variables). It runs
    detached from us, logs to ``scheduler.log`` beside its socket and ends itself ``idle_exit`` seconds after its last
    connection.
    ``SchedulerNotStarted`` when it cannot run here.
    """
    if is_running(socket):
        return False
    try:
        options = ["--user", "--detach", "--socket", str(socket), "--idle-exit", f"{idle_exit:g}"]
        options += ["--card-memory", str(card_memory)] if card_memory is not None else []
        options += ["--mode", mode] if mode is not None else []
        return _ensure(socket, env, [*program, *options])
    except OSError as error:
        raise SchedulerNotStarted(
            f"cannot start a scheduler on {socket} ({error.strerror}: {error.filename}); "
            "choose another place with NVSHARE_SOCK"
        ) from error


def _ensure(socket: Path, env: Mapping[str, str], program: Sequence[str]) -> bool:
    if socket.parent == config.runtime_directory():
        config.own_runtime_directory()
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _open_log(socket.parent / LOG_NAME) as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # of several who start at once, one starts it and the others find it running
        if is_running(socket):
            return False
        start = log.tell()
        if not _start(program, env, log):
            raise SchedulerNotStarted(_reason(socket.parent / LOG_NAME, start))
    return True


def _open_log(path: Path) -> BinaryIO:
    """Open the log to append to it, never through a link and never another user's file."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    log = os.fdopen(descriptor, "ab")
    if os.fstat(descriptor).st_uid != os.getuid():
        log.close()
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    return log


def _start(program: Sequence[str], env: Mapping[str, str], log: BinaryIO) -> bool:
    """Start a scheduler; True once it says that it listens, False when it ended instead."""
    ready, told = os.pipe()
    try:
        # Opened anew: our own descriptor holds the lock, which the scheduler must not inherit.
        with open(f"/proc/self/fd/{log.fileno()}", "ab") as output:
            starter = subprocess.Popen(
                [sys.executable, *program, "--ready-fd", str(told)],
                env=_scheduler_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(told,),
            )
        os.close(told)
        told = -1
        starter.wait()  # the scheduler itself goes on in the background
        return os.read(ready, 1) != b""
    finally:
        os.close(ready)
        if told >= 0:
            os.close(told)


def _scheduler_environment(env: Mapping[str, str]) -> dict[str, str]:
    """It must find this very package, also from a source tree, and see the driver as it is, with nothing preloaded."""
    source = str(Path(__file__).resolve().parents[2])
    path = ":".join(filter(None, [source, env.get("PYTHONPATH", "")]))
    return {name: value for name, value in {**env, "PYTHONPATH": path}.items() if name != "LD_PRELOAD"}


def _reason(log: Path, start: int) -> str:
    with open(log, "rb") as text:
        text.seek(start)
        lines = text.read().decode(errors="replace").splitlines()
    last = lines[-1].partition("]: ")[2] or lines[-1] if lines else "it said nothing"
    return f"the scheduler could not start: {last}"
